"""Real runs with what was predicted for them, as records of runs: what `benchmarks.learned_records` learns from.

Peaks are predicted anew by the closed forms as they are now; what was measured stands in `results/` and `reference/`.
"""

from __future__ import annotations

import hashlib
import json
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks import keras_memory, lora_memory, memory_accuracy, published_cases, published_memory, published_runs
from strategies.cluster import CPU_NAME
from strategies.decision import Decision
from strategies.estimate import Level
from strategies.job import LossImplementation, OptimizerName, Precision
from strategies.learning.run_record import FORMAT, RunRecord
from strategies.plan import ActivationCheckpointing, OffloadDevice, Plan, StrategyName
from strategies.serialize import from_json
from strategies.units import GIB
from strategies.versions import package_version

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A run."""

    id: str
    group: str
    """The model: a whole one is held aside at a time too."""
    record: RunRecord


def cpu_peaks() -> Iterator[Case]:
    """Yield our own runs on CPU ranks: whole models (memory_accuracy) and parts of them (lora_memory)."""
    for module, kind in ((memory_accuracy, "all trained"), (lora_memory, "part trained")):
        for number, row in enumerate(_result(module.__name__.rpartition(".")[2])["rows"]):
            setup = from_json(module.Setup, json.dumps(row["setup"]), source="a result")
            decision = module.decision_of(setup)
            yield _peak_case(decision, max(row["measured"].values()), id=f"{kind} {number}", group=setup.model)


def _peak_case(decision: Decision, measured_bytes: int, *, id: str, group: str) -> Case:
    record = _record(
        id,
        decision.plan,
        model=group,
        device=CPU_NAME,
        predicted_bytes=decision.estimate.peak_allocated_bytes,
        measured_bytes=measured_bytes,
    )
    return Case(id=id, group=group, record=record)


def tensorflow_peaks() -> Iterator[Case]:
    """Yield the runs of TensorFlow on CPU (keras_memory)."""
    for number, row in enumerate(_result("keras_memory")["rows"]):
        measured = from_json(keras_memory.Measured, json.dumps(row["measured"]), source="a result")
        found = keras_memory.beside_prediction(measured)
        _, _, plan = measured.setup.plan()
        record = _record(
            f"keras {number}",
            plan,
            model=measured.setup.label,
            device=CPU_NAME,
            predicted_bytes=found.predicted_bytes,
            measured_bytes=measured.peak_bytes,
        )
        yield Case(id=f"keras {number}", group=measured.setup.label, record=record)


def gpu_peaks() -> Iterator[Case]:
    """Yield the published peaks that are scored (published_memory), each of its own kind, allocated or reserved."""
    rows = {row["id"]: row for row in published_cases.published_rows()}
    for peak in published_memory.collect().peaks:
        if not peak.is_scored or peak.id not in rows:
            continue
        record = _record(
            peak.id,
            _plan(published_cases.case_of(rows[peak.id])["plan"]),
            model=peak.model,
            device="published",
            predicted_bytes=round(peak.predicted_gib * GIB),
            measured_bytes=round(peak.measured_gib * GIB),
        )
        yield Case(id=peak.id, group=peak.model, record=record)


def cpu_times() -> Iterator[Case]:
    """Yield every plan that fits of three models on two CPU ranks (regret), with the calibration of that run.

    Measured is the median of the rounds, as a run's median step is on record.
    """
    for model in _result("regret")["models"]:
        for row in model["plans"]:
            strategy, *_, checkpointing, _ = row["label"].split(", ")
            plan = _plan({"strategy": strategy, "activation_checkpointing": checkpointing})
            id = f"{model['model']}: {row['label']}"
            record = _record(
                id,
                plan,
                model=model["model"],
                device=CPU_NAME,
                predicted_step_s=row["predicted_s"],
                measured_step_s=statistics.median(row["rounds_s"]),
            )
            yield Case(id=id, group=model["model"], record=record)


def gpu_times() -> Iterator[Case]:
    """Yield the published runs that no constant was fitted on (published_throughput)."""
    runs, _ = published_runs.published_runs()
    for run in runs:
        id, plan = run.row["id"], run.case.plan
        if id in published_runs.FITTED or plan is None:
            continue
        time = run.predict()
        record = _record(
            id,
            plan,
            model=run.row["model"],
            device=run.case.cluster.gpu.name,
            predicted_step_s=time.total_s,
            measured_step_s=time.tokens_per_gpu / run.measured,
        )
        yield Case(id=id, group=run.row["model"], record=record)


def _plan(settings: dict[str, Any]) -> Plan:
    """Return a plan with what decides the kind of a run."""
    names = ("offload_optimizer", "offload_param")
    return Plan(
        strategy=StrategyName(settings["strategy"]),
        micro_batch_size=1,
        gradient_accumulation_steps=1,
        activation_checkpointing=ActivationCheckpointing(settings["activation_checkpointing"]),
        buckets=_any_decision().plan.buckets,
        **{name: OffloadDevice(settings.get(name, "none")) for name in names},
    )


@cache
def _any_decision() -> Decision:
    row = _result("memory_accuracy")["rows"][0]
    return memory_accuracy.decision_of(from_json(memory_accuracy.Setup, json.dumps(row["setup"]), source="a result"))


def _record(
    id: str,
    plan: Plan,
    *,
    model: str,
    device: str,
    predicted_bytes: int = 1,
    measured_bytes: int | None = None,
    predicted_step_s: float | None = None,
    measured_step_s: float | None = None,
) -> RunRecord:
    """Return a record whose setup is no other case's: ``id`` stands where it is one of the settings that tell them."""
    return RunRecord(
        format=FORMAT,
        version=package_version("memory-scaling"),
        at="",
        source="a benchmark",
        device=device,
        machine="",
        torch="",
        deepspeed="",
        family=model,
        num_params=1,
        num_trained_params=1,
        num_layers=1,
        hidden_size=hash_of(id),
        strategy=plan.strategy,
        activation_checkpointing=plan.activation_checkpointing,
        checkpoint_every=1,
        offload_optimizer=plan.offload_optimizer,
        offload_param=plan.offload_param,
        loss=LossImplementation.STANDARD,
        precision=Precision.BF16,
        optimizer=OptimizerName.ADAMW,
        seq_len=1,
        micro_batch_size=1,
        gradient_accumulation_steps=1,
        ranks=1,
        level=Level.INSTANT,
        predicted_allocated_bytes=predicted_bytes,
        predicted_reserved_bytes=predicted_bytes,
        interval_low_bytes=None,
        interval_high_bytes=None,
        measured_allocated_bytes=measured_bytes,
        predicted_step_s=predicted_step_s,
        measured_step_s=measured_step_s,
    )


def hash_of(text: str) -> int:
    """Return a number that is the same in every process."""
    return int(hashlib.sha256(text.encode()).hexdigest()[:15], 16)


def _result(name: str) -> dict[str, Any]:
    result: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text())
    return result
