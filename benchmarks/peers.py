"""Who predicted what: DeepSpeed's estimators, ``accelerate estimate-memory`` and ours, beside published measurements.

Method: of the published peaks on real GPUs (`published_memory`: full data-parallel training, every input stated, the
source sure enough to be scored) the first row of every source, strategy and activation checkpointing, in the order of
``reference/measured.csv``. Nothing else chooses them: other programs' own implementations and compiled runs stay in.
DeepSpeed's two estimators and accelerate's formula are called as installed, with the row's parameters, GPUs and
offload; ours is the instant level, on the whole row. A tool's answer counts as *own* where the row is what the tool is
for, and as a *stand-in* where it is not and a user would still ask: stage 3's estimate for FSDP, stage 2's where FSDP
keeps the weights, accelerate's where states are sharded (it prints one number a model, whatever the GPUs). No answer:
DeepSpeed has no estimator for stage 1 and for plain data parallelism.

What stands against ours: all twelve rows were looked at while the formulas were made (`published_memory` prints their
errors), and KempnerForge's way of adding up gradients was read off its own rows. No constant in a memory formula was
fitted to any of them. What stands against theirs: both say that they count model states only.

The second table has none of that: real runs on CPU ranks of this machine (`memory_accuracy`), where the meter names
the causes of every byte, so that the peers are also held against the states alone, which is what they promise.

Usage: ``python -m benchmarks.peers`` (15 s); writes ``benchmarks/results/peers.json``, ``.md`` and ``.png``.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path

from benchmarks import memory_accuracy
from benchmarks.environment import environment
from benchmarks.peer_estimators import largest_module_params
from benchmarks.peers_report import Answer, Comparison, plot, report, summary
from benchmarks.published_cases import Row as PublishedRow
from benchmarks.published_cases import case_of, published_rows
from benchmarks.published_memory import Peak, collect
from strategies.cases.case import Case, read_case
from strategies.cluster import Cluster
from strategies.job import Precision
from strategies.load_model import load_model_spec
from strategies.model_spec import ModelSpec
from strategies.plan import OffloadDevice, Plan, StrategyName
from strategies.units import gib

RESULTS = Path(__file__).parent / "results"
SHAPED_ON = {"KEMP": "its reduction of gradients was read off its own rows"}
"""Sources that a setting was read off, by the first part of a row's id."""
STATES = ("parameters", "master_weights", "gradients", "optimizer_states")


def main() -> None:
    published, run_here = list(published_comparisons()), list(run_here_comparisons())
    scores = {"published": summary(published), "run_here": summary(run_here)}
    text = report(published, run_here)
    (RESULTS / "peers.md").write_text(text)
    stored = {
        "environment": environment(),
        "summary": scores,
        "published": [asdict(each) for each in published],
        "run_here": [asdict(each) for each in run_here],
    }
    (RESULTS / "peers.json").write_text(json.dumps(stored, indent=1) + "\n")
    plot(published, RESULTS / "peers.png")
    print(text)


def published_comparisons() -> Iterator[Comparison]:
    """Yield the configurations that the rule chooses among published peaks."""
    rows = {row["id"]: row for row in published_rows()}
    for peak in chosen((peak for peak in collect().peaks if peak.is_scored), rows):
        row = rows[peak.id]
        case = read_case(json.dumps(case_of(row)), number=1)
        yield _published(peak, row, case)


def chosen(peaks: Iterable[Peak], rows: Mapping[str, PublishedRow]) -> list[Peak]:
    """Return the first peak of every source, strategy and activation checkpointing, in the order of ``rows``."""
    by_id = {peak.id: peak for peak in peaks}
    first: dict[tuple[str, str, str], Peak] = {}
    for name, row in rows.items():
        if name in by_id:
            first.setdefault((_prefix(name), row["strategy"], row["activation_ckpt"]), by_id[name])
    return list(first.values())


def _prefix(row_id: str) -> str:
    return row_id.partition("-")[0]


def _published(peak: Peak, row: PublishedRow, case: Case) -> Comparison:
    assert case.plan is not None
    notes = [peak.built_differently, SHAPED_ON.get(_prefix(peak.id))]
    answers = peers(case.spec, cluster=case.cluster, plan=case.plan, precision=case.job.precision)
    return Comparison(
        id=peak.id,
        source=row["framework"],
        model=row["model"].split(" (")[0],
        num_params=case.spec.num_params,
        strategy=row["strategy"],
        activation_checkpointing=row["activation_ckpt"],
        gpus=case.cluster.gpus,
        micro_batch_size=case.plan.micro_batch_size,
        seq_len=case.job.seq_len,
        measured_gib=peak.measured_gib,
        states_gib=None,
        answers={"ours": Answer(gib=peak.predicted_gib, is_own=True), **answers},
        note="; ".join(note for note in notes if note),
    )


def run_here_comparisons() -> Iterator[Comparison]:
    """Yield the real runs that `memory_accuracy` has stored, predicted anew."""
    for setup, profile in memory_accuracy.stored():
        if not setup.is_real:
            continue
        decision = memory_accuracy.decision_of(setup)
        spec = load_model_spec(decision.model)
        states = max(sum(getattr(phase.causes, cause) for cause in STATES) for phase in profile.phases)
        ours = Answer(gib=gib(decision.estimate.peak_allocated_bytes), is_own=True)
        asked = peers(spec, cluster=decision.cluster, plan=decision.plan, precision=decision.job.precision)
        yield Comparison(
            id=f"{setup.model}-{setup.strategy}",
            source="this trainer, CPU ranks",
            model=setup.model,
            num_params=spec.num_params,
            strategy=setup.strategy,
            activation_checkpointing=setup.activation_checkpointing.value,
            gpus=setup.ranks,
            micro_batch_size=setup.micro_batch_size,
            seq_len=setup.seq_len,
            measured_gib=gib(profile.peak_bytes),
            states_gib=gib(states),
            answers={"ours": ours, **asked},
            note="",
        )


def peers(spec: ModelSpec, *, cluster: Cluster, plan: Plan, precision: Precision) -> dict[str, Answer | None]:
    """Return what the installed packages answer."""
    return {
        "deepspeed": _deepspeed(spec, cluster=cluster, plan=plan, precision=precision),
        "accelerate": _accelerate(spec, cluster=cluster, precision=precision),
    }


def _deepspeed(spec: ModelSpec, *, cluster: Cluster, plan: Plan, precision: Precision) -> Answer | None:
    stage = _stage(plan)
    if stage is None:
        return None
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    from deepspeed.runtime.zero.stage3 import estimate_zero3_model_states_mem_needs
    from deepspeed.runtime.zero.stage_1_and_2 import estimate_zero2_model_states_mem_needs

    size = {"num_gpus_per_node": cluster.ranks_per_node, "num_nodes": cluster.num_nodes}
    offloads = plan.offload_optimizer is not OffloadDevice.NONE
    if stage == 2:
        _, gpu_bytes = estimate_zero2_model_states_mem_needs(spec.num_params, cpu_offload=offloads, **size)
    else:
        _, gpu_bytes, _ = estimate_zero3_model_states_mem_needs(
            spec.num_params,
            largest_module_params(spec),
            cpu_offload=offloads,
            cpu_offload_params=plan.offload_param is not OffloadDevice.NONE,
            **size,
        )
    is_zero = plan.strategy in (StrategyName.ZERO2, StrategyName.ZERO3)
    return Answer(gib=gib(gpu_bytes), is_own=is_zero and precision in (Precision.BF16, Precision.FP16))


def _stage(plan: Plan) -> int | None:
    """Return the stage whose estimate a user would take."""
    match plan.strategy:
        case StrategyName.ZERO2:
            return 2
        case StrategyName.ZERO3:
            return 3
        case StrategyName.FSDP2:
            return 3 if plan.reshard_after_forward else 2
    return None


def _accelerate(spec: ModelSpec, *, cluster: Cluster, precision: Precision) -> Answer:
    """Return the column *Training using Adam*: of float32, or of float16, its only row for 16-bit training."""
    from accelerate.commands.estimate import estimate_training_usage

    dtype = "float32" if precision is Precision.FP32 else "float16"
    usage = estimate_training_usage(4 * spec.num_params, dtype)
    return Answer(gib=gib(max(usage.values())), is_own=cluster.gpus == 1)


if __name__ == "__main__":
    main()
