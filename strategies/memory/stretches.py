"""What activations are told in: bytes by part, the stretches of a step, and moments for any number of samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from strategies.job import Attention, LossImplementation
from strategies.plan import ActivationCheckpointing


class Bytes(NamedTuple):
    """What lives at one moment beside the model states."""

    activations: int = 0
    recomputed_block: int = 0
    logits: int = 0
    gradients: int = 0
    """Gradients of weights that one operator has just made and that are still to be added to those kept."""

    @property
    def total(self) -> int:
        return self.activations + self.recomputed_block + self.logits

    def plus(self, other: Bytes, *, times: int = 1) -> Bytes:
        """Return the sum with ``times`` the other."""
        return Bytes(
            self.activations + times * other.activations,
            self.recomputed_block + times * other.recomputed_block,
            self.logits + times * other.logits,
            self.gradients + times * other.gradients,
        )


NO_BYTES = Bytes()


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Everything but the model and the number of samples that activations depend on."""

    seq_len: int
    number_format: str
    """``16bit``, ``autocast`` (16-bit computation on fp32 weights), ``autocast-stage3`` or ``fp32``."""
    attention: Attention
    activation_checkpointing: ActivationCheckpointing
    checkpoint_every: int = 1
    loss: LossImplementation
    on_cpu: bool = False
    """Whether torch's CPU kernels run."""


class Stretch(StrEnum):
    """Part of a step in which the model states stay about the same."""

    FIRST_BLOCK_IN_FORWARD = "first_block_in_forward"
    BESIDE_BLOCKS_IN_FORWARD = "beside_blocks_in_forward"
    """What lives in forward outside of any block."""
    BESIDE_LAST_BLOCK_IN_FORWARD = "beside_last_block_in_forward"
    """Likewise, with what all blocks but the last one keep."""
    FORWARD = "forward"
    """Its end, with everything kept."""
    BEFORE_FIRST_GRADIENT = "before_first_gradient"
    """The start of backward, in loss and head."""
    AFTER_FIRST_GRADIENT = "after_first_gradient"
    """The rest of the head."""
    AFTER_HEAD = "after_head"
    LAST_BLOCK = "last_block"
    """Its backward: all other blocks are kept."""
    FIRST_BLOCK = "first_block"
    """Its backward: no other block's activations are left."""
    EMBEDDING = "embedding"
    """The very end of backward."""
    BLOCK_IN_EVALUATION = "block_in_evaluation"
    BESIDE_BLOCKS_IN_EVALUATION = "beside_blocks_in_evaluation"
    EVALUATION = "evaluation"
    KEPT = "kept"
    """What all blocks keep, from forward to backward."""


Moments = Mapping[Stretch, tuple[Bytes, ...]]


class Affine(NamedTuple):
    """One moment for any number of samples."""

    total: int
    """Bytes with one sample."""
    total_per_sample: int
    gradients: int
    gradients_per_sample: int
    parts: Bytes
    parts_per_sample: Bytes


Levels = Mapping[Stretch, tuple[Affine, ...]]
"""The moments of every stretch that can be its highest."""


def highest(moments: Sequence[Affine], micro_batch_size: int, *, with_gradients: bool = False) -> Bytes:
    """Return the highest of some moments, nothing where there are none."""
    times, best, most = micro_batch_size - 1, None, -1
    for moment in moments:
        bytes_then = moment.total + times * moment.total_per_sample
        if with_gradients:
            bytes_then += moment.gradients + times * moment.gradients_per_sample
        if bytes_then > most:
            most, best = bytes_then, moment
    if best is None:
        return NO_BYTES
    return best.parts.plus(best.parts_per_sample, times=times) if times else best.parts
