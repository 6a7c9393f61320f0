"""Made-up batches of the shapes that a run's largest ones have, for measuring and tracing."""

from __future__ import annotations

from typing import Any, assert_never

import torch

from scaling.batch import Batch, causal_batch
from scaling.losses import IGNORED_LABEL
from strategies.errors import JobError
from strategies.model_spec import TaskKind

MASKED_EVERY = 7
"""Tokens of a made-up masked text of which one is predicted: about the usual 15 %."""


def vocabulary(config: Any) -> int | None:
    """Return the entries of the token embedding; None for a model that reads no text."""
    size = getattr(config.get_text_config(), "vocab_size", None)
    return None if size is None else int(size)


def image_tokens(config: Any) -> int:
    """Return the positions that one image takes in a vision transformer: its patches and the class token."""
    return int(config.image_size // config.patch_size) ** 2 + 1


def example_batch(kind: TaskKind, config: Any, *, micro_batch_size: int, seq_len: int) -> Batch:
    """Return a batch of full length with random contents, the same each time.

    Raises:
        JobError: images of the model's size are not ``seq_len`` long.
    """
    random = torch.Generator().manual_seed(0)
    shape = (micro_batch_size, seq_len)

    def text() -> torch.Tensor:
        return torch.randint(vocabulary(config) or 1, shape, generator=random)

    zeros = torch.zeros(micro_batch_size, dtype=torch.long)
    match kind:
        case TaskKind.CAUSAL_LM:
            return causal_batch(text())
        case TaskKind.MASKED_LM:
            ids = text()
            is_masked = torch.arange(seq_len) % MASKED_EVERY == 0
            labels = ids.masked_fill(~is_masked, IGNORED_LABEL)
            return Batch(inputs={"input_ids": ids}, labels=labels, num_loss_units=int(is_masked.sum()) * len(ids))
        case TaskKind.SEQUENCE_CLASSIFICATION:
            return Batch(inputs=_text_inputs(text()), labels=zeros, num_loss_units=micro_batch_size)
        case TaskKind.IMAGE_CLASSIFICATION:
            require_image_length(config, seq_len=seq_len)
            pixels = _pixels(config, micro_batch_size, random)
            return Batch(inputs={"pixel_values": pixels}, labels=zeros, num_loss_units=micro_batch_size)
        case TaskKind.CONTRASTIVE:
            inputs = {**_text_inputs(text()), "pixel_values": _pixels(config.vision_config, micro_batch_size, random)}
            return Batch(inputs=inputs, labels=zeros, num_loss_units=micro_batch_size)
        case TaskKind.SEQ2SEQ_LM:
            raise JobError("task=seq2seq-lm is not trained here")
    assert_never(kind)


def require_image_length(config: Any, *, seq_len: int) -> None:
    """Refuse a plan for another number of positions than an image has."""
    if (tokens := image_tokens(config)) != seq_len:
        raise JobError(
            f"seq_len={seq_len}, but an image of image_size={config.image_size} in patches of patch_size="
            f"{config.patch_size} takes {tokens} positions; plan with --seq-len {tokens}"
        )


def _text_inputs(ids: torch.Tensor) -> dict[str, torch.Tensor]:
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def _pixels(config: Any, count: int, random: torch.Generator) -> torch.Tensor:
    return torch.rand(count, config.num_channels, config.image_size, config.image_size, generator=random)
