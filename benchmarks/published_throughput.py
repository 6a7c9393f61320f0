"""Predicted step times against published throughput.

Method: the runs of `published_runs`. The constants were fitted on the rows that `published_runs.FITTED` names
(`time_fit`); every other row is held aside. ``configs/gpu_rates.csv`` has one set of constants per
GPU model and there are none per row or source.

Usage: ``python -m benchmarks.published_throughput``; writes ``benchmarks/results/published_throughput.json``, ``.md``.
"""

from __future__ import annotations

import json
import statistics
import time
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.environment import environment
from benchmarks.published_runs import FITTED, Run, published_runs

RESULTS = Path(__file__).parent / "results"
CAUSES = {
    "LF-021": "30B on 8 GPUs at 8192 tokens: device memory is full",
    "LF-080": "30B on 8 GPUs at 8192 tokens: device memory is full",
    "LF-120": "slower than the same run at twice the length and than on A100-40GB: not the GPU",
    "LF-121": "as LF-120",
    "LF-179": "18 % below the same run on 16 and on 64 GPUs",
    "BSZ3-029": "micro batch 4 took longer than 8 did; the authors state 40 % noise",
    "TTC-004": "torchtitan of early 2024; the cause is not known",
    "TTC-005": "as TTC-004",
    "TTC-027": "SimpleFSDP, slower on 64 GPUs than FSDP2 although compiled",
    "TTC-021": "probably compiled (its speed is that of the compiled rows); the row does not say",
    "TTC-024": "as TTC-021",
    "TTC-031": "an experiment that compiles forward and backward as one graph",
    "TTC-030": "as TTC-031",
    "MIST-001": "a fused softmax in what the row calls eager attention",
    "TUNE-005": "block-masked attention of packed samples, which is slower than causal",
    "AUTO-012": "probably a classification task (GLUE): the case gives it the vocabulary's head and loss",
    "AUTO-013": "as AUTO-012",
    "AUTO-014": "as AUTO-012",
    "TUNE-003": "Adam on the host in bf16: this node's host memory is faster than assumed",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Throughput:
    """One row: tokens per second and GPU, measured and predicted."""

    id: str
    model: str
    gpu: str
    gpus: int
    seq_len: int
    micro_batch_size: int
    activation_checkpointing: str
    compiled: bool
    fitted: bool
    measured: float
    predicted: float
    mfu: float
    seconds: dict[str, float]

    @property
    def error(self) -> float:
        """Relative; above zero where the run was slower than predicted."""
        return self.predicted / self.measured - 1

    @property
    def source(self) -> str:
        return self.id.split("-")[0]


def throughput(run: Run) -> Throughput:
    """Return the run beside its prediction."""
    row, case, step = run.row, run.case, run.predict()
    return Throughput(
        id=row["id"],
        model=row["model"],
        gpu=case.cluster.gpu.name,
        gpus=case.cluster.gpus,
        seq_len=case.job.seq_len,
        micro_batch_size=int(row["micro_batch"]),
        activation_checkpointing=row["activation_ckpt"],
        compiled=run.compiled,
        fitted=row["id"] in FITTED,
        measured=run.measured,
        predicted=round(step.tokens_per_s_per_gpu, 1),
        mfu=round(step.mfu, 4),
        seconds={name: round(value, 5) for name, value in asdict(step).items() if name.endswith("_s")},
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """Errors over some rows."""

    rows: int
    median_error: float
    """Signed."""
    median: float
    p90: float
    worst: float


def score(found: Sequence[Throughput]) -> Score:
    """Return the errors of ``found``."""
    sizes = sorted(abs(each.error) for each in found)
    return Score(
        rows=len(sizes),
        median_error=round(statistics.median(each.error for each in found), 4),
        median=round(statistics.median(sizes), 4),
        p90=round(sizes[min(len(sizes) - 1, int(0.9 * len(sizes)))], 4),
        worst=round(sizes[-1], 4),
    )


def spearman(found: Sequence[Throughput]) -> float:
    """Return the rank correlation of predicted and measured throughput."""
    return statistics.correlation(_ranks([each.measured for each in found]), _ranks([each.predicted for each in found]))


def _ranks(values: Sequence[float]) -> list[float]:
    """Return each value's rank; equal ones share the mean of theirs."""
    ordered = sorted(values)
    return [bisect_left(ordered, value) + (ordered.count(value) - 1) / 2 for value in values]


def unseen(found: Sequence[Throughput]) -> list[Throughput]:
    """Return the rows of sources of which no row was fitted on."""
    seen = {row.split("-")[0] for row in FITTED}
    return [each for each in found if each.source not in seen]


def groups(found: Sequence[Throughput]) -> dict[str, list[Throughput]]:
    """Return the rows of each source and GPU."""
    names = sorted({(each.source, each.gpu) for each in found})
    return {f"{name}, {gpu}": [x for x in found if (x.source, x.gpu) == (name, gpu)] for name, gpu in names}


def markdown(found: Sequence[Throughput], left_out: dict[str, str]) -> str:
    """Return the tables."""
    held = [each for each in found if not each.fitted]
    lines = [
        "# Published throughput: predicted step time against measured",
        "",
        f"{len(found)} runs, {len(found) - len(held)} of them used to fit constants; rank correlation (Spearman) "
        f"{spearman(found):.3f} over all, {spearman(held):.3f} over those held aside. An error is predicted over "
        "measured tokens per second, less one.",
        "",
        "| rows | runs | median error | median size | 90th percentile | worst |",
        "|---|---|---|---|---|---|",
        _score_line("all", found),
        _score_line("fitted on", [each for each in found if each.fitted]),
        _score_line("held aside", held),
        _score_line("held aside, sources that no constant has seen", unseen(found)),
        *(_score_line(name, rows) for name, rows in groups(found).items()),
        "",
        "## Off by more than 15 %",
        "",
        "| row | model | GPU | GPUs | measured | predicted | error | cause |",
        "|---|---|---|---|---|---|---|---|",
        *(_bad_line(each) for each in found if abs(each.error) > 0.15),
        "",
        "## Left out",
        "",
        "| reason | rows |",
        "|---|---|",
        *(f"| {reason} | {', '.join(ids)} |" for reason, ids in _by_reason(left_out).items()),
    ]
    return "\n".join(lines) + "\n"


def _score_line(name: str, found: Sequence[Throughput]) -> str:
    s = score(found)
    return f"| {name} | {s.rows} | {s.median_error:+.1%} | {s.median:.1%} | {s.p90:.1%} | {s.worst:.1%} |"


def _bad_line(each: Throughput) -> str:
    cause = CAUSES.get(each.id, "")
    return (
        f"| {each.id} | {each.model} | {each.gpu} | {each.gpus} | {each.measured:.0f} | {each.predicted:.0f} | "
        f"{each.error:+.0%} | {cause} |"
    )


def _by_reason(left_out: dict[str, str]) -> dict[str, list[str]]:
    reasons: dict[str, list[str]] = {}
    for row, reason in left_out.items():
        reasons.setdefault(reason, []).append(row)
    return reasons


def collect() -> tuple[list[Throughput], dict[str, str]]:
    """Return every comparable run beside its prediction, and the rows left out."""
    runs, left_out = published_runs()
    return [throughput(run) for run in runs], left_out


def microseconds_per_call() -> float:
    """Return the time of one `step_time` after the first for its model: the fastest of 20 passes over all runs."""
    runs, _ = published_runs()
    passes = []
    for _ in range(20):
        start = time.perf_counter()
        for run in runs:
            run.predict()
        passes.append((time.perf_counter() - start) / len(runs))
    return 1e6 * min(passes)


def write(found: Sequence[Throughput], left_out: dict[str, str]) -> None:
    """Store tables and rows."""
    held = [each for each in found if not each.fitted]
    payload: dict[str, Any] = {
        "environment": environment(),
        "microseconds_per_call": round(microseconds_per_call(), 1),
        "all": asdict(score(found)) | {"spearman": round(spearman(found), 4)},
        "held_aside": asdict(score(held)) | {"spearman": round(spearman(held), 4)},
        "unseen_sources": asdict(score(unseen(found))) | {"spearman": round(spearman(unseen(found)), 4)},
        "sources": {name: asdict(score(rows)) for name, rows in groups(found).items()},
        "rows": [asdict(each) | {"error": round(each.error, 4)} for each in found],
        "left_out": left_out,
    }
    (RESULTS / "published_throughput.json").write_text(json.dumps(payload, indent=1) + "\n")
    (RESULTS / "published_throughput.md").write_text(markdown(found, left_out))


def main() -> None:
    """Predict, compare, store."""
    found, left_out = collect()
    write(found, left_out)
    print("\n".join(markdown(found, left_out).splitlines()[:30]))


if __name__ == "__main__":
    main()
