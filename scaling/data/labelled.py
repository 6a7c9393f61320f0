"""Samples of classifiers and of contrastive models, made from records when they are needed."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerBase

from scaling.batch import Batch
from scaling.data.errors import DataError
from scaling.data.order import Draw
from scaling.data.padded import pad
from scaling.data.rows import Rows

USUAL_COLUMNS = {
    "text": ("text", "caption", "sentence", "content"),
    "label": ("label", "labels", "class", "category"),
    "image": ("image", "img", "picture"),
}
"""Names that a column of each kind often has."""
_KINDS = {int: "whole number", str: "text", float: "number with a fraction", bool: "true or false"}
logger = logging.getLogger(__name__)


def choose_column(rows: Rows, kind: str, given: str | None) -> str:
    """Return the column that holds the text, label or image: the given one, else the first of the usual names.

    Raises:
        DataError: there is no such column.
    """
    usual = (given,) if given else USUAL_COLUMNS[kind]
    found = next((name for name in usual if name in rows.columns), None)
    if found is None:
        raise DataError(
            f"{rows.description} has no {kind} column named {' or '.join(usual)}; it has {', '.join(rows.columns)}: "
            f"name one with --{kind}-column"
        )
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Labels:
    """The classes of a column, as numbers."""

    column: str
    names: tuple[str, ...]
    """Of the classes, in the order of their numbers."""
    are_numbers: bool

    def number(self, value: Any) -> int:
        """Return the class of one record.

        Raises:
            DataError: it is none of the classes.
        """
        if self.are_numbers and isinstance(value, int | np.integer) and 0 <= value < len(self.names):
            return int(value)
        if not self.are_numbers and value in self.names:
            return self.names.index(value)
        raise DataError(f"{self.column}={value!r} is none of the {len(self.names)} classes; correct the record")


def read_labels(rows: Rows, column: str, *, num_labels: int) -> Labels:
    """Return the classes of ``column``: numbers from 0 on as they are, texts in alphabetical order.

    Raises:
        DataError: labels are missing or of mixed kinds, or there are more classes than the model tells apart.
    """
    found = rows.values(column)
    where = f"{column} of {rows.description}"
    if empty := [index for index, value in enumerate(found) if value is None or value == ""]:
        raise DataError(
            f"{where} is empty in {len(empty)} of {len(found)} records, first in record {empty[0] + 1}; "
            f"fill it, or leave those records out"
        )
    values = set(found)
    are_numbers = _all_of_one_kind(values, where=where) is int
    if are_numbers and min(values) < 0:
        raise DataError(f"{where} holds {min(values)}; classes are counted from 0")
    named = rows.class_names(column)
    names = named or ([str(number) for number in range(max(values) + 1)] if are_numbers else sorted(map(str, values)))
    if len(names) > num_labels:
        raise DataError(
            f"{column} of {rows.description} has {len(names)} classes, but the model tells num_labels={num_labels} "
            f"apart; set num_labels={len(names)} in its config.json and plan again"
        )
    return Labels(column=column, names=tuple(names), are_numbers=are_numbers)


def _all_of_one_kind(values: set[Any], *, where: str) -> type:
    """Return ``int`` or ``str``, which all labels are.

    Raises:
        DataError: some are not; shows one of each kind.
    """
    examples: dict[type, Any] = {}
    for value in sorted(values, key=repr):
        examples.setdefault(type(value), value)
    if len(examples) == 1 and (kind := next(iter(examples))) in (int, str):
        return kind
    shown = " and ".join(f"{value!r} ({_KINDS.get(kind, kind.__name__)})" for kind, value in examples.items())
    mixed = f"mixes kinds of labels: {shown}" if len(examples) > 1 else f"holds {shown}"
    raise DataError(f"{where} {mixed}; make all of them whole numbers from 0 on, or all of them texts")


class TextEncoder:
    """Texts to padded token ids and attention masks, as the tokenizer puts special tokens around them."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, *, seq_len: int, ends_with: int | None = None) -> None:
        """``ends_with``: a token that the model looks for at the end, added where the tokenizer does not add it."""
        self._tokenizer = tokenizer
        self._seq_len = seq_len
        self._ends_with = ends_with
        self._may_warn = True
        padding = tokenizer.pad_token_id
        self._padding_id = padding if isinstance(padding, int) else 0

    def __call__(self, texts: Sequence[str]) -> dict[str, torch.Tensor]:
        """Return token ids and masks, (batch, longest); longer texts than ``seq_len`` are cut."""
        found = self._tokenizer(list(texts), truncation=False, return_attention_mask=False, verbose=False)["input_ids"]
        ids, mask = pad([torch.tensor(self._fitting(row)) for row in found], padding_id=self._padding_id)
        return {"input_ids": ids, "attention_mask": mask}

    def _fitting(self, ids: list[int]) -> list[int]:
        end = [] if self._ends_with is None or ids[-1:] == [self._ends_with] else [self._ends_with]
        if len(ids) + len(end) <= self._seq_len:
            return [*ids, *end] or [self._padding_id]
        if self._may_warn:
            logger.warning("a text of %d tokens is cut to seq_len=%d; others may be too", len(ids), self._seq_len)
            self._may_warn = False
        # The last token stays: it is special where the tokenizer adds one.
        last = end or ids[-1:]
        return [*ids[: self._seq_len - 1], *last]


class ImageReader:
    """Pictures to numbers: resized to the model's size, scaled to -1 … 1 or as the model's own settings say."""

    def __init__(self, *, size: int, num_channels: int, mean: Sequence[float], std: Sequence[float]) -> None:
        self._size = size
        self._mode = {1: "L", 3: "RGB", 4: "RGBA"}.get(num_channels)
        if self._mode is None:
            raise DataError(f"num_channels={num_channels} of the model is not 1, 3 or 4: no picture has so many")
        self._mean, self._std = (torch.tensor(values).reshape(-1, 1, 1) for values in (mean, std))

    def __call__(self, pictures: Sequence[Any]) -> torch.Tensor:
        """Return (batch, channels, size, size)."""
        return torch.stack([self._pixels(picture) for picture in pictures])

    def _pixels(self, picture: Any) -> torch.Tensor:
        from PIL import Image

        if not isinstance(picture, Image.Image):
            picture = Image.fromarray(np.asarray(picture, dtype=np.uint8))
        resized = picture.convert(self._mode).resize((self._size, self._size), Image.Resampling.BILINEAR)
        values = torch.from_numpy(np.array(resized)).float().div_(255)
        values = values.unsqueeze(0) if values.dim() == 2 else values.permute(2, 0, 1)
        return (values - self._mean) / self._std


@final
class ClassifiedTexts:
    """Texts with a class each."""

    def __init__(self, rows: Rows, encode: TextEncoder, *, text_column: str, labels: Labels) -> None:
        self._rows, self._encode, self._text_column, self._labels = rows, encode, text_column, labels

    def __len__(self) -> int:
        return len(self._rows)

    def batch(self, draw: Draw) -> Batch:
        rows = _rows_of(self._rows, draw.ids)
        inputs = self._encode(_texts(rows, self._text_column))
        return Batch(inputs=inputs, labels=_numbers(rows, self._labels), num_loss_units=len(rows))


@final
class ClassifiedImages:
    """Pictures with a class each."""

    def __init__(self, rows: Rows, read: ImageReader, *, image_column: str, labels: Labels) -> None:
        self._rows, self._read, self._image_column, self._labels = rows, read, image_column, labels

    def __len__(self) -> int:
        return len(self._rows)

    def batch(self, draw: Draw) -> Batch:
        rows = _rows_of(self._rows, draw.ids)
        pixels = self._read(_pictures(rows, self._image_column))
        return Batch(inputs={"pixel_values": pixels}, labels=_numbers(rows, self._labels), num_loss_units=len(rows))


@final
class CaptionedImages:
    """Pictures with a text each."""

    def __init__(
        self, rows: Rows, encode: TextEncoder, read: ImageReader, *, text_column: str, image_column: str
    ) -> None:
        self._rows, self._encode, self._read = rows, encode, read
        self._text_column, self._image_column = text_column, image_column

    def __len__(self) -> int:
        return len(self._rows)

    def batch(self, draw: Draw) -> Batch:
        rows = _rows_of(self._rows, draw.ids)
        inputs = self._encode(_texts(rows, self._text_column))
        inputs["pixel_values"] = self._read(_pictures(rows, self._image_column))
        return Batch(inputs=inputs, labels=torch.zeros(len(rows), dtype=torch.long), num_loss_units=len(rows))


def _rows_of(rows: Rows, ids: NDArray[np.int64]) -> list[Any]:
    return [rows.row(index) for index in ids.tolist()]


def _texts(rows: Sequence[Any], column: str) -> list[str]:
    """Return the text of each row; a missing one (null) is empty, and a number is its digits."""
    return ["" if row[column] is None else str(row[column]) for row in rows]


def _pictures(rows: Sequence[Any], column: str) -> list[Any]:
    if any(row[column] is None for row in rows):
        raise DataError(f"{column} is empty in a record; fill it, or leave such records out")
    return [row[column] for row in rows]


def _numbers(rows: Sequence[Any], labels: Labels) -> torch.Tensor:
    return torch.tensor([labels.number(row[labels.column]) for row in rows])
