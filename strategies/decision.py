"""`Decision`: the chosen plan, what it was chosen against, and why each other kind of plan was not."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from strategies.cluster import Cluster
from strategies.estimate import Estimate, PhaseBytes
from strategies.job import Job, LossImplementation
from strategies.plan import Plan
from strategies.time.step_time import StepTime

if TYPE_CHECKING:
    from strategies.emit.loop_settings import LoopSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A plan with its estimate."""

    plan: Plan
    estimate: Estimate


class Resource(StrEnum):
    """What a plan can have too little of."""

    GPU_MEMORY = "GPU memory"
    HOST_MEMORY = "host memory"
    """Of one node."""
    LOCKED_MEMORY = "locked memory"
    """Of one rank: what ``ulimit -l`` lets it lock for NVMe."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejection:
    """The plan of its kind (strategy and offload) that comes closest to fitting, with the number that rejected it."""

    plan: Plan
    loss: LossImplementation
    resource: Resource = Resource.GPU_MEMORY
    needed_bytes: int
    """Of the resource, at the decision's safety."""
    over_by_bytes: int
    peak: PhaseBytes
    """The highest moment on a GPU."""
    is_lower_bound: bool = False
    """Whether only the weights and what blocks keep were counted, because those alone are too much."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankedPlan:
    """A plan that fits."""

    plan: Plan
    loss: LossImplementation
    device_bytes: int
    """The smallest device that runs it: the point estimate."""
    needed_bytes: int
    """Likewise at the decision's safety."""
    host_bytes: int | None
    """Of one node, at the highest moment."""
    peak: PhaseBytes
    time: StepTime | None
    """None where the rates of the device are not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Suggestion:
    """One or two changes to what was asked, with what is chosen after them."""

    changes: tuple[str, ...]
    """In words, with flags: ``--seq-len 4096``."""
    cluster: Cluster
    job: Job
    plan: Plan
    safety: float
    device_bytes: int
    needed_bytes: int
    time: StepTime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The contract between planning and training: ``train`` runs exactly ``plan`` or refuses."""

    model: str
    """What the user named: preset, folder, file or hub id."""
    num_params: int
    cluster: Cluster
    job: Job
    """What was asked, with the loss that was chosen where it was left open."""
    plan: Plan
    estimate: Estimate
    rejected: tuple[Rejection, ...] = ()
    """One for every kind of plan (strategy and offload) that does not fit, simplest first."""
    safety: float = 0.0
    """Coverage of the interval whose upper end had to fit; 0: the point estimate."""
    time: StepTime | None = None
    """Seconds of a step by cause; None where the rates of the device are not known."""
    by_strategy: tuple[RankedPlan, ...] = ()
    """The best plan of every strategy that has one, in the order of `strategies.registry`."""
    alternatives: tuple[RankedPlan, ...] = ()
    """The best micro batch of every other variant, in order of preference: the first few."""
    front: tuple[RankedPlan, ...] = ()
    """In order of preference, each plan that needs less memory than every one before it; the chosen one is the first.
    Times within a step of `strategies.planner.ranking.TIE` count as equal."""
    warnings: tuple[str, ...] = ()
    """What should be known before the plan is launched, beside the estimate's own."""
    suggestions: tuple[Suggestion, ...] = ()
    """Asked for with what-if: changes that would make the plan faster."""

    def deepspeed_config(self) -> dict[str, Any]:
        """Return the configuration for `deepspeed.initialize`; see `strategies.emit.deepspeed.whole_config`."""
        from strategies.emit.deepspeed import whole_config

        return whole_config(self)

    def accelerator_kwargs(self) -> dict[str, Any]:
        """Return the arguments of `accelerate.Accelerator`; see `strategies.emit.accelerator.accelerator_kwargs`."""
        from strategies.emit.accelerator import accelerator_kwargs

        return accelerator_kwargs(self)

    def training_arguments(self) -> dict[str, Any]:
        """Return arguments of `transformers.TrainingArguments`; see `strategies.emit.training_arguments`."""
        from strategies.emit.training_arguments import training_arguments

        return training_arguments(self)

    def loop_settings(self) -> LoopSettings:
        """Return what the plan asks of a loop of one's own beside `accelerator_kwargs`."""
        from strategies.emit.loop_settings import loop_settings

        return loop_settings(self)
