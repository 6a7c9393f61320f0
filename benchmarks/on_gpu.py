"""Predicted beside measured on one real GPU: peaks, allocated and reserved, and the time of a step.

Method: Llama-3.2-1B with random weights under plans that one GPU with 40 GB holds (the largest is predicted to need
36 GiB): DDP on one rank without and with activation checkpointing, with the fused loss, in two micro batches and two
precisions, and FSDP2 on one rank. A process for each plan, so that none inherits the other's cached memory: the engine
that training uses runs two optimizer steps, an evaluation and the gathering of a save on made-up samples, while
`CudaMeter` reads the allocator's peaks of every phase; then eight steps without the meter are timed, the first two
dropped. Predictions are the planner's closed forms, made and stored before anything runs. Plans that are predicted not
to fit here are left out, and said so. The allocator uses expandable segments, as in training.

Predicted step times rest on configs/gpu_rates.csv, or on what ``scaling calibrate`` has measured on this machine.

Usage: ``python -m benchmarks.on_gpu [--gpu H200-141GB-SXM]`` (five to ten minutes, most of it building models; needs a
CUDA device); writes ``benchmarks/results/on_gpu.json`` and ``.md``.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

import torch

from benchmarks.environment import environment
from scaling.local_ranks import run_ranks
from scaling.loop import train_step
from scaling.meter import CudaMeter, Meter, StorageMeter
from scaling.models import InitialWeights, build_config, build_model
from scaling.rehearsal import example, rehearse
from strategies.cluster import Cluster, Gpu, gpu_presets
from strategies.decision import Decision
from strategies.detect import AUTO, build_cluster
from strategies.errors import ClusterError
from strategies.explain import describe_plan
from strategies.job import Job, LossImplementation, Precision
from strategies.load_model import load_model_spec, resolve_model
from strategies.memory.predict import predict
from strategies.plan import ActivationCheckpointing, Plan, StrategyName
from strategies.registry import STRATEGIES
from strategies.time.step_time import step_time, times_known

RESULTS = Path(__file__).parent / "results"
MODEL, SEQ_LEN = "llama-3.2-1b", 2048
METERED_STEPS, TIMED_STEPS, DROPPED_STEPS = 2, 8, 2
ALLOCATED_LIMIT, RESERVED_LIMIT = 0.03, 0.14
"""What replays of traces leave at most (docs/memory.md, results/allocator_slack.json)."""
NONE, SELECTIVE, FULL = ActivationCheckpointing
STANDARD, FUSED = LossImplementation.STANDARD, LossImplementation.FUSED


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """One plan on one rank."""

    strategy: StrategyName = StrategyName.DDP
    activation_checkpointing: ActivationCheckpointing = NONE
    loss: LossImplementation = STANDARD
    micro_batch_size: int = 1
    gradient_accumulation_steps: int = 1
    precision: Precision = Precision.BF16


SETUPS = (
    Setup(),
    Setup(activation_checkpointing=FULL, micro_batch_size=4),
    Setup(activation_checkpointing=SELECTIVE, micro_batch_size=4, gradient_accumulation_steps=2),
    Setup(activation_checkpointing=FULL, micro_batch_size=4, loss=FUSED),
    Setup(micro_batch_size=2, precision=Precision.BF16_AUTOCAST),
    Setup(strategy=StrategyName.FSDP2, activation_checkpointing=FULL, micro_batch_size=4),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What one rank has held, and the seconds of its steps."""

    allocated_bytes: int
    reserved_bytes: int | None
    """None on a CPU."""
    steps_s: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One plan, predicted and measured."""

    plan: str
    precision: Precision
    loss: LossImplementation
    predicted_allocated_bytes: int
    predicted_reserved_bytes: int
    predicted_step_s: float | None
    """None where the rates of the device are not known."""
    measured: Measured

    @property
    def allocated_error(self) -> float:
        return self.predicted_allocated_bytes / self.measured.allocated_bytes - 1

    @property
    def reserved_error(self) -> float | None:
        reserved = self.measured.reserved_bytes
        return None if reserved is None else self.predicted_reserved_bytes / reserved - 1

    @property
    def step_s(self) -> float:
        return statistics.median(self.measured.steps_s)

    @property
    def step_error(self) -> float | None:
        return None if self.predicted_step_s is None else self.predicted_step_s / self.step_s - 1


def main(arguments: Sequence[str] | None = None) -> None:
    """Run every plan that fits here, print and store."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpu", default=AUTO, help="its name in configs/gpus.csv, where it is not recognised")
    cluster = here(parser.parse_args(arguments).gpu)
    print(f"{cluster.gpu.name}, {cluster.gpu.source}", flush=True)
    decisions = fitting(cluster, SETUPS)
    store([], decisions)
    rows = []
    for decision in decisions:
        rows.append(row_of(decision))
        store(rows, decisions)
        print(_line(rows[-1]), flush=True)


def store(rows: Sequence[Row], decisions: Sequence[Decision]) -> None:
    """Write what is predicted, and what is measured so far."""
    stored = {
        "environment": environment() | {"gpu": torch.cuda.get_device_name()},
        "predicted": [asdict(decision) for decision in decisions],
        "rows": [asdict(row) for row in rows],
    }
    (RESULTS / "on_gpu.json").write_text(json.dumps(stored, indent=1) + "\n")
    (RESULTS / "on_gpu.md").write_text(report(rows))


def here(gpu: str = AUTO) -> Cluster:
    """Return this machine's first GPU as a cluster of one, with the facts of the preset that it is where one is known.

    Raises:
        ClusterError: there is no CUDA device.
    """
    if not torch.cuda.is_available():
        raise ClusterError("torch.cuda.is_available()=False: this needs a CUDA device; run it on a machine with one")
    cluster = build_cluster(gpu=gpu, gpus=1, gpus_per_node=1, gpu_memory_gib=None, host_memory_gib=None)
    return cluster if gpu != AUTO else replace(cluster, gpu=as_preset(cluster.gpu))


def as_preset(found: Gpu) -> Gpu:
    """Return the preset that a detected GPU is, with the memory that was detected; the GPU itself where none is known.

    By the model's name among the words of the driver's, the form (PCIe, NVL or SXM), and the memory within 4 %.
    """
    words = re.split(r"[ -]", found.name.upper())
    form = next((form for form in ("PCIE", "NVL") if form in words), "SXM")
    for name, preset in gpu_presets().items():
        parts = name.upper().split("-")
        forms = {"PCIE", "NVL"} & {part.split(" ")[0] for part in parts} or {"SXM"}
        if parts[0] in words and form in forms and abs(preset.memory_bytes / found.memory_bytes - 1) < 0.04:
            return replace(preset, memory_bytes=found.memory_bytes, source=f"{found.source}; facts of {name}")
    return found


def fitting(cluster: Cluster, setups: Sequence[Setup], *, model: str = MODEL, seq_len: int = SEQ_LEN) -> list[Decision]:
    """Return the setups that are predicted to fit, with their predictions; say which are left out."""
    decisions = [decision_of(setup, cluster=cluster, model=model, seq_len=seq_len) for setup in setups]
    for decision in decisions:
        if not _fits(decision):
            print(f"left out, predicted not to fit: {describe_plan(decision.plan)}", flush=True)
    return [decision for decision in decisions if _fits(decision)]


def _fits(decision: Decision) -> bool:
    return decision.estimate.device_bytes <= decision.cluster.gpu.memory_bytes


def decision_of(setup: Setup, *, cluster: Cluster, model: str, seq_len: int) -> Decision:
    """Return the setup with its prediction."""
    spec = load_model_spec(model)
    batch = setup.micro_batch_size * setup.gradient_accumulation_steps
    job = Job(seq_len=seq_len, global_batch_size=batch, precision=setup.precision, loss=setup.loss)
    plan = Plan(
        strategy=setup.strategy,
        micro_batch_size=setup.micro_batch_size,
        gradient_accumulation_steps=setup.gradient_accumulation_steps,
        activation_checkpointing=setup.activation_checkpointing,
        buckets=STRATEGIES[setup.strategy].buckets(spec, job),
    )
    return Decision(
        model=model,
        num_params=spec.num_params,
        cluster=cluster,
        job=job,
        plan=plan,
        estimate=predict(spec, cluster=cluster, job=job, plan=plan),
        time=step_time(spec, cluster=cluster, job=job, plan=plan) if times_known(cluster) else None,
    )


def row_of(decision: Decision) -> Row:
    """Run the decision in a process of its own."""
    on_gpu = not decision.cluster.gpu.is_cpu
    os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")  # as scaling.train; ranks inherit it
    (measured,) = run_ranks(partial(in_rank, decision), world_size=1, timeout_s=600, on_gpus=on_gpu)
    return Row(
        plan=describe_plan(decision.plan),
        precision=decision.job.precision,
        loss=decision.job.loss,
        predicted_allocated_bytes=decision.estimate.peak_allocated_bytes,
        predicted_reserved_bytes=decision.estimate.peak_reserved_bytes,
        predicted_step_s=decision.time.total_s if decision.time else None,
        measured=measured,
    )


def in_rank(decision: Decision, device: torch.device) -> Measured:
    """Return what the plan holds on ``device`` and how long its steps take."""
    config = build_config(resolve_model(decision.model))
    model = build_model(config, InitialWeights(folder=None), decision=decision, seed=0)
    meter: Meter = CudaMeter(device_id=device) if device.type == "cuda" else StorageMeter()
    meter.start()
    engine = rehearse(
        model,
        partial(example, config, decision),
        decision=decision,
        num_steps=METERED_STEPS,
        device=device,
        meter=meter,
    )
    meter.stop()
    batches = [example(config, decision)] * decision.plan.gradient_accumulation_steps
    steps_s = []
    for _ in range(TIMED_STEPS):
        start = time.perf_counter()
        train_step(engine, batches).read()  # which waits for the device
        steps_s.append(time.perf_counter() - start)
    found = meter.measurement()
    return Measured(
        allocated_bytes=found.peak_allocated_bytes,
        reserved_bytes=found.peak_reserved_bytes,
        steps_s=tuple(steps_s[DROPPED_STEPS:]),
    )


def report(rows: Sequence[Row]) -> str:
    """Return the rows as Markdown."""
    head = "| plan | precision | loss | allocated GiB: predicted, measured | reserved GiB | step s |"
    lines = [head, "|---|---|---|---|---|---|", *(_line(row) for row in rows)]
    return "# One GPU\n\nMethod: `benchmarks/on_gpu.py`.\n\n" + "\n".join(lines) + "\n"


def _line(row: Row) -> str:
    allocated = _pair(row.predicted_allocated_bytes / 2**30, row.measured.allocated_bytes / 2**30)
    reserved_bytes = row.measured.reserved_bytes
    reserved = "-" if reserved_bytes is None else _pair(row.predicted_reserved_bytes / 2**30, reserved_bytes / 2**30)
    step = f"not known, {row.step_s:.3f}" if row.predicted_step_s is None else _pair(row.predicted_step_s, row.step_s)
    return f"| {row.plan} | {row.precision} | {row.loss} | {allocated} | {reserved} | {step} |"


def _pair(predicted: float, measured: float) -> str:
    return f"{predicted:.3f}, {measured:.3f} ({predicted / measured - 1:+.1%})"


if __name__ == "__main__":
    main()
