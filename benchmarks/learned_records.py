"""What `scaling calibrate --from-records` changes for runs that it has not seen.

Method: real runs with their predictions (`learned_cases`) are taken as one user's records. They are split in two ways,
nine or ten times each:

- by setup: a run is held aside where the SHA-256 of "SPLIT:ID" (its first 15 digits, as a number) is odd, which is half
  of them, or one more than a multiple of four, which is a quarter of them, for SPLIT from 0 to 9;
- by model: all runs of one model are held aside, of each in turn.

What is learned from the others (`strategies.learning.fit.learn`) is then asked about those held aside, as plans ask it.
Before: of peaks, the interval that pools all other runs of the same device, as the shipped errors are pooled (for
TensorFlow the shipped interval itself; the file holds none of its runs); of step times, no correction and no interval.
After: the rules of `strategies.memory.interval`, where the runs of other strategies on the device stand for the shipped
errors, and of `strategies.learning.step_correction`. The median error "after" of a peak is what it would be if
the peak were multiplied by the median ratio of its kind, which we do not do: it is there to show why.

How the correction of step times is put together was chosen among fifteen ways on these very runs, so that its gain is
flattered; the number 5 of its shrinkage was not fitted. That intervals are narrowed for models on record only was
decided on them too.

Usage: ``python -m benchmarks.learned_records``; writes ``benchmarks/results/learned_records.json`` and ``.md``.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks import learned_cases, learned_choices
from benchmarks.environment import environment
from benchmarks.learned_cases import Case, hash_of
from benchmarks.learned_choices import choices
from strategies.conformal import conformal_range
from strategies.learning.fit import learn
from strategies.learning.learned import Learned
from strategies.learning.step_correction import correction_from, errors_of
from strategies.memory.interval import ends, shipped_ratios
from strategies.plan import Framework

RESULTS = Path(__file__).parent / "results"
SPLITS = 10
Split = tuple[list[Case], list[Case]]
"""What is learned from, and what is held aside."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One run held aside."""

    kind: str
    ratio: float
    """Measured / predicted."""
    ratio_after: float
    """With the corrected step time; of a peak, if it were moved."""
    before: tuple[float, float] | None
    """The interval of ``ratio``."""
    after: tuple[float, float] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """Outcomes of many runs held aside."""

    about: str
    held_aside: str
    kind: str
    runs: int
    """With those that several splits hold aside."""
    median_error_before: float
    median_error_after: float
    p90_error_before: float
    p90_error_after: float
    told_before: float
    """Share of the runs for which there was an interval."""
    told_after: float
    coverage_before: float | None
    """Of those, the share inside."""
    coverage_after: float | None
    above_before: float | None
    """Of those, the share that took more than the interval's upper end."""
    above_after: float | None
    width_before: float | None
    """Median of upper end - lower end, in measured / predicted."""
    width_after: float | None


def by_setup(cases: Sequence[Case], parts: int) -> Iterator[Split]:
    """Yield the splits that hold one in ``parts`` aside."""
    for number in range(SPLITS):
        aside = [hash_of(f"{number}:{case.id}") % parts == 1 for case in cases]
        yield (
            [case for case, is_aside in zip(cases, aside, strict=True) if not is_aside],
            [case for case, is_aside in zip(cases, aside, strict=True) if is_aside],
        )


def by_model(cases: Sequence[Case]) -> Iterator[Split]:
    """Yield the splits that hold one model aside."""
    for group in dict.fromkeys(case.group for case in cases):
        yield [case for case in cases if case.group != group], [case for case in cases if case.group == group]


def splits_of(cases: Sequence[Case]) -> Iterator[tuple[str, Iterator[Split]]]:
    """Yield the three ways to split, with their names."""
    yield "half of the setups", by_setup(cases, 2)
    yield "a quarter of the setups", by_setup(cases, 4)
    yield "one model at a time", by_model(cases)


def peak_outcomes(split: Split) -> Iterator[Outcome]:
    """Yield the peaks held aside."""
    fit, held = split
    known, _ = learn([case.record for case in fit])
    for case in held:
        record, kind = case.record, case.record.kind
        ratio = _peak_ratio(case)
        others = tuple(_peak_ratio(each) for each in fit if each.record.kind.strategy_name != kind.strategy_name)
        if kind.strategy.framework is Framework.TENSORFLOW:
            shipped = shipped_ratios(kind.shipped_device)
            before = conformal_range(shipped)
        else:
            shipped, before = others, conformal_range([_peak_ratio(each) for each in fit])
        after = ends(kind, known, predicted_bytes=record.predicted_allocated_bytes, shipped=shipped)
        yield Outcome(
            kind=kind.strategy_name,
            ratio=ratio,
            ratio_after=ratio / _median_of_kind(known, case),
            before=before,
            after=(after.low, after.high) if after else None,
        )


def _peak_ratio(case: Case) -> float:
    return (case.record.measured_allocated_bytes or 0) / case.record.predicted_allocated_bytes


def _median_of_kind(known: Learned, case: Case) -> float:
    alike = [ratio for each in known.peaks if each.kind.name == case.record.kind.name for ratio in each.allocated]
    return statistics.median(alike) if alike else 1.0


def step_outcomes(split: Split) -> Iterator[Outcome]:
    """Yield the step times held aside."""
    fit, held = split
    known, _ = learn([case.record for case in fit])
    for case in held:
        record = case.record
        errors = errors_of(known, device=record.device, machine="", calibration="")
        found = correction_from(
            errors,
            model=record.model,
            strategy=record.strategy,
            activation_checkpointing=record.activation_checkpointing,
        )
        ratio = (record.measured_step_s or 0.0) / (record.predicted_step_s or 1.0)
        factor = found.factor if found else 1.0
        told = found.measured if found else None
        yield Outcome(
            kind=record.device,
            ratio=ratio,
            ratio_after=ratio / factor,
            before=None,
            after=(told.low * factor, told.high * factor) if told else None,
        )


def scores(about: str, held_aside: str, outcomes: Sequence[Outcome]) -> Iterator[Score]:
    """Yield the score of all outcomes, and of each kind of run if there are several."""
    kinds = sorted({each.kind for each in outcomes})
    yield _score(about, held_aside, "all", outcomes)
    for kind in kinds if len(kinds) > 1 else ():
        yield _score(about, held_aside, kind, [each for each in outcomes if each.kind == kind])


def _score(about: str, held_aside: str, kind: str, outcomes: Sequence[Outcome]) -> Score:
    errors_before = sorted(abs(each.ratio - 1) for each in outcomes)
    errors_after = sorted(abs(each.ratio_after - 1) for each in outcomes)
    before = [(each.ratio, each.before) for each in outcomes if each.before]
    after = [(each.ratio, each.after) for each in outcomes if each.after]
    return Score(
        about=about,
        held_aside=held_aside,
        kind=kind,
        runs=len(outcomes),
        median_error_before=statistics.median(errors_before),
        median_error_after=statistics.median(errors_after),
        p90_error_before=errors_before[int(0.9 * len(outcomes))],
        p90_error_after=errors_after[int(0.9 * len(outcomes))],
        told_before=len(before) / len(outcomes),
        told_after=len(after) / len(outcomes),
        coverage_before=_share(before, lambda ratio, low, high: low <= ratio <= high),
        coverage_after=_share(after, lambda ratio, low, high: low <= ratio <= high),
        above_before=_share(before, lambda ratio, low, high: ratio > high),
        above_after=_share(after, lambda ratio, low, high: ratio > high),
        width_before=_width(before),
        width_after=_width(after),
    )


Told = Sequence[tuple[float, tuple[float, float]]]


def _share(told: Told, holds: Callable[[float, float, float], bool]) -> float | None:
    return sum(holds(ratio, *interval) for ratio, interval in told) / len(told) if told else None


def _width(told: Told) -> float | None:
    return statistics.median(high - low for _, (low, high) in told) if told else None


SETS: tuple[tuple[str, Callable[[], Iterator[Case]], Callable[[Split], Iterator[Outcome]]], ...] = (
    ("peak, CPU, PyTorch", learned_cases.cpu_peaks, peak_outcomes),
    ("peak, CPU, TensorFlow", learned_cases.tensorflow_peaks, peak_outcomes),
    ("peak, GPU, published", learned_cases.gpu_peaks, peak_outcomes),
    ("step time, CPU", learned_cases.cpu_times, step_outcomes),
    ("step time, GPU, published", learned_cases.gpu_times, step_outcomes),
)


def all_scores() -> Iterator[Score]:
    """Yield everything."""
    for about, cases_of, outcomes_of in SETS:
        for held_aside, found in splits_of(list(cases_of())):
            yield from scores(about, held_aside, [each for split in found for each in outcomes_of(split)])


def report(found: Sequence[Score]) -> str:
    """Return the scores as Markdown."""
    pairs = ("median error", "90th", "told", "inside", "above", "width")
    heads = ("what", "held aside", "runs of", "n", *(name for pair in pairs for name in (pair, "after")))
    lines = ["| " + " | ".join(heads) + " |", "|" + " --- |" * len(heads)]
    for each in found:
        errors = (each.median_error_before, each.median_error_after, each.p90_error_before, each.p90_error_after)
        numbers = [f"{value:.3%}" for value in errors]
        shares = (
            (each.told_before, each.told_after),
            (each.coverage_before, each.coverage_after),
            (each.above_before, each.above_after),
        )
        numbers += ["-" if value is None else f"{value:.1%}" for pair in shares for value in pair]
        numbers += ["-" if value is None else f"{value:.5f}" for value in (each.width_before, each.width_after)]
        lines.append("| " + " | ".join((each.about, each.held_aside, each.kind, str(each.runs), *numbers)) + " |")
    return "\n".join(lines) + "\n"


WORDS = """
*n*: runs held aside, with those that several splits hold aside. *Told*: the share for which there was an interval.
*Inside*, *above*: of those, the share inside and above its upper end (5 % is what is promised). *Width*: the median of
upper end minus lower end, in measured / predicted. Each pair of columns is before and after.
"""


def main() -> None:
    found = list(all_scores())
    chosen = [choices(held_aside, splits) for held_aside, splits in splits_of(list(learned_cases.cpu_times()))]
    result = {
        "environment": environment(),
        "scores": [asdict(each) for each in found],
        "choices": [asdict(each) for each in chosen],
    }
    (RESULTS / "learned_records.json").write_text(json.dumps(result, indent=1) + "\n")
    method = (__doc__ or "").split("Usage:")[0]
    text = f"# What one's own runs teach, on runs held aside\n\n{method}{WORDS}\n{report(found)}\n"
    text += f"## Plans chosen by step time, CPU\n\n{learned_choices.__doc__}\n{learned_choices.report(chosen)}"
    (RESULTS / "learned_records.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
