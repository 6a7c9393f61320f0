"""Which documents a name stands for: built-in corpus, file, folder, glob, or dataset of the Hugging Face hub."""

from __future__ import annotations

import glob
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from scaling.data.builtin import python_standard_library
from scaling.data.cache import default_cache_dir
from scaling.data.errors import DataError
from scaling.data.paths import expand_home
from scaling.data.tables import NamedDataset, TableFiles, TableFormat
from scaling.data.text_files import TextFiles
from scaling.data.text_source import TextSource

BUILTIN_NAMES = ("builtin:python", "python-stdlib")
TEXT_SUFFIXES = frozenset({".txt", ".md", ".py"})
TABLE_FORMATS: dict[str, TableFormat] = {".jsonl": "json", ".json": "json", ".parquet": "parquet", ".csv": "csv"}
KNOWN_SUFFIXES = ", ".join([*sorted(TEXT_SUFFIXES), *TABLE_FORMATS])

DATASET_NAME = re.compile(r"(?P<dataset>[\w.-]+(/[\w.-]+)?)(:(?P<config>[^@]+))?(@(?P<split>.+))?")
"""``name``, ``owner/name``, then ``:config`` and ``@split`` where wanted, as in ``allenai/c4:en@train[:1%]``."""


def open_source(name: str, *, text_column: str | None = None, cache_dir: Path | None = None) -> TextSource:
    """Return the documents that ``name`` stands for; nothing is read yet.

    ``builtin:python`` is the Python standard library's source; otherwise a file, a folder (searched through, hidden
    files left out), a glob (``**`` crosses folders) or the name of a dataset, in this order.

    Raises:
        DataError: no such file, a kind of file that cannot be read, files of several kinds, or ``text_column`` for
            files that have no columns.
    """
    path = expand_home(name)
    if name in BUILTIN_NAMES:
        return _without_columns(python_standard_library(name), text_column)
    if path.is_dir():
        found = [file for file in sorted(path.rglob("*")) if _is_visible_file(file, path)]
        files = tuple(file for file in found if _suffix_is_known(file))
        return _local(name, files, text_column, cache_dir, num_other_files=len(found) - len(files))
    if path.is_file():
        return _local(name, (path,), text_column, cache_dir)
    if any(sign in name.partition("@")[0] for sign in "*?"):
        matches = sorted(Path(match) for match in glob.glob(str(path), recursive=True))
        return _local(name, tuple(match for match in matches if match.is_file()), text_column, cache_dir)
    return _named_dataset(name, text_column)


def read_texts(name: str, *, text_column: str | None = None, cache_dir: Path | None = None) -> Iterator[str]:
    """Return the documents that ``name`` stands for, each as one string."""
    parts: list[str] = []
    for piece in open_source(name, text_column=text_column, cache_dir=cache_dir).pieces():
        parts.append(piece.text)
        if piece.ends_document:
            yield "".join(parts)
            parts.clear()


def _local(
    name: str, files: tuple[Path, ...], text_column: str | None, cache_dir: Path | None, num_other_files: int = 0
) -> TextSource:
    if not files:
        raise DataError(f"no file to read in {name!r}; give a file, folder or glob of {KNOWN_SUFFIXES}")
    if unknown := [file for file in files if not _suffix_is_known(file)]:
        raise DataError(f"cannot read {str(unknown[0])!r}: the ending must be one of {KNOWN_SUFFIXES}")
    files = tuple(file.resolve() for file in files)
    kind = _only_kind(name, files)
    if kind == "text":
        texts = TextFiles(name=name, files=files, num_other_files=num_other_files)
        return _without_columns(texts, text_column)
    return TableFiles(
        name=name,
        format=kind,
        files=files,
        text_column=text_column,
        cache_dir=cache_dir or default_cache_dir(),
        num_other_files=num_other_files,
    )


def _only_kind(name: str, files: tuple[Path, ...]) -> TableFormat | Literal["text"]:
    by_kind: dict[TableFormat | Literal["text"], list[Path]] = {}
    for file in files:
        by_kind.setdefault(TABLE_FORMATS.get(file.suffix.lower(), "text"), []).append(file)
    if len(by_kind) > 1:
        counts = ", ".join(f"{len(group)} {kind} (such as {group[0].name})" for kind, group in by_kind.items())
        raise DataError(f"{name!r} mixes kinds of files: {counts}; choose one with a glob such as '{name}/**/*.jsonl'")
    return next(iter(by_kind))


def _named_dataset(name: str, text_column: str | None) -> NamedDataset:
    match = DATASET_NAME.fullmatch(name)
    if match is None or name.startswith(".") or _suffix_is_known(Path(name)):
        raise DataError(
            f"no file or folder is called {name!r}; give one, a glob, a dataset name, or {BUILTIN_NAMES[0]!r}"
        )
    return NamedDataset(
        name=name,
        dataset_name=match["dataset"],
        config=match["config"],
        split=match["split"] or "train",
        text_column=text_column,
    )


def _without_columns(texts: TextFiles, text_column: str | None) -> TextFiles:
    if text_column is not None:
        raise DataError(
            f"text_column={text_column!r} has no meaning for {texts.name!r}: plain text files have no columns"
        )
    return texts


def _suffix_is_known(file: Path) -> bool:
    return file.suffix.lower() in TEXT_SUFFIXES or file.suffix.lower() in TABLE_FORMATS


def _is_visible_file(file: Path, root: Path) -> bool:
    return file.is_file() and not any(part.startswith(".") for part in file.relative_to(root).parts)
