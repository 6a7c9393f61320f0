"""The flags of ``scaling.train``, made from the fields of `TrainConfig`."""

from __future__ import annotations

import argparse
import difflib
import inspect
import re
from collections.abc import Sequence
from dataclasses import MISSING, dataclass, fields
from enum import StrEnum
from pathlib import Path
from typing import Any, NoReturn, get_type_hints

from scaling.errors import ConfigError
from scaling.train_config import TrainConfig, resolve

PROGRAM = "scaling.train"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainArguments:
    """What the command line asks for."""

    config: TrainConfig
    json: bool
    """Print the summary as JSON instead of lines."""


def parse_arguments(argv: Sequence[str], *, program: str = PROGRAM) -> TrainArguments:
    """Return what ``argv`` asks of ``program``, a module of ours.

    Raises:
        ConfigError: every unknown flag, or every missing or wrong setting, in one message.
    """
    parser = _parser(program)
    known, unknown = parser.parse_known_args(list(argv))
    if unknown:
        raise ConfigError("; ".join(_unknown(argument, parser) for argument in unknown))
    given = vars(known)
    flags = {field.name: given[field.name] for field in fields(TrainConfig) if field.name in given}
    config = resolve(flags=flags, assignments=given.get("set", []), file=given.get("config"))
    return TrainArguments(config=config, json="json" in given)


class _Parser(argparse.ArgumentParser):
    """Raises instead of printing usage on every rank."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message}; see python -m {self.prog} --help")


def _parser(program: str) -> argparse.ArgumentParser:
    how = "accelerate launch -m, deepspeed --module, torchrun -m, or python -m for one process"
    parser = _Parser(
        prog=program,
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
        description=f"Train exactly what a plan says. Start it with {how if program == PROGRAM else 'python -m'}.",
    )
    types, texts = get_type_hints(TrainConfig), _field_texts()
    for field in fields(TrainConfig):
        default = "required" if field.default is MISSING else f"default {_shown(field.default)}"
        options: dict[str, Any] = {"help": f"{texts[field.name]} ({default})".replace("%", "%%")}
        options |= {"action": "store_true"} if types[field.name] is bool else {"metavar": _metavar(field.name, types)}
        parser.add_argument(f"--{field.name.replace('_', '-')}", **options)
    parser.add_argument("--config", type=Path, metavar="RUN.YAML", help="Settings by field name; flags win over them")
    parser.add_argument("--set", action="append", metavar="NAME=VALUE", help="One setting; repeatable")
    parser.add_argument("--json", action="store_true", help="Print the summary as JSON")
    # The deepspeed launcher puts it first; the environment says the same.
    parser.add_argument("--local_rank", "--local-rank", help=argparse.SUPPRESS)
    return parser


def _shown(default: object) -> str:
    return "none" if default in (None, ()) else str(default)


def _metavar(name: str, types: dict[str, Any]) -> str:
    """Return what stands for the value in the help: the choices where there are some."""
    is_choice = isinstance(types[name], type) and issubclass(types[name], StrEnum)
    return f"{{{','.join(types[name])}}}" if is_choice else name.upper()


def _field_texts() -> dict[str, str]:
    """Return the string literal under each field of `TrainConfig`, which is its help text."""
    source = inspect.getsource(TrainConfig)
    found = re.findall(r'^    (\w+): [^\n]*\n    """(.*?)"""$', source, flags=re.MULTILINE | re.DOTALL)
    return {name: " ".join(text.split()) for name, text in found}


def _unknown(argument: str, parser: argparse.ArgumentParser) -> str:
    flag = argument.partition("=")[0]
    options = [option for option in parser._option_string_actions if option.startswith("--")]
    close = difflib.get_close_matches(flag, options, n=1, cutoff=0.5)
    return f"unknown argument {argument!r}; " + (f"did you mean {close[0]}?" if close else "see --help")
