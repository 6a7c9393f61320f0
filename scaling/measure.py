"""What a plan really holds: real ranks here, rank 0 of simulated ones, or a trace of it without data."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path

from scaling.check_plan import require_trainable
from scaling.meter import Measurement, Meter, highest
from scaling.simulate import simulate
from strategies.decision import Decision
from strategies.estimate import MemoryProfile
from strategies.explain import describe_plan
from strategies.load_model import resolve_model


class Method(StrEnum):
    """How bytes were found."""

    REAL = "real ranks"
    """One process a rank on this machine."""
    SIMULATED = "simulated rank 0"
    """The real engine on real tensors in one process, over collectives that talk to nobody."""
    TRACED = "traced rank 0"
    """The real engine on tensors without data, with the kernels of the plan's device: any size, no weights."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredPlan:
    """Measured bytes of a plan, and the prediction they belong beside."""

    decision: Decision
    method: Method
    num_steps: int
    measured: MemoryProfile
    """Of the rank with the highest peak."""
    rank: int
    peak_reserved_bytes: int | None = None
    """Held by the caching allocator, replayed; without the device's context. None on a CPU."""

    @property
    def measured_over_predicted(self) -> float:
        return self.measured.peak_bytes / self.decision.estimate.peak_allocated_bytes


def measure_plan(decision: Decision, *, num_steps: int, method: Method, picture: Path | None = None) -> MeasuredPlan:
    """Run ``num_steps`` optimizer steps, one evaluation and one gathering save of the plan with random tokens.

    ``picture``: where rank 0 draws its memory over time.
    Real ranks are processes over gloo on this machine's CPU; the memory of a CUDA run differs in kernels only.

    Raises:
        ScalingError: the model cannot be built here.
    """
    from scaling.measured_ranks import measure_ranks

    require_trainable(decision)
    program = partial(run_steps, decision, num_steps, picture)
    vocab_size = _vocab_size(decision)
    world_size = decision.cluster.gpus
    measurements: tuple[Measurement, ...] = (
        (simulate(program, world_size=world_size, vocab_size=vocab_size),)
        if method is Method.SIMULATED
        else measure_ranks(program, world_size=world_size, vocab_size=vocab_size)
    )
    top = highest(measurements)
    return MeasuredPlan(decision=decision, method=method, num_steps=num_steps, measured=top.device(), rank=top.rank)


def trace_plan(decision: Decision, *, num_steps: int, picture: Path | None = None) -> MeasuredPlan:
    """Return what rank 0 of the plan holds, from a trace of the trainer on tensors without data, whatever its size.

    ``picture``: where its memory over time is drawn. The last rank's partition may hold other tensors than the first's.

    Raises:
        ScalingError: the plan cannot be trained, or the model cannot be traced.
    """
    from scaling.plots import plot_timeline
    from scaling.trace import profile, replay
    from scaling.trace.timeline import trace_timeline
    from scaling.trace.training import trace_training

    require_trainable(decision)
    log = trace_training(decision, num_steps=num_steps)
    if picture:
        plot_timeline(trace_timeline(log), title=_title(decision), path=picture)
    on_cpu = decision.cluster.gpu.is_cpu
    return MeasuredPlan(
        decision=decision,
        method=Method.TRACED,
        num_steps=num_steps,
        measured=profile(log),
        rank=0,
        peak_reserved_bytes=None if on_cpu else replay(log, expandable_segments=True).peak_reserved_bytes,
    )


def run_steps(decision: Decision, num_steps: int, picture: Path | None, meter: Meter) -> object:
    """Build the plan's engine in this rank, train ``num_steps``, evaluate and gather once; return what must live on."""
    import torch

    from scaling.meter import StorageMeter
    from scaling.models import InitialWeights, build_config, build_model
    from scaling.plots import plot_timeline
    from scaling.rehearsal import example, rehearse

    config = build_config(resolve_model(decision.model))
    model = build_model(config, InitialWeights(folder=None), decision=decision, seed=0)
    engine = rehearse(
        model,
        partial(example, config, decision),
        decision=decision,
        num_steps=num_steps,
        device=torch.device("cpu"),
        meter=meter,
    )
    if picture and engine.rank == 0 and isinstance(meter, StorageMeter):
        plot_timeline(meter.timeline(), title=_title(decision), path=picture)
    return engine


def _title(decision: Decision) -> str:
    return f"{decision.model}: {describe_plan(decision.plan)}, {decision.cluster.gpus} ranks"


def _vocab_size(decision: Decision) -> int | None:
    from scaling.models import build_config
    from scaling.tasks.example import vocabulary

    return vocabulary(build_config(resolve_model(decision.model)))
