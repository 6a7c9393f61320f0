"""`Samples`: what a run trains on, as batches of any samples by their ids; and the samples of language models."""

from __future__ import annotations

from typing import Protocol, final

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerBase

from scaling.batch import Batch, causal_batch
from scaling.data.errors import DataError
from scaling.data.order import Draw
from scaling.losses import IGNORED_LABEL, count_labels

MASKED_AS_MASK, MASKED_AS_RANDOM = 0.8, 0.1
"""Of the tokens to predict, how many are replaced by the mask, and by any token; the others stay. Devlin et al. 2018,
arXiv:1810.04805, section 3.1."""


class Samples(Protocol):
    """Samples that can be had in any order. The same ids and positions give the same batch in every process."""

    def __len__(self) -> int: ...

    def batch(self, draw: Draw) -> Batch:
        """Return the samples of one micro batch."""
        ...


class TokenRows(Protocol):
    """Token ids of samples, shape (batch, seq)."""

    def __len__(self) -> int: ...

    def batch(self, ids: NDArray[np.int64]) -> torch.Tensor: ...


@final
class CausalSamples:
    """Rows of one length, each token to be predicted from those before it."""

    def __init__(self, rows: TokenRows) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def batch(self, draw: Draw) -> Batch:
        return causal_batch(self._rows.batch(draw.ids))


@final
class MaskedSamples:
    """Rows of one length in which some tokens are hidden; only those are predicted.

    Which ones depends on the seed and the sample's position in the run alone: on no rank, and no cut of the batch. Each
    time a sample comes again, others are hidden.
    """

    def __init__(
        self, rows: TokenRows, tokenizer: PreTrainedTokenizerBase, *, share: float, seed: int, is_training: bool
    ) -> None:
        """Raises:
        DataError: the tokenizer has no token that stands for a hidden one.
        """
        mask = tokenizer.mask_token_id
        if not isinstance(mask, int):
            raise DataError(f"tokenizer {tokenizer.name_or_path!r} has no mask token; choose one that has")
        self._rows = rows
        self._mask_id = mask
        self._vocab_size = len(tokenizer)
        self._special = torch.tensor(sorted(tokenizer.all_special_ids))
        self._share = share
        self._seed = [seed, int(is_training)]

    def __len__(self) -> int:
        return len(self._rows)

    def batch(self, draw: Draw) -> Batch:
        ids = self._rows.batch(draw.ids)
        chances = torch.from_numpy(np.stack([self._chances(each, ids.shape[1]) for each in draw.positions.tolist()]))
        is_hidden = (chances[:, 0] < self._share) & ~torch.isin(ids, self._special)
        labels = ids.masked_fill(~is_hidden, IGNORED_LABEL)
        shown = torch.where(is_hidden & (chances[:, 1] < MASKED_AS_MASK), self._mask_id, ids)
        is_random = is_hidden & (chances[:, 1] >= MASKED_AS_MASK) & (chances[:, 1] < MASKED_AS_MASK + MASKED_AS_RANDOM)
        shown = torch.where(is_random, (chances[:, 2] * self._vocab_size).long(), shown)
        return Batch(inputs={"input_ids": shown}, labels=labels, num_loss_units=count_labels(labels))

    def _chances(self, position: int, seq_len: int) -> NDArray[np.float64]:
        """Return three numbers between 0 and 1 for each token: (3, seq)."""
        return np.random.default_rng([*self._seed, position]).random((3, seq_len))
