"""Rows with a text column (JSON lines, JSON, Parquet, CSV, datasets by name) through the ``datasets`` library.

Local files are streamed: our own store keeps the tokens, so a second copy of the text on disk would help nobody.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from scaling.data.cache import default_cache_dir
from scaling.data.errors import DataError
from scaling.data.hub import hub_or_cache
from scaling.data.text_files import count_files, file_states
from scaling.data.text_source import Piece, TextSource, string_pieces
from scaling.errors import kind_and_line

if TYPE_CHECKING:
    import pyarrow as pa

TableFormat = Literal["json", "parquet", "csv"]
"""The reader's name in ``datasets``; JSON lines and a JSON list of objects share one."""

ROWS_PER_READ = 128
"""Rows turned into Python strings at once: small enough for rows that are whole books."""
USUAL_TEXT_COLUMNS = ("text", "content")


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFiles(TextSource):
    """Local files of one format; one document a row."""

    name: str
    format: TableFormat
    files: tuple[Path, ...]
    text_column: str | None
    cache_dir: Path
    num_other_files: int = 0

    @property
    def description(self) -> str:
        return f"{self.name}: {count_files(self.files, self.num_other_files)}"

    @property
    def num_bytes(self) -> None:
        return None

    def identity(self) -> str:
        return json.dumps([self.format, self.text_column, file_states(self.files)])

    def pieces(self) -> Iterator[Piece]:
        for text in _texts(self._tables(), name=self.name, text_column=self.text_column):
            yield from string_pieces(text)

    def dataset(self) -> Any:
        """Return all rows in any order, mapped from a copy in the cache.

        Raises:
            DataError: the files cannot be read.
        """
        import datasets

        files = [str(path) for path in self.files if _has_rows(path, self.format)]
        try:
            return datasets.load_dataset(
                self.format, data_files=files, split="train", cache_dir=str(self.cache_dir / "datasets")
            )
        except Exception as error:  # as in `_tables`
            raise DataError(f"cannot read {self.name} as {self.format}: {_reason(error)}; correct the file") from error

    def _tables(self) -> Iterator[pa.Table]:
        import datasets

        # A fresh lock file for every set of files would pile up in the user's cache: keep them in ours.
        cache_dir = str(self.cache_dir / "datasets")
        try:
            files = [str(path) for path in self.files if _has_rows(path, self.format)]
            if not files:
                raise DataError(f"{self.name} has no rows; name files that do")
            rows = datasets.load_dataset(
                self.format, data_files=files, split="train", streaming=True, cache_dir=cache_dir
            )
            yield from rows.with_format("arrow").iter(batch_size=ROWS_PER_READ)
        except DataError:
            raise
        except Exception as error:  # datasets passes on whatever pyarrow, pandas or the codec raised
            raise DataError(f"cannot read {self.name} as {self.format}: {_reason(error)}; correct the file") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedDataset(TextSource):
    """A dataset of the Hugging Face hub, downloaded to the Hugging Face cache; one document a row.

    A dataset that changes on the hub under the same name keeps its old tokens: the identity is the name, so that a run
    can be repeated without a network.
    """

    name: str
    dataset_name: str
    config: str | None
    split: str
    text_column: str | None

    @property
    def description(self) -> str:
        return f"{self.name}: dataset {self.dataset_name}, config {self.config or 'default'}, split {self.split}"

    @property
    def num_bytes(self) -> None:
        return None

    def identity(self) -> str:
        return json.dumps(["hub", self.dataset_name, self.config, self.split, self.text_column])

    def pieces(self) -> Iterator[Piece]:
        for text in _texts(self._tables(), name=self.name, text_column=self.text_column):
            yield from string_pieces(text)

    def _tables(self) -> Iterator[pa.Table]:
        yield from self.dataset().with_format("arrow").iter(batch_size=ROWS_PER_READ)

    def dataset(self) -> Any:
        """Return all rows in any order.

        Raises:
            DataError: there is no such dataset, or it cannot be loaded.
        """
        import datasets

        silence = ""
        try:
            with hub_or_cache() as silence:
                return datasets.load_dataset(self.dataset_name, self.config, split=self.split)
        except Exception as error:  # hub, network, reader and conversion errors have no common base
            reason = f"it is not in the cache, and {silence}" if silence else _reason(error)
            raise DataError(
                f"no file or folder is called {self.name!r}, and loading the dataset {self.dataset_name!r} "
                f"(config={self.config}, split={self.split}) failed: {reason}; check the spelling and the "
                f"network, or name local files"
            ) from error


def open_dataset(name: str, folder: Path, *, cache_dir: Path | None) -> Any:
    """Return what ``datasets`` saved in ``folder``, or the images in it: one folder a class, or metadata beside them.

    Raises:
        DataError: it cannot be read.
    """
    import datasets

    cache = str((cache_dir or default_cache_dir()) / "datasets")
    try:
        if (folder / "state.json").is_file():
            return datasets.load_from_disk(str(folder))
        return datasets.load_dataset("imagefolder", data_dir=str(folder), split="train", cache_dir=cache)
    except Exception as error:  # as above
        raise DataError(f"cannot read {name} as a dataset: {_reason(error)}; correct the folder") from error


def choose_text_column(schema: pa.Schema, *, name: str, text_column: str | None) -> str:
    """Return the column that holds the text: the wanted one, else ``text``, ``content`` or the only one of strings."""
    columns = ", ".join(f"{field.name} ({field.type})" for field in schema)
    strings = [field.name for field in schema if _is_string(field.type)]
    if text_column is not None:
        if text_column not in strings:
            raise DataError(f"text_column={text_column!r} is no column of strings in {name}; it has: {columns}")
        return text_column
    usual = [column for column in USUAL_TEXT_COLUMNS if column in strings]
    if not usual and len(strings) != 1:
        raise DataError(
            f"cannot tell which column of {name} is the text; it has: {columns}; name one with --text-column"
        )
    return (usual or strings)[0]


def _texts(tables: Iterator[pa.Table], *, name: str, text_column: str | None) -> Iterator[str]:
    """Return the text of each row; a missing value (null) counts as an empty document."""
    column: str | None = None
    for table in tables:
        if column is None or column not in table.column_names:
            column = choose_text_column(table.schema, name=name, text_column=column or text_column)
        for text in table[column].to_pylist():
            yield text or ""


def _has_rows(path: Path, table_format: TableFormat) -> bool:
    """Return False for a file that is plainly empty: datasets 5.2 ends with an error of its own inside on one."""
    if table_format == "parquet":
        import pyarrow.parquet as pq

        return bool(pq.read_metadata(path).num_rows)
    return path.stat().st_size > 0


def _is_string(column_type: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_string(column_type) or pa.types.is_large_string(column_type))


def _reason(error: Exception) -> str:
    """Return the innermost cause in one line: datasets wraps the useful message in a general one."""
    while isinstance(error.__cause__, Exception):
        error = error.__cause__
    return kind_and_line(error)
