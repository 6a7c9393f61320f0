"""`Estimate`: predicted bytes by phase and cause. Measurements use the same nouns, so that the two compare."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from enum import StrEnum
from operator import attrgetter

from strategies.host_ledger import HostLedger
from strategies.learning.run_kind import RunKind


class Phase(StrEnum):
    """Part of a training run. Memory is a maximum over these of a sum over causes."""

    INITIALISE = "initialise"
    FORWARD = "forward"
    BACKWARD = "backward"
    OPTIMIZER_STEP = "optimizer_step"
    EVALUATION = "evaluation"
    SAVE = "save"


class Level(StrEnum):
    """How an estimate was obtained."""

    INSTANT = "instant"
    """Closed forms from the config."""
    TRACED = "traced"
    """The real module on meta tensors."""
    MEASURED = "measured"
    """The real engine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CauseBytes:
    """Bytes on one GPU at one moment, by what holds them. One field per cause; the total is derived."""

    parameters: int = 0
    """The share of the weights that this rank keeps, in the format of the forward pass."""
    gathered_parameters: int = 0
    """Weights of other ranks, here for the moment (stage 3, FSDP)."""
    gradients: int = 0
    gradient_accumulation: int = 0
    """fp32 (or second) copies of gradients kept over micro batches."""
    master_weights: int = 0
    optimizer_states: int = 0
    activations: int = 0
    """Kept by forward for backward, and working tensors of forward and backward."""
    recomputed_block: int = 0
    """Activations of the one block that backward has computed again."""
    logits: int = 0
    """Logits, their fp32 copies and gradients."""
    communication_buckets: int = 0
    step_temporaries: int = 0
    """Working tensors of clipping and of the optimizer step."""
    framework_context: int = 0
    """Device context and library workspaces, outside the allocator."""
    allocator_slack: int = 0
    """Reserved by the caching allocator, not allocated."""
    other: int = 0

    @property
    def total_bytes(self) -> int:
        return sum(_values(self))

    def __add__(self, more: CauseBytes) -> CauseBytes:
        return CauseBytes(**{name: a + b for name, a, b in zip(CAUSE_NAMES, _values(self), _values(more), strict=True)})

    def by_cause(self) -> dict[str, int]:
        """Return the bytes of every cause, also of those that hold none."""
        return dict(zip(CAUSE_NAMES, _values(self), strict=True))

    def items(self) -> list[tuple[str, int]]:
        """Return (cause, bytes) for every cause that holds any, in declaration order."""
        return [(name, value) for name, value in zip(CAUSE_NAMES, _values(self), strict=True) if value]


CAUSE_NAMES = tuple(field.name for field in fields(CauseBytes))
# A search adds up tens of thousands of these: looking the fields up each time would be half of its time.
_values: Callable[[CauseBytes], tuple[int, ...]] = attrgetter(*CAUSE_NAMES)


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseBytes:
    """The highest moment of one phase."""

    phase: Phase
    causes: CauseBytes

    @property
    def total_bytes(self) -> int:
        return self.causes.total_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryProfile:
    """Highest moment of every phase of a run on one rank."""

    phases: tuple[PhaseBytes, ...]

    @property
    def peak(self) -> PhaseBytes:
        """The phase with the most bytes; the earliest among equals."""
        return max(self.phases, key=lambda phase: phase.total_bytes)

    @property
    def peak_bytes(self) -> int:
        return self.peak.total_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """Ends of a 90 % interval: a measured peak, allocated or reserved, lies between them nine times in ten."""

    low_bytes: int
    high_bytes: int
    source: str = "recorded errors"
    """Which earlier runs the ends come from, in words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """What one plan is predicted to need."""

    level: Level
    memory: MemoryProfile
    """Live tensors (``peak_allocated_bytes``) by phase and cause, for the rank that holds most."""
    peak_reserved_bytes: int
    """What the caching allocator is predicted to hold."""
    unusable_bytes: int = 0
    """Lost to fragmentation on a device that is as small as it can be."""
    context_bytes: int = 0
    """Beside the allocator: device context, kernels, communication library."""
    interval: Interval | None = None
    runs_like: RunKind | None = None
    """Which earlier runs tell how sure it is; None of an estimate that is not a plan's."""
    host: HostLedger | None = None
    """Of the node that holds most."""
    warnings: tuple[str, ...] = ()
    """What the user should know before trusting the numbers."""

    @property
    def peak_allocated_bytes(self) -> int:
        return self.memory.peak_bytes

    @property
    def device_bytes(self) -> int:
        """The smallest device that runs the plan. The allocator reserves more where there is more."""
        return self.peak_allocated_bytes + self.unusable_bytes + self.context_bytes


NO_ESTIMATE = Estimate(level=Level.INSTANT, memory=MemoryProfile(phases=()), peak_reserved_bytes=0)
"""Of a plan that is to be run or traced, not predicted."""
