"""The order of preference among plans that fit, and its Pareto front.

The fastest plan has the first place. All plans within `TIE` of its step time count as equally fast, those within the
next `TIE` of those too, and so on; among equals the simpler variant comes first (`strategies.search`), and within a
variant the faster plan. Where no time is known all plans are equally fast: the simplest variant comes first, with its
largest micro batch.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from strategies.plan import Plan, StrategyName
from strategies.planner.sweep import Fit, Sweep
from strategies.time.step_time import StepTime

TIE = 0.01
"""Of a step time: less than the time model can tell apart, whose median error is 2.7 % (docs/time.md)."""
MAX_ALTERNATIVES = 10
MAX_FRONT = 20


def ranked(sweep: Sweep, fits: Iterable[Fit]) -> list[Fit]:
    """Return of each variant its fastest plan, in order of preference.

    ``fits``: of each variant the largest micro batch that fits.
    """
    found = [_fastest(sweep, fit) for fit in fits]
    fastest = _fastest_s(found)
    return sorted(found, key=lambda fit: _preference(fit, fit.plan, fit.time, fastest))


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


def _open_plans(sweep: Sweep, best: list[Fit]) -> Iterator[tuple[Preference, int, Fit, Plan]]:
    """Yield every plan that may fit: preference, floor under its device bytes, the variant's best plan, itself."""
    fastest = _fastest_s(best)
    for fit in best:
        yield _preference(fit, fit.plan, fit.time, fastest), fit.estimate.device_bytes, fit, fit.plan
        for plan, floor in sweep.smaller(fit):
            yield _preference(fit, plan, sweep.time_of(fit.order, plan), fastest), floor, fit, plan


def _fastest_s(fits: Iterable[Fit]) -> float:
    return min((fit.time.total_s for fit in fits if fit.time is not None), default=0.0)


def _preference(fit: Fit, plan: Plan, time: StepTime | None, fastest_s: float) -> Preference:
    if time is None:
        # Behind all plans whose time is known, where there are any.
        return int(fastest_s > 0) * _LAST, fit.order, 0.0, -plan.micro_batch_size
    ties_behind = math.floor(math.log(time.total_s / fastest_s) / math.log1p(TIE))
    return max(0, ties_behind), fit.order, time.total_s, -plan.micro_batch_size


def _thinned(front: list[Fit]) -> list[Fit]:
    """Return at most `MAX_FRONT` plans, evenly from the first to the last."""
    if len(front) <= MAX_FRONT:
        return front
    return [front[round(index * (len(front) - 1) / (MAX_FRONT - 1))] for index in range(MAX_FRONT)]
