"""Which batches a rank sees: the token store cut by sample order, micro batch and rank."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from scaling.batch import Batch, causal_batch, weightless
from scaling.data.order import SampleOrder, evaluation_micro_batches
from scaling.data.packed import PackedDataset
from scaling.data.source import open_source
from scaling.data.token_store import build_token_store
from scaling.data.tokenizer import load_tokenizer
from scaling.data.tokenizer import vocab_size as tokenizer_vocab_size
from scaling.errors import ConfigError
from scaling.train_config import TrainConfig
from strategies.decision import Decision

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingData:
    """Everything about samples that one rank needs, before any process group exists."""

    tokenizer: Any
    train: PackedDataset
    held_out: PackedDataset | None
    order: SampleOrder
    micro_batch_size: int
    num_eval_samples: int
    content_hash: str
    """Of the tokens: the same data and tokenizer, the same text."""

    def micro_batches(self, step: int, *, rank: int, world_size: int) -> list[Batch]:
        """Return this rank's micro batches of optimizer step ``step``, counted from 0."""
        all_ids = self.order.rank_micro_batches(
            step, rank=rank, world_size=world_size, micro_batch_size=self.micro_batch_size
        )
        return [causal_batch(self.train.batch(ids)) for ids in all_ids]

    def evaluation_batches(self, *, rank: int, world_size: int) -> Iterator[Batch]:
        """Yield this rank's held-out batches: over all ranks every sample once, equally many batches on each."""
        assert self.held_out is not None, "evaluation was not configured"
        for ids in evaluation_micro_batches(
            self.num_eval_samples, rank=rank, world_size=world_size, micro_batch_size=self.micro_batch_size
        ):
            yield _held_out_batch(self.held_out, ids)


def open_training_data(
    config: TrainConfig, decision: Decision, *, vocab_size: int, show_progress: bool
) -> TrainingData:
    """Return the data of a run, tokenised now if no earlier run has done it.

    Raises:
        ConfigError: the tokenizer has ids that the model has no embedding for.
        DataError: the data cannot be read or are too few.
    """
    job = decision.job
    tokenizer = load_tokenizer(config.tokenizer)
    if (num_ids := tokenizer_vocab_size(tokenizer)) > vocab_size:
        raise ConfigError(
            f"tokenizer={config.tokenizer} has ids up to {num_ids - 1}, but model {decision.model} has "
            f"vocab_size={vocab_size}; take the model's own tokenizer or a model with a larger vocabulary"
        )
    source = open_source(config.data, text_column=config.text_column, cache_dir=config.cache_dir)
    store = build_token_store(source, tokenizer, cache_dir=config.cache_dir, show_progress=show_progress)
    fraction = config.eval_fraction if config.eval_every else 0.0
    train = PackedDataset(store, seq_len=job.seq_len, split="train", eval_fraction=fraction)
    held_out = PackedDataset(store, seq_len=job.seq_len, split="eval", eval_fraction=fraction) if fraction else None
    wanted = config.eval_batches * job.global_batch_size
    return TrainingData(
        tokenizer=tokenizer,
        train=train,
        held_out=held_out,
        order=SampleOrder(num_samples=len(train), global_batch_size=job.global_batch_size, seed=config.seed),
        micro_batch_size=decision.plan.micro_batch_size,
        num_eval_samples=min(len(held_out), wanted) if held_out else 0,
        content_hash=store.content_hash,
    )


def _held_out_batch(held_out: PackedDataset, ids: NDArray[np.int64]) -> Batch:
    if len(ids):
        return causal_batch(held_out.batch(ids))
    return weightless(causal_batch(held_out.batch(np.zeros(1, dtype=np.int64))))
