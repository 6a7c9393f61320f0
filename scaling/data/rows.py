"""`Rows`: records with named columns in any order: tables, image folders, datasets, or made here for trying things out.

Everything but the built-in ones is opened by the ``datasets`` library, which maps it from disk.
"""

from __future__ import annotations

import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from scaling.data.demos import COLOURS, MODULES, SHAPES, module_snippets, shape_picture, shape_words
from scaling.data.errors import DataError
from scaling.data.paths import expand_home
from scaling.data.permutation import permute
from scaling.data.source import open_source
from scaling.data.tables import NamedDataset, TableFiles, open_dataset
from scaling.errors import kind_and_line

SPLIT_SEED = 0x5EED
"""Of which rows are held out: the same for every run, so that no run trains on what another was judged by."""
BUILTIN_ROWS = ("builtin:modules", "builtin:shapes")
IMAGE_SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp"})


class Rows(ABC):
    """Records by their index."""

    description: str

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def row(self, index: int) -> Mapping[str, Any]:
        """Return one record."""

    @property
    @abstractmethod
    def columns(self) -> Sequence[str]: ...

    @abstractmethod
    def identity(self) -> str:
        """Return a text that changes whenever the records may have changed."""

    def values(self, column: str) -> Sequence[Any]:
        """Return one column of all records."""
        return [self.row(index)[column] for index in range(len(self))]

    def class_names(self, column: str) -> Sequence[str] | None:
        """Return the classes' names where a column of numbers has names for them."""
        return None


@final
class DatasetRows(Rows):
    """A dataset of the ``datasets`` library."""

    def __init__(self, dataset: Any, *, description: str, identity: str) -> None:
        self._dataset = dataset
        self._identity = identity
        self.description = description

    def __len__(self) -> int:
        return len(self._dataset)

    def row(self, index: int) -> Mapping[str, Any]:
        try:
            found: Mapping[str, Any] = self._dataset[index]
        except OSError as error:  # a picture that is cut off or none: PIL's error is one of these
            raise DataError(
                f"record {index + 1} of {self.description} cannot be read: {kind_and_line(error)}; correct it or leave "
                f"it out"
            ) from error
        return found

    @property
    def columns(self) -> Sequence[str]:
        return tuple(self._dataset.column_names)

    def identity(self) -> str:
        return self._identity

    def values(self, column: str) -> Sequence[Any]:
        return list(self._dataset[column])

    def class_names(self, column: str) -> Sequence[str] | None:
        names = getattr(self._dataset.features[column], "names", None)
        return None if names is None else tuple(names)


@final
class ModuleRows(Rows):
    """Pieces of the standard library's source, labelled with the package they come from."""

    description = "builtin:modules"
    columns = ("text", "label")

    def __init__(self) -> None:
        self._rows = module_snippets()

    def __len__(self) -> int:
        return len(self._rows)

    def row(self, index: int) -> Mapping[str, Any]:
        text, label = self._rows[index]
        return {"text": text, "label": label}

    def identity(self) -> str:
        return hashlib.blake2b("\0".join(text for text, _ in self._rows).encode(), digest_size=16).hexdigest()

    def class_names(self, column: str) -> Sequence[str] | None:
        return MODULES if column == "label" else None


@final
class ShapeRows(Rows):
    """Drawn pictures of one coloured shape each, with its kind, its colour and a caption."""

    description = "builtin:shapes"
    columns = ("image", "label", "colour", "text")
    num_rows = 4096

    def __len__(self) -> int:
        return self.num_rows

    def row(self, index: int) -> Mapping[str, Any]:
        shape, colour, text = shape_words(index)
        return {"image": shape_picture(index), "label": shape, "colour": colour, "text": text}

    def values(self, column: str) -> Sequence[Any]:
        """As the others', without drawing what is not asked for."""
        if column == "image":
            return super().values(column)
        place = ("label", "colour", "text").index(column)
        return [shape_words(index)[place] for index in range(len(self))]

    def identity(self) -> str:
        return "builtin:shapes, version 1"

    def class_names(self, column: str) -> Sequence[str] | None:
        return {"label": SHAPES, "colour": tuple(COLOURS)}.get(column)


@final
class PartOfRows(Rows):
    """Some of the records of another."""

    def __init__(self, whole: Rows, indices: NDArray[np.int64]) -> None:
        self._whole = whole
        self._indices = indices
        self.description = whole.description

    def __len__(self) -> int:
        return len(self._indices)

    def row(self, index: int) -> Mapping[str, Any]:
        return self._whole.row(int(self._indices[index]))

    @property
    def columns(self) -> Sequence[str]:
        return self._whole.columns

    def identity(self) -> str:
        return f"{self._whole.identity()}, {len(self)} records from {self._indices[:1].tolist()}"

    def class_names(self, column: str) -> Sequence[str] | None:
        return self._whole.class_names(column)


def open_rows(name: str, *, cache_dir: Path | None = None) -> Rows:
    """Return the records that ``name`` stands for.

    ``builtin:modules`` and ``builtin:shapes`` are made here; otherwise a folder that ``datasets`` saved, a folder of
    images (one folder a class, or a metadata.jsonl beside them), a JSONL, CSV or Parquet file, a folder or glob of
    such files, or the name of a dataset.

    Raises:
        DataError: there is no such thing, or it has no columns.
    """
    if name in BUILTIN_ROWS:
        return ModuleRows() if name == "builtin:modules" else ShapeRows()
    path = expand_home(name)
    if path.is_dir() and ((path / "state.json").is_file() or _has_images(path)):
        dataset = open_dataset(name, path, cache_dir=cache_dir)
    else:
        source = open_source(name, cache_dir=cache_dir)
        if not isinstance(source, TableFiles | NamedDataset):
            raise DataError(
                f"{source.description} is plain text, without columns; give JSONL, CSV, Parquet, a folder of images, a "
                f"dataset, or one of {', '.join(BUILTIN_ROWS)}"
            )
        dataset = source.dataset()
    if not len(dataset):
        raise DataError(f"{name} has no rows; name data that do")
    return DatasetRows(dataset, description=name, identity=str(getattr(dataset, "_fingerprint", name)))


def split_rows(rows: Rows, *, eval_fraction: float) -> tuple[Rows, Rows | None]:
    """Return the records to train on and those held out, None where ``eval_fraction`` is 0.

    Which ones is decided by a fixed shuffle, since files are often sorted by label.

    Raises:
        DataError: one of the two would have no record.
    """
    num_rows, num_held_out = len(rows), round(len(rows) * eval_fraction)
    if not eval_fraction:
        return rows, None
    if not 0 < num_held_out < num_rows:
        raise DataError(
            f"eval_fraction={eval_fraction} holds out {num_held_out} of {num_rows} records of {rows.description}; "
            f"{_enough_rows(num_rows, eval_fraction)}, or do not evaluate"
        )
    order = permute(np.arange(len(rows), dtype=np.uint64), size=len(rows), seed=SPLIT_SEED, epoch=0).astype(np.int64)
    return PartOfRows(rows, order[num_held_out:]), PartOfRows(rows, order[:num_held_out])


def _enough_rows(num_rows: int, eval_fraction: float) -> str:
    """Return what would hold out a record and leave one to train on."""
    if num_rows < 2:
        return "give at least 2 records"
    if eval_fraction > 0.5:
        return f"lower it to {1 - 1 / num_rows:.3g} at most, which leaves one"
    # `round` gives 1 from just above a half on.
    enough = int(0.5 / eval_fraction) + 1
    return f"raise it to {math.ceil(1000 / num_rows) / 1000:g}, which holds out one, give at least {enough} records"


def _has_images(folder: Path) -> bool:
    return any(path.suffix.lower() in IMAGE_SUFFIXES for path in folder.rglob("*"))
