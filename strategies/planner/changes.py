"""What would make a plan fit, or be faster: single changes to what was asked, and where none helps, two together."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, islice

from strategies.decision import Suggestion
from strategies.errors import PlanError
from strategies.planner.kinds import Change, Kind, kinds_of_change
from strategies.planner.ranking import TIE
from strategies.planner.reverse import best_fit
from strategies.planner.safety import needed_bytes
from strategies.planner.sweep import Fit, Question

MAX_SUGGESTIONS = 8


def what_if(question: Question) -> tuple[Suggestion, ...]:
    """Return changes after which a plan fits; where one does already, those after which one is faster.

    Two changes together are looked for where nothing fits and none alone is enough. Every suggestion has been planned:
    it fits.

    Raises:
        PlanError: no plan obeys the fixed parts.
    """
    chosen = best_fit(question)
    kinds = kinds_of_change(question, is_fitting=chosen is not None)
    found = [each for kind in kinds if (each := _first(kind(question), chosen=chosen)) is not None]
    if not found and chosen is None:
        found = list(islice(_doubles(question, kinds), MAX_SUGGESTIONS))
    return tuple(found[:MAX_SUGGESTIONS])


def _first(changes: Iterator[Change], *, chosen: Fit | None = None, before: Change | None = None) -> Suggestion | None:
    """Return the first change of a kind that helps; ``before``: the one that was made before it."""
    for change in changes:
        try:
            fit = best_fit(change.question)
        except PlanError:
            continue  # parts that are still fixed do not go with it
        if fit is not None and (chosen is None or _is_faster(fit, chosen)):
            made = (before, change) if before else (change,)
            return _suggestion(tuple(each.flags(fit) for each in made), change.question, fit)
    return None


def _is_faster(fit: Fit, chosen: Fit) -> bool:
    """Whether more tokens are handled in a second, by more than times can tell apart."""
    if fit.time is None or chosen.time is None:
        return False
    rate, before = (
        each.variant.job.tokens_per_step / time.total_s for each, time in ((fit, fit.time), (chosen, chosen.time))
    )
    return rate > before * (1 + TIE)


def _suggestion(words: tuple[str, ...], question: Question, fit: Fit) -> Suggestion:
    return Suggestion(
        changes=words,
        cluster=question.cluster,
        job=fit.variant.job,
        plan=fit.plan,
        safety=question.safety,
        device_bytes=fit.estimate.device_bytes,
        needed_bytes=needed_bytes(fit.estimate, cluster=question.cluster, safety=question.safety),
        time=fit.time,
    )


def _doubles(question: Question, kinds: list[Kind]) -> Iterator[Suggestion]:
    """Yield pairs of changes: of the first kind a few, of the second kind the first that helps."""
    for one, two in combinations(kinds, 2):
        tried = (_first(two(change.question), before=change) for change in _few(one(question)))
        if (found := next((each for each in tried if each is not None), None)) is not None:
            yield found


def _few(changes: Iterator[Change]) -> list[Change]:
    """Return the smallest change of a kind, one in the middle and the largest."""
    found = list(changes)
    return [found[index] for index in sorted({0, len(found) // 2, len(found) - 1})] if found else []
