"""Files that were mutated at random: an answer or one line, never a traceback, never a hang."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import typer
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from benchmarks.explain_configs import REFERENCE, manifest
from scaling.cli.explain import explain
from strategies.errors import ScalingError

ALONE = typer.Typer()  # the whole command line takes five times as long to be built for every call
ALONE.command()(explain)
TEXTS = {row["file"]: (REFERENCE / row["file"]).read_text(encoding="utf-8") for row in manifest()}
TEXTS["args.yaml"] = (
    "output_dir: o\nper_device_train_batch_size: 4\nbf16: true\nfsdp: full_shard\nlearning_rate: 1.0e-5\n"
)
INSIDE = json.loads(TEXTS["deepspeed/z3_fastchat.json"])
NESTED = {"output_dir": "o", "per_device_train_batch_size": 2, "deepspeed": INSIDE}
TEXTS["args.json"] = json.dumps(NESTED)
ODD: list[Any] = [
    None, True, False, 0, -1, 3, 1e308, float("inf"), float("nan"), 10**400, "", "auto", "none", "\x00", "é", "${x}",
    [], [[]], {}, {"": {}}, {"enabled": "auto"}, ["a", 1], "1e400", "9" * 5000, {"stage": {"stage": 3}},
]  # fmt: skip


def _mutated_tree(value: Any, rng: random.Random) -> Any:
    if isinstance(value, dict) and value and rng.random() < 0.85:
        key = rng.choice(list(value))
        action = rng.random()
        changed = dict(value)
        if action < 0.6:
            changed[key] = _mutated_tree(value[key], rng)
        elif action < 0.75:
            changed[key[: rng.randrange(len(key) + 1)] + rng.choice(("", "x", ".", " "))] = changed.pop(key)
        elif action < 0.85:
            del changed[key]
        else:
            changed[rng.choice(list(value))] = rng.choice(ODD)
        return changed
    return rng.choice(ODD)


def _mutated_text(text: str, rng: random.Random) -> str:
    for _ in range(rng.randrange(1, 6)):
        place = rng.randrange(len(text) + 1)
        end = min(len(text), place + rng.randrange(0, 30))
        piece = rng.choice(
            (
                "",
                "{",
                "}",
                "[",
                ",",
                ":",
                '"',
                "\n",
                "#",
                "//",
                "- ",
                "&a ",
                "*a",
                "\t",
                "auto",
                "\x00",
                "!!python/none ",
            )
        )
        text = text[:place] + piece + text[end:]
    return text


def mutated(name: str, seed: int) -> str:
    rng = random.Random(seed)
    text = TEXTS[name]
    if name.endswith(".json") and rng.random() < 0.6:
        try:
            tree = json.loads(text)
        except ValueError:
            return _mutated_text(text, rng)
        for _ in range(rng.randrange(1, 4)):
            tree = _mutated_tree(tree, rng)
        return json.dumps(tree)
    if rng.random() < 0.5 and not name.endswith(".json"):
        import yaml

        tree = yaml.safe_load(text)
        for _ in range(rng.randrange(1, 4)):
            tree = _mutated_tree(tree, rng)
        return str(yaml.safe_dump(tree, allow_unicode=True))
    return _mutated_text(text, rng)


@settings(
    max_examples=500, deadline=20_000, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    name=st.sampled_from(sorted(TEXTS)),
    seed=st.integers(0, 2**32),
    flags=st.sampled_from(
        (
            "",
            "--json",
            "--fix",
            "--to plan",
            "--to training-args",
            "--world-size 4",
            "--to accelerate",
            "--to deepspeed",
        )
    ),
)
def test_mutated_files_end_with_0_or_2(name: str, seed: int, flags: str, tmp_path: Path) -> None:
    path = tmp_path / Path(name).name
    path.write_text(mutated(name, seed), encoding="utf-8", errors="replace")
    words = [str(path), *flags.split(), *(["--overwrite"] if flags == "--fix" else [])]
    result = CliRunner().invoke(ALONE, words)
    if isinstance(result.exception, ScalingError):
        assert result.exception.exit_code == 2
        return
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exc_info
    assert result.exit_code in (0, 2)
    if flags == "--json":
        json.loads(result.stdout)


@pytest.mark.parametrize("text", ["", "{}", "[]", "null", "3", "a: &a [*a]", "{" * 10_000, '{"a": ' * 3000, "\ufeff{}"])
def test_files_without_keys_are_one_error(text: str, tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(text, encoding="utf-8")
    result = CliRunner().invoke(ALONE, [str(path)])
    assert result.exit_code == 2
    assert result.exception is None or isinstance(result.exception, SystemExit)
