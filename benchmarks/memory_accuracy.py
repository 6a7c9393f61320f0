"""Instant predictions beside the real engines on CPU: five models under every strategy.

Method: the trainer itself runs two optimizer steps, an evaluation and the gathering of a save on random tokens, as one
of N simulated ranks (equal to real ranks to the byte: results/simulated_ranks.md), and a few times on real gloo ranks.
Under ZeRO 1 and 2, where the cut of the partitions decides who holds most, the first rank, the last and the one whose
partition touches most are simulated. The storage meter's highest moment of every phase, on the rank with the highest
peak, is compared with the closed forms. The models are small, so that buffers, tables and temporaries that large models
hide carry weight.

Usage: ``python -m benchmarks.memory_accuracy [--again] [MODEL ...]``; ``--again`` takes what was measured from the last
result and predicts anew; writes ``benchmarks/results/memory_accuracy.json``, ``.md``
and ``.png``; exit code 1 if the median error exceeds 1 %, one exceeds 4 %, or one prediction is over 2 % too low.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.environment import environment
from scaling.measure import run_steps
from scaling.measured_ranks import measure_ranks
from scaling.meter import highest
from scaling.simulate import forked_from, simulate
from strategies.cluster import CPU_NAME, Cluster, Gpu
from strategies.decision import Decision
from strategies.estimate import CauseBytes, MemoryProfile, Phase, PhaseBytes
from strategies.job import Job, Precision
from strategies.load_model import load_model_spec
from strategies.memory.predict import predict
from strategies.model_spec import ModelSpec
from strategies.plan import ActivationCheckpointing, Buckets, OffloadDevice, Plan, StrategyName
from strategies.registry import STRATEGIES
from strategies.serialize import from_json
from strategies.units import GIB, MIB
from strategies.zero_partitions import ranks_that_may_hold_most

MODELS = Path(__file__).parent / "models"
RESULTS = Path(__file__).parent / "results"
NUM_STEPS = 2
PRELOADED = ("deepspeed", "transformers", "scaling.measure", "scaling.meter")


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """One run."""

    model: str
    strategy: str
    """A strategy's name, with what it offloads."""
    activation_checkpointing: ActivationCheckpointing
    gradient_accumulation_steps: int
    ranks: int
    is_real: bool = False
    bucket_divisor: int = 1
    """Communication buffers are this many times smaller than the planner would make them."""
    precision: Precision = Precision.BF16
    micro_batch_size: int = 2
    seq_len: int = 64


NONE, FULL = ActivationCheckpointing.NONE, ActivationCheckpointing.FULL
STRATEGY_PARTS: dict[str, tuple[StrategyName, OffloadDevice, OffloadDevice]] = {
    "ddp": (StrategyName.DDP, OffloadDevice.NONE, OffloadDevice.NONE),
    "zero1": (StrategyName.ZERO1, OffloadDevice.NONE, OffloadDevice.NONE),
    "zero2": (StrategyName.ZERO2, OffloadDevice.NONE, OffloadDevice.NONE),
    "zero3": (StrategyName.ZERO3, OffloadDevice.NONE, OffloadDevice.NONE),
    "zero2 + CPU optimizer": (StrategyName.ZERO2, OffloadDevice.CPU, OffloadDevice.NONE),
    "zero3 + CPU parameters": (StrategyName.ZERO3, OffloadDevice.CPU, OffloadDevice.CPU),
    "fsdp2": (StrategyName.FSDP2, OffloadDevice.NONE, OffloadDevice.NONE),
}


def setups(models: Sequence[str]) -> Iterator[Setup]:
    """Yield the runs, a setting after the other for all models and strategies, real ranks between them."""
    bases = [
        Setup(model=model, strategy=strategy, activation_checkpointing=NONE, gradient_accumulation_steps=1, ranks=2)
        for strategy in STRATEGY_PARTS
        for model in models
    ]
    yield from (replace(base, activation_checkpointing=FULL, gradient_accumulation_steps=4, ranks=4) for base in bases)
    yield from (replace(base, ranks=64, bucket_divisor=4, micro_batch_size=1, seq_len=256) for base in bases)
    for model in models:
        yield from _real(model)
    yield from bases
    fp32 = {"precision": Precision.FP32, "seq_len": 128, "ranks": 8}
    yield from (replace(base, activation_checkpointing=FULL, **fp32) for base in bases)


def _real(model: str) -> Iterator[Setup]:
    for strategy, ranks in (("ddp", 2), ("zero2", 2), ("fsdp2", 2), ("zero3", 1)):
        yield Setup(
            model=model,
            strategy=strategy,
            activation_checkpointing=FULL,
            gradient_accumulation_steps=2,
            ranks=ranks,
            is_real=True,
        )


def decision_of(setup: Setup) -> Decision:
    """Return the setup with its prediction."""
    path = str(MODELS / f"{setup.model}.json")
    spec = load_model_spec(path)
    strategy, optimizer_device, param_device = STRATEGY_PARTS[setup.strategy]
    batch = setup.micro_batch_size * setup.gradient_accumulation_steps * setup.ranks
    job = Job(seq_len=setup.seq_len, global_batch_size=batch, precision=setup.precision)
    cluster = Cluster(gpu=Gpu(name=CPU_NAME, memory_bytes=GIB), gpus=setup.ranks, gpus_per_node=setup.ranks)
    plan = Plan(
        strategy=strategy,
        micro_batch_size=setup.micro_batch_size,
        gradient_accumulation_steps=setup.gradient_accumulation_steps,
        activation_checkpointing=setup.activation_checkpointing,
        offload_optimizer=optimizer_device,
        offload_param=param_device,
        buckets=_divided(STRATEGIES[strategy].buckets(spec, job), setup.bucket_divisor),
    )
    estimate = predict(spec, cluster=cluster, job=job, plan=plan)
    return Decision(model=path, num_params=spec.num_params, cluster=cluster, job=job, plan=plan, estimate=estimate)


def _divided(buckets: Buckets, divisor: int) -> Buckets:
    names = ("reduce_bucket_size", "allgather_bucket_size", "stage3_prefetch_bucket_size", "stage3_max_live_parameters")
    return replace(buckets, **{name: getattr(buckets, name) // divisor for name in names})


def measured(setup: Setup, decision: Decision) -> MemoryProfile:
    """Return the device bytes of the rank that holds most."""
    program = partial(run_steps, decision, NUM_STEPS, None)
    spec, context = load_model_spec(decision.model), forked_from(PRELOADED)
    if setup.is_real:
        return highest(measure_ranks(program, world_size=setup.ranks, vocab_size=spec.vocab_size)).device()
    return highest(
        [
            simulate(program, world_size=setup.ranks, rank=rank, vocab_size=spec.vocab_size, context=context)
            for rank in _ranks(decision, spec)
        ]
    ).device()


def _ranks(decision: Decision, spec: ModelSpec) -> tuple[int, ...]:
    """Return the ranks that may hold most: with FSDP2 and stage 3 the first one's shards are the largest."""
    if decision.plan.strategy in (StrategyName.ZERO1, StrategyName.ZERO2):
        return ranks_that_may_hold_most(spec, decision.cluster.gpus)
    return (0,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Bytes by phase."""

    setup: Setup
    predicted: dict[str, int]
    measured: dict[str, int]
    predicted_causes: dict[str, dict[str, int]]
    measured_causes: dict[str, dict[str, int]]

    @property
    def predicted_peak(self) -> int:
        return max(self.predicted.values())

    @property
    def measured_peak(self) -> int:
        return max(self.measured.values())

    @property
    def error(self) -> float:
        """Of the peak, relative; above zero where too much was predicted."""
        return self.predicted_peak / self.measured_peak - 1

    @property
    def names_peak_phase(self) -> bool:
        """Whether the phase that is said to peak does, or is within a thousandth of it."""
        named = max(self.predicted, key=lambda phase: self.predicted[phase])
        return self.measured.get(named, 0) >= 0.999 * self.measured_peak


def row_of(setup: Setup, real: MemoryProfile | None = None) -> Row:
    """Run one setup, unless ``real`` is what it held when it was run."""
    decision = decision_of(setup)
    real, estimated = real or measured(setup, decision), decision.estimate.memory
    return Row(
        setup=setup,
        predicted={phase.phase.value: phase.total_bytes for phase in estimated.phases},
        measured={phase.phase.value: phase.total_bytes for phase in real.phases},
        predicted_causes={phase.phase.value: dict(phase.causes.items()) for phase in estimated.phases},
        measured_causes={phase.phase.value: dict(phase.causes.items()) for phase in real.phases},
    )


def stored() -> Iterator[tuple[Setup, MemoryProfile]]:
    """Yield the setups of the last result with what they held."""
    for row in json.loads((RESULTS / "memory_accuracy.json").read_text())["rows"]:
        setup = from_json(Setup, json.dumps(row["setup"]), source="memory_accuracy.json")
        phases = (
            PhaseBytes(phase=Phase(name), causes=CauseBytes(**causes))
            for name, causes in row["measured_causes"].items()
        )
        yield setup, MemoryProfile(phases=tuple(phases))


def summary(rows: Sequence[Row]) -> dict[str, Any]:
    """Return the scores."""
    errors = [row.error for row in rows]
    return {
        "runs": len(rows),
        "median_error": statistics.median(map(abs, errors)),
        "largest_error": max(map(abs, errors)),
        "lowest": min(errors),
        "peak_phase_named": sum(row.names_peak_phase for row in rows) / len(rows),
    }


def report(rows: Sequence[Row]) -> str:
    """Return the rows as Markdown."""
    lines = [
        "| model | strategy | checkpointing | accumulation | ranks | precision | buckets | peak MiB | error | phase |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        setup = row.setup
        ranks = f"{setup.ranks} real" if setup.is_real else str(setup.ranks)
        lines.append(
            f"| {setup.model} | {setup.strategy} | {setup.activation_checkpointing} | "
            f"{setup.gradient_accumulation_steps} | {ranks} | {setup.precision} | 1/{setup.bucket_divisor} | "
            f"{row.measured_peak / MIB:.2f} | {row.error:+.2%} | {'right' if row.names_peak_phase else 'WRONG'} |"
        )
    return "\n".join(lines) + "\n"


def plot(rows: Sequence[Row], path: Path) -> None:
    """Draw predicted against measured peaks, and the error of each."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot, ticker

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 5), layout="constrained")
    markers = dict(zip(STRATEGY_PARTS, "osD^vP*", strict=True))
    colours = ("#332288", "#88CCEE", "#44AA99", "#117733", "#999933", "#CC6677", "#882255")
    for (strategy, marker), colour in zip(markers.items(), colours, strict=True):
        chosen = [row for row in rows if row.setup.strategy == strategy]
        peaks = [row.measured_peak / MIB for row in chosen]
        left.scatter(peaks, [row.predicted_peak / MIB for row in chosen], marker=marker, c=colour, label=strategy, s=24)
        right.scatter(peaks, [100 * row.error for row in chosen], marker=marker, c=colour, s=24)
    low, high = (edge(row.measured_peak for row in rows) / MIB for edge in (min, max))
    left.plot([low, high], [low, high], color="black", lw=0.8)
    left.set(xscale="log", yscale="log", xlabel="measured peak, MiB", ylabel="predicted peak, MiB")
    left.legend(frameon=False)
    right.axhline(0, color="black", lw=0.8)
    right.set(xscale="log", xlabel="measured peak, MiB", ylabel="predicted / measured - 1, %")
    for axis in (left.xaxis, left.yaxis, right.xaxis):
        axis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
        axis.set_major_formatter(ticker.ScalarFormatter())
        axis.set_minor_locator(ticker.NullLocator())
    figure.suptitle("Peak of live tensors on one rank: closed forms against the real engines")
    figure.savefig(path, dpi=120)


def main(words: Sequence[str]) -> int:
    models = [word for word in words if word != "--again"]
    rows: list[Row] = []
    again = dict(stored()) if "--again" in words else None
    # The tiny ones are of other benchmarks, and shorter than a sample here.
    every = sorted(path.stem for path in MODELS.glob("*.json") if not path.stem.startswith("tiny-"))
    for setup in setups(models or every):
        if again is not None and setup not in again:
            continue
        rows.append(row_of(setup, again[setup] if again else None))
        print(report(rows[-1:]).splitlines()[-1], file=sys.stderr, flush=True)
        if not models:  # after every run: there are many, and an interrupted series counts too
            write(rows, summary(rows))
    scores = summary(rows)
    print(json.dumps(scores, indent=1))
    if not models:
        plot(rows, RESULTS / "memory_accuracy.png")
    good = scores["median_error"] <= 0.01 and scores["largest_error"] <= 0.04 and scores["lowest"] >= -0.02
    return 0 if good and scores["peak_phase_named"] >= 0.95 else 1


def write(rows: Sequence[Row], scores: dict[str, Any]) -> None:
    """Write the result files."""
    result = {
        "environment": environment(),
        "summary": scores,
        "rows": [asdict(row) | {"error": row.error, "names_peak_phase": row.names_peak_phase} for row in rows],
    }
    (RESULTS / "memory_accuracy.json").write_text(json.dumps(result, indent=1) + "\n")
    scored = "\n".join(f"- {name}: {value}" for name, value in scores.items())
    (RESULTS / "memory_accuracy.md").write_text(f"{scored}\n\n{report(rows)}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
