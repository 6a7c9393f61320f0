"""The order of preference among plans that fit, and its Pareto front.

The fastest plan has the first place. All plans within `TIE` of its step time count as equally fast, those within the
next `TIE` of those too, and so on; among equals the simpler variant comes first (`strategies.search`), and within a
variant the faster plan. Of two variants that differ in the loss alone, the less simple one comes first where it is not
slower and needs less memory. Where no time is known all plans are equally fast: the simplest variant comes first, with
its largest micro batch.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from strategies.plan import Plan, StrategyName
from strategies.planner.sweep import Fit, Sweep
from strategies.time.step_time import StepTime

TIE = 0.025
"""Of a step time: what the time model cannot tell apart: its median error is 2.7 % (docs/time.md)."""
MAX_ALTERNATIVES = 10
MAX_FRONT = 20


def ranked(sweep: Sweep, fits: Iterable[Fit]) -> list[Fit]:
    """Return of each variant its fastest plan, in order of preference.

    ``fits``: of each variant the largest micro batch that fits.
    """
    found = [_fastest(sweep, fit) for fit in fits]
    preference = _Preferences.among(found)
    return sorted(found, key=lambda fit: preference.of(fit, fit.plan, fit.time))


def _fastest(sweep: Sweep, fit: Fit) -> Fit:
    """Return the largest micro batch, or a smaller one where that is faster, as it may be on CPUs."""
    if fit.time is None:
        return fit
    best, seconds = fit, fit.time.total_s
    for plan, _ in sweep.smaller(fit):
        time = sweep.time_of(fit.order, plan)
        if time is not None and time.total_s < seconds and (smaller := sweep.fit_of(fit, plan)) is not None:
            best, seconds = smaller, time.total_s
    return best


def best_by_strategy(best: Iterable[Fit]) -> list[Fit]:
    """Return the first plan of every strategy, in the order of the strategies."""
    first: dict[StrategyName, Fit] = {}
    for fit in best:
        first.setdefault(fit.plan.strategy, fit)
    return [first[name] for name in StrategyName if name in first]


def in_order(sweep: Sweep, best: list[Fit]) -> Iterator[Fit]:
    """Yield every plan that fits, also those with smaller micro batches, in order of preference.

    ``best``: of each variant the largest micro batch that fits.
    """
    for _, _, fit, plan in sorted(_open_plans(sweep, best), key=lambda each: each[0]):
        found = fit if plan is fit.plan else sweep.fit_of(fit, plan)
        if found is not None:
            yield found


def pareto_front(sweep: Sweep, best: list[Fit]) -> list[Fit]:
    """Return, in order of preference, each plan that needs less memory than every one before it.

    ``best``: of each variant the largest micro batch that fits. Smaller ones are estimated only where their floor is
    below the lowest plan so far.
    """
    lowest, front = math.inf, list[Fit]()
    for _, floor, fit, plan in sorted(_open_plans(sweep, best), key=lambda each: each[0]):
        if floor >= lowest:
            continue
        found = fit if plan is fit.plan else sweep.fit_of(fit, plan)
        if found is not None and found.estimate.device_bytes < lowest:
            lowest = found.estimate.device_bytes
            front.append(found)
    return _thinned(front)


Preference = tuple[int, int, float, int]
_LAST = 10**9


@dataclass(frozen=True, slots=True, kw_only=True)
class _Preferences:
    """What decides the order: the time of the fastest plan, and the place of every variant among equals."""

    fastest_s: float
    places: Mapping[int, int]
    """By the order of the variant."""

    @classmethod
    def among(cls, best: Sequence[Fit]) -> _Preferences:
        """Return the preferences among the best plans of all variants."""
        fastest = min((fit.time.total_s for fit in best if fit.time is not None), default=0.0)
        return cls(fastest_s=fastest, places=_places(best))

    def of(self, fit: Fit, plan: Plan, time: StepTime | None) -> Preference:
        """Return a key that is lower for the plan of a variant that comes first."""
        place = self.places[fit.order]
        if time is None:
            # Behind all plans whose time is known, where there are any.
            return int(self.fastest_s > 0) * _LAST, place, 0.0, -plan.micro_batch_size
        ties_behind = math.floor(math.log(time.total_s / self.fastest_s) / math.log1p(TIE))
        return max(0, ties_behind), place, time.total_s, -plan.micro_batch_size


def _places(best: Iterable[Fit]) -> dict[int, int]:
    """Return the place of each variant from simple to less simple.

    The framework's own loss is the simpler one, but nobody gains by it where another is faster and smaller.
    """
    in_order = sorted(best, key=lambda fit: fit.order)
    places = {fit.order: fit.order for fit in in_order}
    for simpler, other in pairwise(in_order):
        if _differ_in_the_loss_alone(simpler, other) and _beats(other, simpler):
            places[simpler.order], places[other.order] = other.order, simpler.order
    return places


def _differ_in_the_loss_alone(one: Fit, other: Fit) -> bool:
    return replace(one.variant, job=other.variant.job) == other.variant


def _beats(one: Fit, other: Fit) -> bool:
    """Whether a plan is not slower than another and needs less memory."""
    if one.time is None or other.time is None:
        return False
    return one.time.total_s <= other.time.total_s and one.estimate.device_bytes < other.estimate.device_bytes


def _open_plans(sweep: Sweep, best: list[Fit]) -> Iterator[tuple[Preference, int, Fit, Plan]]:
    """Yield every plan that may fit: preference, floor under its device bytes, the variant's best plan, itself."""
    preference = _Preferences.among(best)
    for fit in best:
        yield preference.of(fit, fit.plan, fit.time), fit.estimate.device_bytes, fit, fit.plan
        for plan, floor in sweep.smaller(fit):
            yield preference.of(fit, plan, sweep.time_of(fit.order, plan)), floor, fit, plan


def _thinned(front: list[Fit]) -> list[Fit]:
    """Return at most `MAX_FRONT` plans, evenly from the first to the last."""
    if len(front) <= MAX_FRONT:
        return front
    return [front[round(index * (len(front) - 1) / (MAX_FRONT - 1))] for index in range(MAX_FRONT)]
