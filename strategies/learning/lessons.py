"""What learning from runs changes, kind by kind: bias and 90 % interval before and after."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import dataclass

from strategies.cluster import CPU_NAME
from strategies.conformal import RatioRange
from strategies.learning.fit import LeftOut
from strategies.learning.learned import NOTHING, Learned, PeakErrors
from strategies.learning.step_correction import correction_from, errors_of
from strategies.memory.interval import ends
from strategies.time.calibration import calibration_of, this_machine

PEAK, STEP = "peak memory", "step time"


@dataclass(frozen=True, slots=True, kw_only=True)
class Lesson:
    """What the runs of one kind changed."""

    about: str
    """Peak memory or step time."""
    kind: str
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
    yield from (_peak_lesson(each, known) for each in known.peaks)
    yield from _step_lessons(known)


def _peak_lesson(errors: PeakErrors, known: Learned) -> Lesson:
    before, after = (ends(errors.kind, each, predicted_bytes=errors.largest_bytes) for each in (NOTHING, known))
    bias = statistics.median(errors.allocated)
    return Lesson(
        about=PEAK,
        kind=errors.kind.name,
        num_setups=len(errors.allocated),
        num_runs=errors.num_runs,
        newest=errors.newest,
        bias_before=bias,
        bias_after=bias,
        before=RatioRange(low=before.low, high=before.high) if before else None,
        after=RatioRange(low=after.low, high=after.high) if after else None,
        source=after.source if after else "",
    )


def _step_lessons(known: Learned) -> Iterator[Lesson]:
    for device in dict.fromkeys(each.device for each in known.times):
        calibration = calibration_of(device)
        errors = errors_of(
            known,
            device=device,
            machine=this_machine() if device == CPU_NAME else "",
            calibration=calibration.measured_at if calibration else "",
        )
        for each in errors:
            correction = correction_from(
                errors, strategy=each.strategy, activation_checkpointing=each.activation_checkpointing
            )
            bias, factor = statistics.median(each.ratios), correction.factor if correction else 1.0
            yield Lesson(
                about=STEP,
                kind=f"{each.strategy} on {device}, activation checkpointing {each.activation_checkpointing}",
                num_setups=len(each.ratios),
                num_runs=each.num_runs,
                newest=each.newest,
                bias_before=bias,
                bias_after=bias / factor,
                before=None,
                after=correction.measured if correction else None,
                source=correction.source if correction else "too few to correct with",
            )
