"""Results of benches made by hand: the planner's cells, with the times and bytes that a test gives them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from scaling.bench.axes import Axes
from scaling.bench.cells import Running
from scaling.bench.matrix import Planned, planned_cells
from scaling.bench.result import VERSION, Bench, CellResult, Environment, Outcome, Run
from scaling.levels import Question
from strategies.emit.commands import LauncherName
from strategies.job import Job, Precision
from strategies.load_model import load_model_spec
from strategies.plan import ActivationCheckpointing, OffloadDevice, StrategyName
from tests.scaling.decisions import cpu_cluster

ENVIRONMENT = Environment(
    versions={"torch": "2.13.0"}, device="a processor", num_cores=2, omp_num_threads="1", system="Linux"
)
RUNNING = Running(settings=(), warm_up_steps=4, timed_steps=3, environment=ENVIRONMENT)
DDP = (StrategyName.DDP,)


def axes(
    *,
    strategies: Sequence[StrategyName] = DDP,
    micro_batch_sizes: Sequence[int] = (1,),
    checkpointing: Sequence[ActivationCheckpointing] = (ActivationCheckpointing.NONE,),
    offload_optimizer: Sequence[OffloadDevice] = (OffloadDevice.NONE,),
) -> Axes:
    return Axes(
        strategies=tuple(strategies),
        activation_checkpointing=tuple(checkpointing),
        micro_batch_sizes=tuple(micro_batch_sizes),
        seq_lens=(64,),
        gradient_accumulation_steps=(1,),
        offload_optimizer=tuple(offload_optimizer),
        offload_param=(OffloadDevice.NONE,),
        launchers=(LauncherName.TORCHRUN,),
    )


def question(*, model: str = "llama-demo") -> Question:
    return Question(
        model=model,
        spec=load_model_spec(model),
        cluster=cpu_cluster(2),
        job=Job(seq_len=2, global_batch_size=2, precision=Precision.FP32),
    )


def planned(of: Axes | None = None, *, running: Running = RUNNING) -> list[Planned]:
    return list(planned_cells(of or axes(), question(), running))


def done(step_s: float = 1.0, *, peak_bytes: int = 100_000_000, cpu_s: float | None = None) -> Run:
    """A run of three steps, of which the middle one takes ``step_s``."""
    return Run(
        outcome=Outcome.DONE,
        started_at="2026-01-01T00:00:00+00:00",
        wall_s=20.0,
        step_times_s=(0.9 * step_s, step_s, 1.3 * step_s),
        cpu_s_per_step=cpu_s,
        peak_allocated_bytes=peak_bytes,
    )


def ended(outcome: Outcome, reason: str) -> Run:
    return Run(outcome=outcome, reason=reason, started_at="2026-01-01T00:00:00+00:00")


def result(cell: Planned, *runs: Run, environment: Environment = ENVIRONMENT) -> CellResult:
    return CellResult(
        version=VERSION, cell=cell.cell, environment=environment, predicted_at="2026-01-01T00:00:00+00:00", runs=runs
    )


def bench(*runs: Run, environment: Environment = ENVIRONMENT) -> Bench:
    """One cell with these runs."""
    return Bench(version=VERSION, cells=(result(planned()[0], *runs, environment=environment),))


def as_predicted(cell: Planned, *, step_s: float) -> Run:
    """A run whose memory is exactly what was predicted, by phase and cause."""
    predicted = cell.cell.prediction
    assert predicted is not None
    return replace(done(step_s, peak_bytes=predicted.peak_allocated_bytes, cpu_s=step_s), measured=predicted.memory)
