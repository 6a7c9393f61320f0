"""What learning from runs changes, kind by kind: bias and 90 % interval before and after."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from strategies.cluster import CPU_NAME
from strategies.conformal import RatioRange
from strategies.learning.fit import LeftOut
from strategies.learning.learned import NOTHING, Learned, PeakErrors, TimeErrors
from strategies.learning.step_correction import FEWEST_SETUPS, correction_from, errors_of
from strategies.memory.interval import ends
from strategies.time.calibration import calibration_of, this_machine

T = TypeVar("T")

PEAK, STEP = "peak memory", "step time"


@dataclass(frozen=True, slots=True, kw_only=True)
class Lesson:
    """What the runs of one kind changed."""

    about: str
    """Peak memory or step time."""
    kind: str
    num_models: int
    num_setups: int
    """Different ones: what counts."""
    num_runs: int
    newest: str
    bias_before: float
    """Median of measured / predicted."""
    bias_after: float
    """With the corrected prediction. A predicted peak is not moved: its interval carries the bias."""
    before: RatioRange | None
    """The 90 % interval of measured over what was predicted then; None: there was none."""
    after: RatioRange | None
    """Likewise, of measured over what is predicted now."""
    source: str
    """What the interval or the correction rests on from now on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lessons:
    """Everything that the user's runs taught, as `scaling calibrate --from-records` tells it."""

    file: str
    records: str
    num_runs: int
    left_out: LeftOut
    lessons: tuple[Lesson, ...]


def lessons_of(known: Learned) -> Iterator[Lesson]:
    """Yield what each kind of run changed; step times as far as they are this machine's, with the rates of today."""
    for peaks in _grouped(known.peaks, lambda each: each.kind.name):
        yield _peak_lesson(peaks, known)
    for device in dict.fromkeys(each.device for each in known.times):
        calibration = calibration_of(device)
        errors = errors_of(
            known,
            device=device,
            machine=this_machine() if device == CPU_NAME else "",
            calibration=calibration.measured_at if calibration else "",
        )
        for times in _grouped(errors, lambda each: each.model):
            yield _step_lesson(times, errors)


def _grouped(errors: Iterable[T], key: Callable[[T], str]) -> Iterable[list[T]]:
    groups: dict[str, list[T]] = {}
    for each in errors:
        groups.setdefault(key(each), []).append(each)
    return groups.values()


def _peak_lesson(errors: Sequence[PeakErrors], known: Learned) -> Lesson:
    """Return what runs of one kind, of several models, say of another like the largest of them."""
    largest = max(errors, key=lambda each: each.largest_bytes)
    before, after = (ends(largest.kind, each, predicted_bytes=largest.largest_bytes) for each in (NOTHING, known))
    ratios = [ratio for each in errors for ratio in each.allocated]
    bias = statistics.median(ratios)
    return Lesson(
        about=PEAK,
        kind=largest.kind.name,
        num_models=len(errors),
        num_setups=len(ratios),
        num_runs=sum(each.num_runs for each in errors),
        newest=max(each.newest for each in errors),
        bias_before=bias,
        bias_after=bias,
        before=RatioRange(low=before.low, high=before.high) if before else None,
        after=RatioRange(low=after.low, high=after.high) if after else None,
        source=after.source if after else "",
    )


def _step_lesson(errors: Sequence[TimeErrors], of_device: tuple[TimeErrors, ...]) -> Lesson:
    """Return what the runs of one model on a device say of another like its first."""
    found = [
        correction_from(
            of_device,
            model=each.model,
            strategy=each.strategy,
            activation_checkpointing=each.activation_checkpointing,
        )
        for each in errors
    ]
    factors = [each.factor if each else 1.0 for each in found]
    return Lesson(
        about=STEP,
        kind=f"{errors[0].model} on {errors[0].device}",
        num_models=1,
        num_setups=sum(len(each.ratios) for each in errors),
        num_runs=sum(each.num_runs for each in errors),
        newest=max(each.newest for each in errors),
        bias_before=statistics.median(ratio for each in errors for ratio in each.ratios),
        bias_after=statistics.median(
            ratio / factor for each, factor in zip(errors, factors, strict=True) for ratio in each.ratios
        ),
        before=None,
        after=found[0].measured if found[0] else None,
        source=found[0].source
        if found[0]
        else f"too few to correct with: {FEWEST_SETUPS} setups on a device are needed",
    )
