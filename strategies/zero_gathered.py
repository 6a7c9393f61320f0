"""What ZeRO stage 3 has gathered at the moments of a forward and a backward."""

from __future__ import annotations

from dataclasses import dataclass

STRETCHES = (
    "forward_start",
    "forward",
    "evaluation",
    "evaluation_start",
    "backward_start",
    "first_gradient",
    "after_blocks",
)


IN_BLOCKS = "in_blocks"
"""The stretch that is told apart by block."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage3Offload:
    """Which of a rank's partitions rest on the host, and so need copies on the device."""

    optimizer: bool = False
    parameters: bool = False
    norm_elements: int = 0
    """Elements of the weights' format in one double-precision number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """Elements beside the partitions at one moment."""

    gathered: int
    buckets: int = 0
    """Flat buffers of gathers and of reductions."""
    gradients: int = 0

    @property
    def total(self) -> int:
        return self.gathered + self.buckets + self.gradients


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockMoment:
    """A moment while one block's backward runs, the highest beside one gradient."""

    num_done: int
    """Blocks whose backward is over."""
    new_gradient: int
    """Elements of the gradient that has just been made; 0 between two of them."""
    moment: Moment


@dataclass(frozen=True, slots=True, kw_only=True)
class GatheredElements:
    """The highest moments of a forward and a backward; persistent weights are not among them."""

    persistent: int
    forward_start: Moment
    """Until the last block has run."""
    forward: Moment
    """While the head runs."""
    after_forward: Moment
    """What an evaluation leaves gathered for a backward that never comes."""
    backward_start: Moment
    first_gradient: Moment
    evaluation: Moment
    evaluation_start: Moment
    """The same without gradients, for which nothing is kept."""
    in_blocks: tuple[BlockMoment, ...]
    after_blocks: Moment
