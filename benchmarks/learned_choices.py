"""Whether corrected step times choose better plans: part of `benchmarks.learned_records`.

Of the plans that a split holds aside, for each model: the measured time of the fastest over that of the one that is
predicted to be fastest, before and after the correction. 1 is the best there is.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial

from benchmarks.learned_cases import Case
from strategies.learning.fit import learn
from strategies.learning.learned import TimeErrors
from strategies.learning.run_record import RunRecord
from strategies.learning.step_correction import correction_from, errors_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """Throughput of the plans chosen among those held aside, of the best one's."""

    held_aside: str
    choices: int
    mean_before: float
    mean_after: float
    worst_before: float
    worst_after: float


def choices(held_aside: str, splits: Iterable[tuple[list[Case], list[Case]]]) -> Choices:
    """Return how good choices are without and with what is learned."""
    found = [pair for fit, held in splits for pair in _ratios(fit, held)]
    before, after = [pair[0] for pair in found], [pair[1] for pair in found]
    return Choices(
        held_aside=held_aside,
        choices=len(found),
        mean_before=statistics.mean(before),
        mean_after=statistics.mean(after),
        worst_before=min(before),
        worst_after=min(after),
    )


def _ratios(fit: list[Case], held: list[Case]) -> Iterator[tuple[float, float]]:
    """Yield for each model the share of the best throughput before and after."""
    known, _ = learn([case.record for case in fit])
    for model in sorted({case.group for case in held}):
        records = [case.record for case in held if case.group == model]
        errors = errors_of(known, device=records[0].device, machine="", calibration="")
        best_s = min(_measured_s(each) for each in records)
        plain, learnt = (min(records, key=partial(_corrected_s, errors=each)) for each in ((), errors))
        yield best_s / _measured_s(plain), best_s / _measured_s(learnt)


def _corrected_s(record: RunRecord, *, errors: tuple[TimeErrors, ...]) -> float:
    found = correction_from(
        errors,
        model=record.model,
        strategy=record.strategy,
        activation_checkpointing=record.activation_checkpointing,
    )
    return (record.predicted_step_s or 0.0) * (found.factor if found else 1.0)


def _measured_s(record: RunRecord) -> float:
    assert record.measured_step_s is not None
    return record.measured_step_s


def report(found: Iterable[Choices]) -> str:
    """Return them as Markdown."""
    lines = ["| held aside | choices | mean | after | worst | after |", "|" + " --- |" * 6]
    lines += [
        f"| {each.held_aside} | {each.choices} | {each.mean_before:.3f} | {each.mean_after:.3f} | "
        f"{each.worst_before:.3f} | {each.worst_after:.3f} |"
        for each in found
    ]
    return "\n".join(lines) + "\n"
