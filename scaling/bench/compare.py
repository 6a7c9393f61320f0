"""Two results of a bench, cell by cell: what got worse by more than noise."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from scaling.bench.labels import labels
from scaling.bench.rank_test import Shift, critical_value, shift
from scaling.bench.result import VERSION, Bench, CellResult, Environment
from strategies.plan import StrategyName
from strategies.units import format_bytes

LEVEL = 0.005
"""One-sided probability of the test for one measure of one cell: five runs on either side can reach it (0.004)."""
TIME_FLOOR = 0.02
"""Smaller changes are not told, however sure they are."""
FEW_RUNS_FLOOR = 1.0
"""Likewise where there are too few runs, and steps stand in for them: what differs from one group of processes to the
next is not among them. On a machine with five busy programs a core, medians of identical runs were up to 1.5 times each
other (docs/bench.md)."""
MOST_STEPS = 100
"""Of one side that the test looks at then: it is exact, and would take minutes for a thousand."""
MEMORY_TOLERANCE = 0.005
"""Of the peak, whose bytes repeat."""
LIFTED_BY_CHANCE = (StrategyName.FSDP2,)
"""Strategies of which gloo's thread lets tensors go late, so that the peak of a run on CPU ranks may be above that of
another: of llama-demo's in bf16 two in four were, by 5 %. Those of the others were always equal (docs/bench.md)."""
UNEVEN = 0.5
"""Load per core above that of the other result, from which on times are said not to be alike."""
BUSY = 2.0
"""Load per core from which on the machine is said to be busy; a bench by itself makes about 1."""


class Verdict(StrEnum):
    """What a change is."""

    REGRESSION = "regression"
    IMPROVEMENT = "improvement"
    SAME = "same"
    """Within noise, or too small to matter."""
    TOO_FEW_RUNS = "too few runs"
    """Not judged but for very large changes, of which this is none."""


class Measure(StrEnum):
    """What is compared."""

    OUTCOME = "outcome"
    STEP_TIME = "step time"
    CPU_TIME = "CPU time a step"
    PEAK_MEMORY = "peak memory"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One measure of one cell."""

    cell: str
    measure: Measure
    verdict: Verdict
    before: float | None = None
    """Seconds or bytes; None where there is none."""
    after: float | None = None
    change: float | None = None
    """As a share: 0.05 is 5 % more."""
    low: float | None = None
    high: float | None = None
    """Ends of the change's interval, which covers it with probability 0.99; None where there are too few runs."""
    probability: float | None = None
    """Of such samples, or clearer ones, if nothing had changed."""
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchComparison:
    """``after`` against ``before``."""

    version: int
    findings: tuple[Finding, ...]
    only_before: tuple[str, ...]
    """Cells that only one of both has."""
    only_after: tuple[str, ...]
    differences: tuple[str, ...]
    """Of environments, and what else to know: times, and with other versions bytes too, may differ because of it."""

    @property
    def regressions(self) -> tuple[Finding, ...]:
        return tuple(each for each in self.findings if each.verdict is Verdict.REGRESSION)


def compare_benches(before: Bench, after: Bench) -> BenchComparison:
    """Return what changed in the cells that both have: the same model, plan, launcher and settings."""
    names = dict(zip((each.cell.key for each in (*before.cells, *after.cells)), _labels(before, after), strict=True))
    early = {each.cell.key: each for each in before.cells}
    late = {each.cell.key: each for each in after.cells}
    both = [key for key in early if key in late]
    return BenchComparison(
        version=VERSION,
        findings=tuple(one for key in both for one in _findings(names[key], early[key], late[key])),
        only_before=tuple(names[key] for key in early if key not in late),
        only_after=tuple(names[key] for key in late if key not in early),
        differences=tuple(_differences([early[key] for key in both], [late[key] for key in both])),
    )


def _labels(before: Bench, after: Bench) -> list[str]:
    """Return names that tell apart all cells of both, with what one command has in common and two may not."""
    results = [*before.cells, *after.cells]
    if not results:
        return []
    facts = [
        (f"{cell.precision}", f"{cell.gpus} ranks", f"settings {', '.join(cell.settings) or 'none'}")
        for cell in (each.cell for each in results)
    ]
    varied = [len(set(kind)) > 1 for kind in zip(*facts, strict=True)]
    return [
        ", ".join([label, *(word for word, varies in zip(words, varied, strict=True) if varies)])
        for label, words in zip(labels(results), facts, strict=True)
    ]


def _findings(name: str, before: CellResult, after: CellResult) -> Iterator[Finding]:
    if not (before.done and after.done):
        yield _outcome(name, before, after)
        return
    if len(after.done) < len(after.runs):
        verdict = Verdict.REGRESSION if len(before.done) == len(before.runs) else Verdict.SAME
        yield Finding(cell=name, measure=Measure.OUTCOME, verdict=verdict, note=f"not every run ended: {after.reason}")
    yield _step_time(name, before, after)
    if (cpu := _by_runs(name, Measure.CPU_TIME, _cpu_times(before), _cpu_times(after))) is not None:
        yield cpu
    if (memory := _memory(name, before, after)) is not None:
        yield memory


def _outcome(name: str, before: CellResult, after: CellResult) -> Finding:
    verdict = Verdict.SAME
    if before.done and after.outcome is not None:
        verdict = Verdict.REGRESSION
    elif after.done and before.outcome is not None:
        verdict = Verdict.IMPROVEMENT
    told = [each.outcome.value if each.outcome else "not run yet" for each in (before, after)]
    reason = f": {after.reason}" if after.reason else ""
    return Finding(cell=name, measure=Measure.OUTCOME, verdict=verdict, note=f"{told[0]} -> {told[1]}{reason}")


def _step_time(name: str, before: CellResult, after: CellResult) -> Finding:
    medians = [[run.median_step_s for run in each.done] for each in (before, after)]
    by_runs = _by_runs(name, Measure.STEP_TIME, *medians)
    if by_runs is not None:
        return by_runs
    found = shift(_thinned(before.step_times_s), _thinned(after.step_times_s), level=LEVEL)
    verdict = _verdict(found, floor=FEW_RUNS_FLOOR)
    needed = runs_needed(len(before.done))
    return Finding(
        cell=name,
        measure=Measure.STEP_TIME,
        verdict=Verdict.TOO_FEW_RUNS if verdict is Verdict.SAME else verdict,
        before=statistics.median(medians[0]),
        after=statistics.median(medians[1]),
        change=found.ratio - 1,
        note=f"by the steps of {len(before.done)} and {len(after.done)} runs; give both --repeats {needed}",
    )


def _thinned(steps: Sequence[float]) -> Sequence[float]:
    """Return at most `MOST_STEPS` of the steps, evenly picked."""
    return steps[:: -(-len(steps) // MOST_STEPS)]


def runs_needed(have: int) -> int:
    """Return how many runs both results need, so that the test can tell anything.

    >>> runs_needed(1)
    5
    """
    return next(runs for runs in range(max(have, 1), 10**6) if critical_value(runs, runs, level=LEVEL) >= 0)


def _cpu_times(result: CellResult) -> list[float]:
    return [run.cpu_s_per_step for run in result.done if run.cpu_s_per_step]


def _by_runs(name: str, measure: Measure, before: Sequence[float], after: Sequence[float]) -> Finding | None:
    """Return what one number a run tells; None where there are too few of them."""
    if critical_value(len(before), len(after), level=LEVEL) < 0:
        return None
    found = shift(before, after, level=LEVEL)
    return Finding(
        cell=name,
        measure=measure,
        verdict=_verdict(found, floor=TIME_FLOOR),
        before=statistics.median(before),
        after=statistics.median(after),
        change=found.ratio - 1,
        low=found.low - 1,
        high=found.high - 1,
        probability=min(found.p_larger, found.p_smaller),
    )


def _verdict(found: Shift, *, floor: float) -> Verdict:
    if found.p_larger <= LEVEL and found.ratio >= 1 + floor:
        return Verdict.REGRESSION
    if found.p_smaller <= LEVEL and found.ratio <= 1 / (1 + floor):
        return Verdict.IMPROVEMENT
    return Verdict.SAME


def _memory(name: str, before: CellResult, after: CellResult) -> Finding | None:
    early, late = before.lowest_memory, after.lowest_memory
    if early is None or late is None or not early.peak_allocated_bytes or not late.peak_allocated_bytes:
        return None
    change = late.peak_allocated_bytes / early.peak_allocated_bytes - 1
    verdict, note = Verdict.SAME, ""
    if abs(change) > MEMORY_TOLERANCE:
        verdict = Verdict.REGRESSION if change > 0 else Verdict.IMPROVEMENT
        note = _grown(before, after)
        needed = runs_needed(1)
        if _may_be_lifted(before, after) and min(len(before.done), len(after.done)) < needed:
            verdict, note = Verdict.TOO_FEW_RUNS, f"may be chance on CPU ranks: give both --repeats {needed}"
    return Finding(
        cell=name,
        measure=Measure.PEAK_MEMORY,
        verdict=verdict,
        before=early.peak_allocated_bytes,
        after=late.peak_allocated_bytes,
        change=change,
        note=note,
    )


def _may_be_lifted(*results: CellResult) -> bool:
    return any(each.cell.is_cpu and each.cell.choice.strategy in LIFTED_BY_CHANCE for each in results)


def _grown(before: CellResult, after: CellResult) -> str:
    """Return which cause at the highest moment has changed most."""
    runs = before.lowest_memory, after.lowest_memory
    profiles = [run.measured for run in runs if run is not None and run.measured is not None]
    if len(profiles) < 2:
        return ""
    early, late = (profile.peak.causes.by_cause() for profile in profiles)
    cause = max(late, key=lambda each: abs(late[each] - early[each]))
    more = late[cause] - early[cause]
    return f"most of it {cause.replace('_', ' ')}, {'+' if more >= 0 else ''}{format_bytes(more)}"


FACTS: tuple[tuple[str, Callable[[Environment], str]], ...] = (
    ("device", lambda environment: environment.device),
    ("cores", lambda environment: str(environment.num_cores)),
    ("OMP_NUM_THREADS", lambda environment: environment.omp_num_threads),
    ("system", lambda environment: environment.system),
)


def _differences(before: Sequence[CellResult], after: Sequence[CellResult]) -> Iterator[str]:
    """Yield what else is not the same on both sides, each once."""
    told: dict[str, None] = {}
    for early, late in zip(before, after, strict=True):
        told |= dict.fromkeys(_environments(early.environment, late.environment))
        if early.cell.warm_up_steps != late.cell.warm_up_steps:
            told[f"warm-up steps: {early.cell.warm_up_steps} -> {late.cell.warm_up_steps}"] = None
    yield from told
    loads = [[run.load_before for each in side for run in each.done] for side in (before, after)]
    if not all(loads):
        return
    early_load, late_load = map(statistics.median, loads)
    num_cores = after[0].environment.num_cores
    if abs(late_load - early_load) > UNEVEN * num_cores:
        yield f"load of the machine before runs (median): {early_load:.1f} -> {late_load:.1f}; times are not alike"
    elif max(early_load, late_load) > BUSY * num_cores:
        yield (
            f"the machine was busy in both (load {early_load:.1f} and {late_load:.1f} on {num_cores} cores): step "
            f"times say little, CPU times more"
        )


def _environments(before: Environment, after: Environment) -> Iterator[str]:
    for name, told in FACTS:
        if told(before) != told(after):
            yield f"{name}: {told(before)} -> {told(after)}"
    names = {**before.versions, **after.versions}
    for name in names:
        versions = [each.versions.get(name, "not recorded") for each in (before, after)]
        if versions[0] != versions[1]:
            yield f"{name}: {versions[0]} -> {versions[1]}"
