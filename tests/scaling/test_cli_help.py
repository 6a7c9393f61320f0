"""--help on a terminal of 80 columns: every flag's whole name can be read and copied."""

from __future__ import annotations

import inspect
import subprocess
import sys

import pytest
import typer
from typer.testing import CliRunner

from scaling.cli import app


def flags_of(command: str) -> list[str]:
    """Return the names of every flag of a command, as its parser takes them."""
    found = typer.main.get_command(app)
    for word in command.split():
        found = found.commands[word]  # type: ignore[attr-defined]
    parameters = found.params
    return [name for each in parameters for name in (*each.opts, *each.secondary_opts) if name.startswith("--")]


@pytest.mark.parametrize(
    "command",
    ["plan", "estimate", "measure", "parity", "calibrate", "explain", "doctor", "bench run", "bench compare"],
)
def test_no_flag_is_cut_at_80_columns(command: str) -> None:
    result = CliRunner().invoke(app, [*command.split(), "--help"], env={"COLUMNS": "80", "TERMINAL_WIDTH": "80"})
    words = result.output.replace(",", " ").split()
    found = flags_of(command)
    assert "--json" in found
    assert [name for name in found if name not in words] == []
    assert max(map(len, result.output.splitlines())) <= 80


def test_words_that_a_flag_takes_are_in_its_help() -> None:
    text = " ".join(CliRunner().invoke(app, ["plan", "--help"], env={"COLUMNS": "80"}).output.split())
    for words in ("ddp, zero1, zero2, zero3, fsdp2", "none, selective, full", "auto, standard, chunked, fused"):
        assert words in text


def test_exit_codes_of_an_estimate_are_told() -> None:
    from scaling.cli.estimate import estimate

    assert "exit code 0, also where the plan does not fit" in (inspect.getdoc(estimate) or "")


def test_the_package_runs_as_a_module() -> None:
    told = subprocess.run([sys.executable, "-m", "scaling", "--help"], capture_output=True, text=True, check=True)
    assert "plan" in told.stdout
