"""What the user's runs teach: errors by kind of run, the newest run of each setup, and what they change."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from strategies.conformal import FEWEST_RECORDS
from strategies.errors import CalibrationError
from strategies.estimate import Level
from strategies.learning.learned import FORMAT, LEAST_RATIO, MOST_RATIO, Learned, PeakErrors, TimeErrors
from strategies.learning.run_record import RunRecord
from strategies.learning.step_correction import FEWEST_SETUPS
from strategies.versions import package_version

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """How many runs did not count, and why."""

    of_other_versions: int
    """Of this package: their formulas may be others."""
    without_peak: int
    """Nothing metered, begun from a checkpoint, or not predicted by the closed forms."""
    without_step_time: int
    """Too few steps, or no rates to predict from."""


def learn(records: Sequence[RunRecord]) -> tuple[Learned, LeftOut]:
    """Return the errors of runs by kind, and what did not count."""
    version = package_version("memory-scaling")
    ours = sorted((each for each in records if each.version == version), key=lambda each: each.at)
    peaks = [each for each in ours if has_peak(each)]
    times = [each for each in ours if has_step_time(each)]
    found = Learned(
        format=FORMAT,
        version=version,
        made_at=datetime.now(UTC).isoformat(timespec="microseconds"),
        peaks=tuple(_peak_errors(group) for group in _grouped(peaks, lambda each: each.kind)),
        times=tuple(_time_errors(group) for group in _grouped(times, _time_key)),
    )
    left_out = LeftOut(
        of_other_versions=len(records) - len(ours),
        without_peak=len(ours) - len(peaks),
        without_step_time=len(ours) - len(times),
    )
    return found, left_out


def has_peak(record: RunRecord) -> bool:
    """Whether a run says something about predicted peaks."""
    is_comparable = record.level is Level.INSTANT and not record.resumed
    return is_comparable and _is_plausible(_ratio(record.measured_allocated_bytes, record.predicted_allocated_bytes))


def has_step_time(record: RunRecord) -> bool:
    """Whether a run says something about predicted step times."""
    return _is_plausible(_ratio(record.measured_step_s, record.predicted_step_s))


def _ratio(measured: float | None, predicted: float | None) -> float:
    """Return measured / predicted; 0 where one of them is not known."""
    return measured / predicted if measured and predicted else 0.0


def _is_plausible(ratio: float) -> bool:
    return LEAST_RATIO <= ratio <= MOST_RATIO


def _grouped(records: Iterable[RunRecord], key: Callable[[RunRecord], Key]) -> Iterator[list[RunRecord]]:
    """Yield the records of each key, oldest first; keys in order of their text, so that files compare."""
    groups: dict[Key, list[RunRecord]] = {}
    for record in records:
        groups.setdefault(key(record), []).append(record)
    yield from (groups[each] for each in sorted(groups, key=str))


def _newest(records: Iterable[RunRecord]) -> list[RunRecord]:
    """Return the last record of each setup; ``records``: oldest first."""
    return list({record.setup: record for record in records}.values())


def _time_key(record: RunRecord) -> tuple[str, ...]:
    made_on = (record.device, record.machine, record.calibration)
    return *made_on, record.model, record.strategy, record.activation_checkpointing


def _peak_errors(records: Sequence[RunRecord]) -> PeakErrors:
    newest = _newest(records)
    allocated = [_ratio(each.measured_allocated_bytes, each.predicted_allocated_bytes) for each in newest]
    reserved = [_ratio(each.measured_reserved_bytes, each.predicted_reserved_bytes) for each in newest]
    return PeakErrors(
        kind=records[0].kind,
        num_runs=len(records),
        newest=records[-1].at,
        largest_bytes=max(each.predicted_allocated_bytes for each in newest),
        allocated=tuple(sorted(allocated)),
        reserved=tuple(sorted(filter(_is_plausible, reserved))),
    )


def _time_errors(records: Sequence[RunRecord]) -> TimeErrors:
    first, newest = records[0], _newest(records)
    return TimeErrors(
        device=first.device,
        machine=first.machine,
        calibration=first.calibration,
        model=first.model,
        strategy=first.strategy,
        activation_checkpointing=first.activation_checkpointing,
        num_runs=len(records),
        newest=records[-1].at,
        ratios=tuple(sorted(_ratio(each.measured_step_s, each.predicted_step_s) for each in newest)),
    )


def require_enough(found: Learned, *, num_runs: int, left_out: LeftOut, where: Path) -> None:
    """Refuse runs that change nothing.

    Raises:
        CalibrationError: says what is needed, and how much of it there is.
    """
    by_strategy: dict[str, int] = {}
    for peak in found.peaks:
        by_strategy[peak.kind.strategy_name] = by_strategy.get(peak.kind.strategy_name, 0) + len(peak.allocated)
    by_device: dict[str, int] = {}
    for time in found.times:
        by_device[time.device] = by_device.get(time.device, 0) + len(time.ratios)
    if max(by_strategy.values(), default=0) >= FEWEST_RECORDS or max(by_device.values(), default=0) >= FEWEST_SETUPS:
        return
    raise CalibrationError(
        f"too few runs to learn from: {where} has {num_runs}, {left_out.of_other_versions} of them of other versions. "
        f"Intervals of peak memory need {FEWEST_RECORDS} different setups of one strategy ({_counted(by_strategy)}), "
        f"step times {FEWEST_SETUPS} on one device ({_counted(by_device)}); train, or run `scaling bench` or `scaling "
        f"measure`, with other lengths, micro batches or models"
    )


def _counted(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} of {name}" for name, count in counts.items()) or "there are none"
