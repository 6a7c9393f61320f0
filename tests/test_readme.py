"""The README's commands run and print what it shows."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

import pytest
from typer.testing import CliRunner

from scaling.cli import app
from strategies.errors import ScalingError

README = Path(__file__).parents[1] / "README.md"
ELLIPSIS = "..."


@dataclass(frozen=True, slots=True, kw_only=True)
class Transcript:
    """A command and the lines shown under it."""

    command: str
    shown: tuple[str, ...]


def transcripts() -> list[Transcript]:
    blocks = re.findall(r"```console\n(.*?)```", README.read_text(), flags=re.DOTALL)
    return [
        Transcript(command=lines[0].removeprefix("$ "), shown=tuple(lines[1:]))
        for block in blocks
        if (lines := block.rstrip().splitlines())
    ]


@pytest.mark.parametrize("transcript", transcripts(), ids=lambda transcript: transcript.command[:60])
def test_command_prints_what_the_readme_shows(
    transcript: Transcript, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = shlex.split(transcript.command)
    assert words[:2] == ["scaling", "plan"], "only planning commands stand in console blocks"
    result = CliRunner().invoke(app, words[1:])
    printed = result.output
    if isinstance(result.exception, ScalingError):
        printed += f"error: {result.exception}"
    assert _missing(transcript.shown, printed) == []


def _missing(shown: tuple[str, ...], printed: str) -> list[str]:
    """Return the shown lines that do not appear in order; an ellipsis stands for any lines."""
    rest = [line.rstrip() for line in printed.splitlines()]
    missing = []
    for line in shown:
        if line == ELLIPSIS:
            continue
        if line.rstrip() in rest:
            rest = rest[rest.index(line.rstrip()) + 1 :]
        else:
            missing.append(line)
    return missing


def test_there_are_transcripts_for_a_fit_and_for_no_fit() -> None:
    shown = "\n".join(line for transcript in transcripts() for line in transcript.shown)
    assert "Plan: zero1" in shown
    assert "no plan fits" in shown
    assert "What would fit:" in shown


def test_every_make_target_and_module_named_exists() -> None:
    text, makefile = README.read_text(), (README.parent / "Makefile").read_text()
    for target in set(re.findall(r"`?make ([a-z-]+)`?", text)):
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE), target
    for path in set(re.findall(r"`((?:docs|configs)/[\w./]+)`", text)):
        assert (README.parent / path).exists(), path
