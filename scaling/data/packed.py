"""`PackedDataset`: samples of one length cut from the token store, documents running on across their borders."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

import numpy as np

from scaling.data.errors import DataError
from scaling.data.store_format import TokenStore

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

Split = Literal["train", "eval"]


class PackedDataset:
    """Sample ``i`` is the ``i``-th run of ``seq_len`` tokens of its split; a shorter rest at the end is not used.

    Evaluation takes the last documents: see ``evaluation_start``. Give both splits the same ``eval_fraction`` and they
    share no token. Hugging Face models shift the labels themselves, so a sample has ``seq_len - 1`` targets.
    """

    def __init__(self, store: TokenStore, *, seq_len: int, split: Split, eval_fraction: float) -> None:
        """Raises:
        DataError: a value out of range, or a split that is shorter than one sample.
        """
        if seq_len < 1:
            raise DataError(f"seq_len={seq_len} must be above zero; give the tokens of one sample")
        boundary = evaluation_start(store, eval_fraction)
        start, end = (0, boundary) if split == "train" else (boundary, store.num_tokens)
        if end - start < seq_len:
            raise DataError(_too_short(store, split, end - start, seq_len=seq_len, eval_fraction=eval_fraction))
        self.seq_len = seq_len
        self._tokens = store.tokens[start:end]
        self._num_samples = (end - start) // seq_len

    def __len__(self) -> int:
        return self._num_samples

    def __getitem__(self, index: int) -> NDArray[np.int64]:
        """Return the tokens of one sample, shape (seq,)."""
        if not 0 <= index < self._num_samples:
            raise IndexError(f"sample {index} is not in 0..{self._num_samples - 1}")
        return self._tokens[index * self.seq_len : (index + 1) * self.seq_len].astype(np.int64)

    def batch(self, ids: NDArray[np.int64]) -> torch.Tensor:
        """Return the samples ``ids`` as int64, shape (batch, seq)."""
        import torch

        tokens = np.empty((len(ids), self.seq_len), dtype=np.int64)
        for row, index in enumerate(ids.tolist()):
            tokens[row] = self[index]
        return torch.from_numpy(tokens)


def evaluation_start(store: TokenStore, eval_fraction: float) -> int:
    """Return the position of the first token held out for evaluation; ``num_tokens`` if ``eval_fraction`` is 0.

    It is the start of the document that brings the held-out share of tokens closest to ``eval_fraction``. Where no
    document starts near enough to keep the share within half and one and a half times of that (one file holds
    everything, say), it is the exact token, inside a document.
    """
    if not 0 <= eval_fraction < 1:
        raise DataError(f"eval_fraction={eval_fraction} must be at least 0 and below 1; give the share to hold out")
    if eval_fraction == 0:
        return store.num_tokens
    exact = store.num_tokens - round(store.num_tokens * eval_fraction)
    following = int(np.searchsorted(store.document_ends, exact))
    starts = [int(end) for end in store.document_ends[max(following - 1, 0) : following + 1]]
    nearest = min(starts, key=lambda start: abs(start - exact))
    is_near = 2 * abs(nearest - exact) <= store.num_tokens * eval_fraction
    return nearest if is_near else exact


def _too_short(store: TokenStore, split: Split, num_tokens: int, *, seq_len: int, eval_fraction: float) -> str:
    if split == "eval":
        enough = _enough(store, seq_len=seq_len)
        return (
            f"eval_fraction={eval_fraction} holds out {num_tokens} of {store.num_tokens} tokens, fewer than "
            f"seq_len={seq_len}; {f'raise it to {enough:g}, ' if enough else ''}shorten seq_len, add data, or do not "
            f"evaluate"
        )
    too_long = f"seq_len={seq_len} is longer than the training data of {num_tokens} tokens"
    if eval_fraction == 0:
        return f"{too_long}; shorten it or add data"
    return f"{too_long}; shorten it, add data, or lower eval_fraction={eval_fraction}"


def _enough(store: TokenStore, *, seq_len: int) -> float | None:
    """Return a share, in thousandths, that holds out a sample and leaves one to train on; None where there is none."""
    least = math.ceil(1000 * seq_len / store.num_tokens)
    for share in (thousandths / 1000 for thousandths in range(least, min(2 * least + 1, 1000))):
        boundary = evaluation_start(store, share)
        if boundary >= seq_len and store.num_tokens - boundary >= seq_len:
            return share
    return None
