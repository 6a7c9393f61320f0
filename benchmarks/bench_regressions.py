"""Does ``scaling bench compare`` tell a loop that is 5 % slower and a leak of 2 %, and stay silent about reruns?

Method: seven benches of one cell (llama-demo under DDP on two CPU ranks) run in turns, one run of each in every round
and the order turned by one from round to round, so that what else the machine does meets all alike. Five of them are
identical. In the sixth every optimizer step is followed by work of no use for 5 % of its time, in the seventh the
first step keeps a buffer of 2 % of the measured peak: both by a hook that python loads in the ranks
(`benchmarks/regressions`), which all seven have, so that nothing else differs. Every run is a fresh process group of
the real ``scaling.train`` under torchrun. Then every bench is compared with every identical one, as a user would:
expected is that both changes are flagged against all five, each by its own measure and no other, and that none of the
ten pairs of identical ones is.

Usage: ``python -m benchmarks.bench_regressions [--rounds 10] [--out FOLDER]`` (about 20 s a run, 70 runs: 23 minutes on
two free cores; a folder that is there is gone on with); writes ``benchmarks/results/bench_regressions.json`` and
``.md``; exit code 1 where something is not as expected.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import combinations
from pathlib import Path

from benchmarks.environment import environment
from scaling.bench.axes import Axes
from scaling.bench.bench import Bencher, Limits
from scaling.bench.cells import Running
from scaling.bench.compare import Finding, Measure, Verdict, compare_benches
from scaling.bench.environment import environment_of
from scaling.bench.matrix import Planned, planned_cells
from scaling.bench.result import Bench
from scaling.bench.store import read_bench
from scaling.levels import Question
from strategies.cluster import CPU_NAME
from strategies.detect import build_cluster
from strategies.emit.commands import LauncherName
from strategies.job import Job, Precision
from strategies.learning.run_store import OFF, VARIABLE
from strategies.load_model import load_model_spec
from strategies.plan import ActivationCheckpointing, OffloadDevice, StrategyName
from strategies.units import format_bytes

RESULTS = Path(__file__).parent / "results" / "bench_regressions.json"
HOOKS = Path(__file__).parent / "regressions"
MODEL, RANKS, SEQ_LEN, MICRO_BATCH_SIZE = "llama-demo", 2, 128, 4
ROUNDS, TIMED_STEPS, WARM_UP_STEPS = 10, 30, 6
LEAK = 0.02
IDENTICAL = tuple(f"identical-{number}" for number in range(1, 6))
SLOW, LEAKING = "slow", "leak"
ARMS = (*IDENTICAL, SLOW, LEAKING)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One comparison."""

    before: str
    after: str
    expected: tuple[str, ...]
    """Measures that must be flagged."""
    flagged: tuple[str, ...]
    findings: tuple[Finding, ...]

    @property
    def is_right(self) -> bool:
        """Whether what must be flagged is, and nothing of another kind; a slower loop shows in either time or both."""
        times = {Measure.STEP_TIME.value, Measure.CPU_TIME.value}
        if not self.expected:
            return not self.flagged
        if set(self.expected) & times:
            return bool(self.flagged) and set(self.flagged) <= times
        return set(self.flagged) == set(self.expected)


def main() -> int:
    """Run, compare, print, store; return 1 if anything is not as expected."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--out", type=Path, default=Path("bench-regressions"))
    asked = parser.parse_args()
    benches = run_all(asked.out, rounds=asked.rounds)
    rows = list(compare_all(benches))
    text = report(rows, benches, rounds=asked.rounds)
    print(text)
    stored = {"rows": [asdict(row) for row in rows], "rounds": asked.rounds, "environment": environment()}
    RESULTS.write_text(json.dumps(stored, indent=1) + "\n")
    RESULTS.with_suffix(".md").write_text(text)
    return int(not all(row.is_right for row in rows))


def run_all(folder: Path, *, rounds: int) -> dict[str, Bench]:
    """Return the benches of all arms, run in turns."""
    cluster = build_cluster(gpu=CPU_NAME, gpus=RANKS, gpus_per_node=RANKS, gpu_memory_gib=None, host_memory_gib=None)
    running = Running(
        settings=(), warm_up_steps=WARM_UP_STEPS, timed_steps=TIMED_STEPS, environment=environment_of(cluster)
    )
    question = Question(
        model=MODEL,
        spec=load_model_spec(MODEL),
        cluster=cluster,
        job=Job(seq_len=SEQ_LEN, global_batch_size=RANKS, precision=Precision.FP32),
    )
    [cell] = planned_cells(_axes(), question, running)
    for number in range(1, rounds + 1):
        for arm in (*ARMS[number % len(ARMS) :], *ARMS[: number % len(ARMS)]):
            print(f"round {number} of {rounds}: {arm}", file=sys.stderr, flush=True)
            with _made_worse(arm, cell):
                limits = Limits(repeats=number, timeout_s=600)
                Bencher([cell], folder=folder / arm, environment=running.environment, limits=limits).finish()
    return {arm: read_bench(folder / arm) for arm in ARMS}


def _axes() -> Axes:
    return Axes(
        strategies=(StrategyName.DDP,),
        activation_checkpointing=(ActivationCheckpointing.NONE,),
        micro_batch_sizes=(MICRO_BATCH_SIZE,),
        seq_lens=(SEQ_LEN,),
        gradient_accumulation_steps=(1,),
        offload_optimizer=(OffloadDevice.NONE,),
        offload_param=(OffloadDevice.NONE,),
        launchers=(LauncherName.TORCHRUN,),
    )


@contextmanager
def _made_worse(arm: str, cell: Planned) -> Iterator[None]:
    """Let the processes that are started inside load the hook, as the arm says."""
    assert cell.cell.prediction is not None
    before = dict(os.environ)
    path = os.pathsep.join(filter(None, [str(HOOKS), before.get("PYTHONPATH")]))
    leak = round(LEAK * cell.cell.prediction.peak_allocated_bytes)
    # Runs that are slow or large on purpose are nothing to learn from.
    os.environ |= {"PYTHONPATH": path, "BENCH_REGRESSION": arm, "BENCH_REGRESSION_BYTES": str(leak), VARIABLE: OFF}
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def compare_all(benches: dict[str, Bench]) -> Iterator[Row]:
    """Yield the comparisons of identical ones with each other, and of both changed ones with each of them."""
    for before, after in combinations(IDENTICAL, 2):
        yield _row(benches, before, after, expected=())
    for before in IDENTICAL:
        yield _row(benches, before, SLOW, expected=(Measure.STEP_TIME.value,))
        yield _row(benches, before, LEAKING, expected=(Measure.PEAK_MEMORY.value,))


def _row(benches: dict[str, Bench], before: str, after: str, *, expected: tuple[str, ...]) -> Row:
    comparison = compare_benches(benches[before], benches[after])
    flagged = tuple(each.measure.value for each in comparison.findings if each.verdict is Verdict.REGRESSION)
    return Row(before=before, after=after, expected=expected, flagged=flagged, findings=comparison.findings)


def report(rows: list[Row], benches: dict[str, Bench], *, rounds: int) -> str:
    """Return everything as Markdown."""
    lines = [
        "# Regressions that a bench comparison tells",
        "",
        f"Method: `benchmarks/bench_regressions.py`; {rounds} runs of each, {TIMED_STEPS} timed steps a run. Load of "
        f"the machine before runs: {_loads(benches)}; two ranks make 2 by themselves.",
        "",
        "| arm | step, s: median of runs (lowest to highest) | CPU s a step: likewise | peak |",
        "|---|---|---|---|",
        *(_arm(arm, benches[arm]) for arm in ARMS),
        "",
        "| before | after | step time | CPU time a step | peak memory | flagged | as expected |",
        "|---|---|---|---|---|---|---|",
        *(_line(row) for row in rows),
        "",
        f"{sum(row.is_right for row in rows)} of {len(rows)} comparisons as expected.",
    ]
    return "\n".join(lines) + "\n"


def _loads(benches: dict[str, Bench]) -> str:
    """Return median and range of the load averages, in words."""
    loads = sorted(run.load_before for bench in benches.values() for cell in bench.cells for run in cell.done)
    return f"{statistics.median(loads):.1f} ({loads[0]:.1f} to {loads[-1]:.1f})"


def _arm(arm: str, bench: Bench) -> str:
    [cell] = bench.cells
    steps = sorted(run.median_step_s for run in cell.done)
    cpu = sorted(run.cpu_s_per_step for run in cell.done if run.cpu_s_per_step)
    medians = [
        f"{typical:.4f} ({numbers[0]:.4f} to {numbers[-1]:.4f})" if numbers and typical else "-"
        for typical, numbers in ((cell.median_step_s, steps), (cell.cpu_s_per_step, cpu))
    ]
    return f"| {arm} | {medians[0]} | {medians[1]} | {format_bytes(cell.peak_bytes or 0)} |"


def _line(row: Row) -> str:
    by_measure = {each.measure: each for each in row.findings}
    cells = [_change(by_measure.get(measure)) for measure in (Measure.STEP_TIME, Measure.CPU_TIME, Measure.PEAK_MEMORY)]
    flagged = ", ".join(row.flagged) or "-"
    return f"| {row.before} | {row.after} | {' | '.join(cells)} | {flagged} | {'yes' if row.is_right else 'NO'} |"


def _change(finding: Finding | None) -> str:
    if finding is None or finding.change is None:
        return "-"
    probability = "" if finding.probability is None else f" (p {finding.probability:.3f})"
    return f"{finding.change:+.2%}{probability}"


if __name__ == "__main__":
    sys.exit(main())
