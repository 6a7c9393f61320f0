"""Plain text files: one document a file.

Read here and not through the ``datasets`` library: its text reader either cuts files into lines and forgets which file
they came from, or loads a whole file at once.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from scaling.data.errors import DataError
from scaling.data.text_source import MAX_PIECE_CHARS, Piece, TextSource, document_pieces


@dataclass(frozen=True, slots=True, kw_only=True)
class TextFiles(TextSource):
    """UTF-8 files in the given order, every character kept as it is, only a byte order mark dropped."""

    name: str
    files: tuple[Path, ...]
    num_other_files: int = 0
    """Files under the named folder that are of no kind that can be read."""

    @property
    def description(self) -> str:
        return f"{self.name}: {count_files(self.files, self.num_other_files)}"

    @property
    def num_bytes(self) -> int:
        return sum(path.stat().st_size for path in self.files)

    def identity(self) -> str:
        return json.dumps(["text", file_states(self.files)])

    def pieces(self) -> Iterator[Piece]:
        for path in self.files:
            yield from document_pieces(_chunks(path))


def file_states(files: Sequence[Path]) -> list[list[str | int]]:
    """Return path, bytes and time of last change (ns) of each file: cheap to read, and different after any edit."""
    try:
        states = [(path, path.stat()) for path in files]
    except OSError as error:
        raise DataError(f"cannot read {error.filename}: {error.strerror}; give the data source again") from error
    return [[str(path), state.st_size, state.st_mtime_ns] for path, state in states]


def count_files(files: Sequence[Path], num_other_files: int) -> str:
    """Return how many files of which ending are read, and how many beside them are not."""
    endings = ", ".join(sorted({path.suffix for path in files}))
    others = f", {num_other_files} of other kinds not read" if num_other_files else ""
    return f"{len(files)} {'file' if len(files) == 1 else 'files'} ({endings}){others}"


def _chunks(path: Path) -> Iterator[str]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            while chunk := file.read(MAX_PIECE_CHARS):
                yield chunk
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 text ({error.reason}); convert it or leave it out") from error
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}; make it readable or leave it out") from error
