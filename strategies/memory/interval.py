"""The interval of a prediction, from the errors of earlier ones: those that come with the package and the user's own.

Which errors count for a plan. A *kind* of run is a strategy, whether it offloads, and its activation checkpointing, on
CPUs or on GPUs. Repetitions of a setup count once, with the newest.

1. Where the user has 19 setups of the plan's kind on record, its own model among them, those alone.
2. Else where there are 19 of the strategy with any activation checkpointing, its own model among them and 3 of the
   plan's own kind, those.
3. Else the shipped errors of such devices, with the user's of the strategy added.

In 2 and 3 what the user has of the plan's own kind may widen the interval, to the least and the largest ratio seen, and
never narrows it: few records cannot make a plan look safer. Nor can those of other models or of small runs: for a
peak of more than twice the largest one on record the interval is no narrower than 3 says. More than nine in ten needs
more than 19. Errors of one strategy say nothing of another's.

The predicted peak itself is not moved. It is a sum of causes that are checked one by one, and moving it by the median
of earlier runs makes it worse for runs held aside (benchmarks/results/learned_records.md); what runs like these take
beyond it is in both ends, which are ranks of measured / predicted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache

from strategies.conformal import COVERAGE, FEWEST_RECORDS, conformal_range
from strategies.errors import PlanError
from strategies.estimate import Interval
from strategies.learning.learned import Learned, PeakErrors, learned
from strategies.learning.run_kind import RunKind
from strategies.records import Device, Kind, shipped_records

FEWEST_OF_ITS_OWN = 3
"""Records of the plan's activation checkpointing among those of its strategy, or these say nothing of it."""
REACH = 2
"""Times the largest peak on record: a choice, not measured. What a run takes beyond the formulas may grow with it."""
SHIPPED = "recorded errors"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ends:
    """The range of measured / predicted, and what it rests on."""

    low: float
    high: float
    source: str


def peak_interval(kind: RunKind, *, allocated_bytes: int, reserved_bytes: int) -> Interval | None:
    """Return where a measured peak lies nine times in ten; None where too few errors are on record.

    From the allocated peak's lower end to the reserved peak's upper end, since tools report either. The ends are ranks
    of measured / predicted among the records (split conformal prediction: Lei et al. 2018, arXiv:1604.04173), which
    hold for runs like the recorded ones.
    """
    known = learned()
    allocated = ends(kind, known, predicted_bytes=allocated_bytes)
    reserved = ends(kind, known, predicted_bytes=allocated_bytes, peak=Kind.RESERVED)
    if allocated is None or reserved is None:
        return None
    return Interval(
        low_bytes=round(allocated_bytes * allocated.low),
        high_bytes=round(reserved_bytes * reserved.high),
        source=allocated.source,
    )


def upper_ratio(kind: RunKind | Device, *, coverage: float, predicted_bytes: int = 0) -> float:
    """Return the upper end of measured / predicted in an interval of ``coverage``; 1 where nothing is on record for it.

    Raises:
        PlanError: there are records, but too few for so wide an interval.
    """
    found = ends(kind, learned(), predicted_bytes=predicted_bytes, coverage=coverage)
    ratios = shipped_ratios(_shipped_device(kind))
    if found is None and len(ratios) >= FEWEST_RECORDS:
        raise PlanError(
            f"safety={coverage} needs more than the {len(ratios)} predictions on record for such a device; "
            f"give {COVERAGE} or less"
        )
    return 1.0 if found is None else found.high


def ends(
    kind: RunKind | Device,
    known: Learned,
    *,
    predicted_bytes: int,
    coverage: float = COVERAGE,
    peak: Kind = Kind.ALLOCATED,
    shipped: tuple[float, ...] | None = None,
) -> Ends | None:
    """Return between which ratios of measured / predicted such a run's peak lies, by the rule above; None for too few.

    ``kind``: where only the device is known, the shipped errors alone. ``predicted_bytes``: the allocated peak,
    whichever of the two is asked for. ``shipped``: other errors in the place of those that come with the package.
    """
    shipped = shipped_ratios(_shipped_device(kind)) if shipped is None else shipped
    if isinstance(kind, Device):
        return _ends(conformal_range(shipped, coverage=coverage), SHIPPED)
    by_reach = _ends_by_reach(kind, known, shipped, coverage, peak)
    return by_reach.near if predicted_bytes <= REACH * by_reach.largest_bytes else by_reach.far


@dataclass(frozen=True, slots=True, kw_only=True)
class _ByReach:
    near: Ends | None
    largest_bytes: int
    """The highest peak among the records that ``near`` rests on."""
    far: Ends | None


@lru_cache(maxsize=1024)
def _ends_by_reach(kind: RunKind, known: Learned, shipped: tuple[float, ...], coverage: float, peak: Kind) -> _ByReach:
    """Return the ends for peaks like the recorded ones, and for larger ones."""
    family = [each for each in known.peaks if _is_of_strategy(each.kind, kind)]
    alike = [each for each in family if each.kind.activation_checkpointing is kind.activation_checkpointing]
    own, broad = _ratios(alike, peak), _ratios(family, peak)
    source = f"{SHIPPED} and your {_records(broad)} of {kind.strategy_name}" if broad else SHIPPED
    far = _ends(_widened(conformal_range((*shipped, *broad), coverage=coverage), own), source)
    near, used = _ends(conformal_range(own, coverage=coverage), f"your {_records(own)} of {kind.name}"), alike
    if near is None and len(own) >= FEWEST_OF_ITS_OWN:
        found = _widened(conformal_range(broad, coverage=coverage), own)
        near, used = _ends(found, f"your {_records(broad)} of {kind.strategy_name}"), family
    if near is None or kind.model not in {each.kind.model for each in used}:
        return _ByReach(near=far, largest_bytes=0, far=far)
    return _ByReach(near=near, largest_bytes=max(each.largest_bytes for each in used), far=_either(near, far))


def _is_of_strategy(one: RunKind, other: RunKind) -> bool:
    """Whether two runs differ in activation checkpointing and model at most."""
    first, second = ((each.device, each.strategy, each.offloads) for each in (one, other))
    return first == second


def _ends(found: tuple[float, float] | None, source: str) -> Ends | None:
    return None if found is None else Ends(low=found[0], high=found[1], source=source)


def _either(near: Ends, far: Ends | None) -> Ends:
    """Return the ends for larger peaks than on record: no narrower than with the shipped errors."""
    if far is None:
        return near
    return Ends(low=min(near.low, far.low), high=max(near.high, far.high), source=f"{near.source}, and {SHIPPED}")


def _shipped_device(kind: RunKind | Device) -> Device:
    return kind if isinstance(kind, Device) else kind.shipped_device


def _records(ratios: Sequence[float]) -> str:
    return f"{len(ratios)} record{'' if len(ratios) == 1 else 's'}"


def _widened(found: tuple[float, float] | None, seen: Sequence[float]) -> tuple[float, float] | None:
    if found is None or not seen:
        return found
    return min(found[0], *seen), max(found[1], *seen)


def _ratios(errors: Iterable[PeakErrors], peak: Kind) -> tuple[float, ...]:
    """Return the ratios of one peak; a CPU has no caching allocator, so that its live tensors stand for both."""
    return tuple(
        ratio
        for each in errors
        for ratio in (each.reserved if peak is Kind.RESERVED and each.kind.device is Device.GPU else each.allocated)
    )


@cache
def shipped_ratios(device: Device) -> tuple[float, ...]:
    """Return measured / predicted of the records that come with the package, each of its own kind of peak."""
    return tuple(record.measured_over_predicted for record in shipped_records() if record.device is device)
