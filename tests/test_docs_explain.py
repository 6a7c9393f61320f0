"""The examples of docs/explain.md: their files, their commands, and the lines that they print."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from benchmarks.explain_configs import manifest
from scaling.cli import app
from scaling.explain.findings import Topic
from scaling.explain.key_table import shipped_table

TEXT = (Path(__file__).parents[1] / "docs" / "explain.md").read_text(encoding="utf-8")
FILES = dict(re.findall(r"```\w+ file=(\S+)\n(.*?)```", TEXT, re.DOTALL))
EXAMPLES = [block.strip().splitlines() for block in re.findall(r"```console\n(.*?)```", TEXT, re.DOTALL)]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example[0])
def test_example_prints_its_lines(example: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    command, shown = example[0].removeprefix("$ scaling "), [line for line in example[1:] if line != "..."]
    assert shown, "an example shows what it prints"
    printed = CliRunner().invoke(app, shlex.split(command)).output.splitlines()
    assert [line for line in shown if line not in printed] == []


def test_document_names_every_verdict_and_version() -> None:
    for topic in Topic:
        assert f"`{topic}" in TEXT
    for package in ("deepspeed", "accelerate", "transformers"):
        assert shipped_table(package).version in TEXT
    assert f"our verdicts on {len(manifest())} files" in TEXT
