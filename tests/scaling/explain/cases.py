"""Explanations of configurations that stand in a test."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from scaling.explain.explanation import Asked, Explanation, explain
from scaling.explain.findings import Finding, Severity
from scaling.explain.reading import read_text
from scaling.explain.sources import FileKind, Launcher, Source, Sources, load_sources


def of_text(name: str, text: str, *, kind: FileKind, **asked: Any) -> Explanation:
    """Explain one file that is given as text."""
    source = Source(file=read_text(text, name=name), kind=kind)
    return explain(Sources(all=(source,)), Asked(**asked))


def of_deepspeed(tree: dict[str, Any], **asked: Any) -> Explanation:
    """Explain a DeepSpeed file, as DeepSpeed itself reads it where nothing else is said."""
    asked.setdefault("launcher", Launcher.DEEPSPEED)
    return of_text("ds.json", json.dumps(tree), kind=FileKind.DEEPSPEED, **asked)


def of_yaml(text: str, **asked: Any) -> Explanation:
    """Explain an accelerate file."""
    return of_text("accelerate.yaml", text, kind=FileKind.ACCELERATE, **asked)


def of_files(folder: Path, files: dict[str, str], **asked: Any) -> Explanation:
    """Write files and explain them together."""
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    return explain(load_sources([str(folder / name) for name in files]), Asked(**asked))


def errors(found: Explanation) -> list[Finding]:
    """Return the findings that are errors."""
    return [each for each in found.findings if each.severity is Severity.ERROR]
