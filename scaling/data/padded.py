"""`PaddedDocuments`: every document its own sample, padded to the longest of its batch."""

from __future__ import annotations

from typing import final

import numpy as np
import torch
from numpy.typing import NDArray

from scaling.batch import Batch, causal_batch
from scaling.data.errors import DataError
from scaling.data.order import Draw
from scaling.data.packed import Split, evaluation_start
from scaling.data.store_format import TokenStore
from scaling.losses import IGNORED_LABEL


@final
class PaddedDocuments:
    """Documents of the token store, cut where they are longer than ``seq_len``; none sees another's tokens.

    A document ends with its separator, which is predicted too. A single token is no sample: it predicts nothing.
    """

    def __init__(self, store: TokenStore, *, seq_len: int, split: Split, eval_fraction: float, padding_id: int) -> None:
        """Raises:
        DataError: the split holds no document of two tokens.
        """
        boundary = evaluation_start(store, eval_fraction)
        first, last = (0, boundary) if split == "train" else (boundary, store.num_tokens)
        ends = np.append(store.document_ends, store.num_tokens).astype(np.int64)
        ends = np.unique(np.clip(ends, first, last))
        starts = np.concatenate([[first], ends[:-1]])
        self._starts, self._lengths = _pieces(starts, ends - starts, seq_len=seq_len)
        if not len(self._starts):
            raise DataError(
                f"the {split} data hold no document of two tokens or more; add data"
                f"{f', or change eval_fraction={eval_fraction}' if eval_fraction else ''}"
            )
        self._tokens = store.tokens
        self._padding_id = padding_id

    def __len__(self) -> int:
        return len(self._starts)

    def batch(self, draw: Draw) -> Batch:
        """Return the documents with attention masks; padding is not predicted."""
        starts, lengths = self._starts[draw.ids], self._lengths[draw.ids]
        spans = zip(starts.tolist(), lengths.tolist(), strict=True)
        rows = [torch.from_numpy(self._tokens[start : start + length].astype(np.int64)) for start, length in spans]
        ids, mask = pad(rows, padding_id=self._padding_id)
        return causal_batch(ids, labels=ids.masked_fill(mask == 0, IGNORED_LABEL), attention_mask=mask)


def pad(rows: list[torch.Tensor], *, padding_id: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return token ids (batch, longest), padded at the end, and the mask that is 1 where there are tokens."""
    ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=padding_id)
    lengths = torch.tensor([len(row) for row in rows]).unsqueeze(1)
    return ids, (torch.arange(ids.shape[1]) < lengths).long()


def _pieces(
    starts: NDArray[np.int64],
    lengths: NDArray[np.int64],
    *,
    seq_len: int,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return start and length of every run of at most ``seq_len`` tokens of the documents, single tokens left out."""
    counts = -(-lengths // seq_len)
    offsets = (np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)) * seq_len
    found = np.minimum(np.repeat(lengths, counts) - offsets, seq_len)
    is_sample = found > 1
    return (np.repeat(starts, counts) + offsets)[is_sample], found[is_sample]
