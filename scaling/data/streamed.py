"""Rows of tokens cut from a text source as it is read: nothing is tokenised before training and nothing is kept."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import final

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerBase

from scaling.data.stream import Stream
from scaling.data.text_source import TextSource
from scaling.data.tokenizer import make_encoder, separator_id

Row = NDArray[np.int64]


@final
class StreamedRows:
    """Rows of one length by their position in the run, which must rise from batch to batch."""

    def __init__(self, stream: Stream[Row], *, num_rows: int = 0) -> None:
        """``num_rows``: where that is known; a stream to train on begins again where it ends."""
        self._stream = stream
        self._num_rows = num_rows

    def __len__(self) -> int:
        return self._num_rows

    def batch(self, ids: NDArray[np.int64]) -> torch.Tensor:
        """Return the rows at these positions as int64, shape (batch, seq)."""
        return torch.from_numpy(np.stack([self._stream.at(position) for position in ids.tolist()]))


def open_streams(
    source: TextSource, tokenizer: PreTrainedTokenizerBase, *, seq_len: int, seed: int, num_held_out: int
) -> tuple[StreamedRows, StreamedRows | None]:
    """Return the rows to train on, shuffled, and the first ``num_held_out`` of the source, which are not trained on."""
    rows = partial(_rows, source, tokenizer, seq_len=seq_len)
    train = StreamedRows(Stream(rows, seed=seed, skips=num_held_out))
    if not num_held_out:
        return train, None
    return train, StreamedRows(Stream(rows, seed=None, takes=num_held_out), num_rows=num_held_out)


def _rows(source: TextSource, tokenizer: PreTrainedTokenizerBase, *, seq_len: int) -> Iterator[Row]:
    """Yield the source's tokens in runs of ``seq_len``, a separator after each document; a shorter rest is left out."""
    encode = make_encoder(tokenizer, np.dtype("<u4"))
    separator = np.array([separator_id(tokenizer)], dtype=np.int64)
    pending = np.empty(0, dtype=np.int64)
    for piece in source.pieces():
        (ids,) = encode([piece.text])
        parts = [pending, ids.astype(np.int64), *([separator] if piece.ends_document else [])]
        pending = np.concatenate(parts)
        num_rows = len(pending) // seq_len
        yield from pending[: num_rows * seq_len].reshape(num_rows, seq_len)
        pending = pending[num_rows * seq_len :]
