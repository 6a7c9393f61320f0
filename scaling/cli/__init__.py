"""The command ``scaling``. Heavy imports stay inside handlers: planning works without torch."""

from __future__ import annotations

import os
import sys
from typing import Any

import typer

from scaling.cli import bench, checkpoint
from scaling.cli.calibrate import calibrate
from scaling.cli.compare_frameworks import compare_frameworks
from scaling.cli.curves import curves
from scaling.cli.doctor import doctor
from scaling.cli.estimate import estimate
from scaling.cli.explain import explain
from scaling.cli.launch import launch
from scaling.cli.measure import measure
from scaling.cli.parity import parity
from scaling.cli.plan import plan
from strategies.errors import ScalingError

app = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,  # in rich's tables an 80 column terminal cuts the flags' names
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Plan which training strategy fits your GPUs, then train with it.",
)
app.command()(plan)
app.command()(estimate)
app.command()(launch)
app.command()(measure)
app.command()(parity)
app.command()(calibrate)
app.command()(curves)
app.command()(explain)
app.command()(doctor)
app.command()(compare_frameworks)
app.add_typer(bench.app, name="bench")
app.add_typer(checkpoint.app, name="checkpoint")


_UsageError: Any = typer.BadParameter.__base__
"""Of a flag that is wrong: typer 0.27 brings its own classes, older versions have click's."""


def main() -> None:
    """Run the command line; a mistake in the input is one line on stderr and exit code 2 (3: nothing fits)."""
    try:
        sys.exit(app(standalone_mode=False, prog_name="scaling"))
    except ScalingError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except _UsageError as error:
        if type(error).__name__ == "NoArgsIsHelpError":  # nothing was asked: its message is the help
            error.show()
        else:
            print(f"error: {_what_is_wrong(error)}", file=sys.stderr)
        sys.exit(error.exit_code)
    except OSError as error:
        if error.filename is not None:  # of a file; what is printed has no name
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # Python writes what is left once more when it ends
        print(f"error: cannot print the answer: {error.strerror}; send it elsewhere", file=sys.stderr)
        sys.exit(ScalingError.exit_code)


def _what_is_wrong(error: Any) -> str:
    """Return a usage error in one line, with where to read more."""
    place = error.ctx.command_path if error.ctx else "scaling"
    text = " ".join(error.format_message().split()).rstrip(".")
    if type(error).__name__ == "NoSuchOption" and place == "scaling launch":
        text += ": flags of training come after --"
    return f"{text[:1].lower()}{text[1:]}; see {place} --help"
