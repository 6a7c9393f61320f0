"""A plan for a model whose activations have no closed forms: plans are run or traced, one after the other."""

from __future__ import annotations

from collections.abc import Callable

from strategies.decision import Decision, Rejection
from strategies.errors import NoPlanFitsError, PlanError
from strategies.estimate import Estimate
from strategies.explain import nothing_fits
from strategies.plan import Plan
from strategies.planner.safety import shortage
from strategies.planner.sweep import Question, rejection_of
from strategies.search import Variant, micro_batch_sizes, sizes_of, variants

NOT_RANKED = (
    "the model has no closed forms, so plans were tried from the simplest on and the first that fits was taken: it is "
    "not known to be the fastest"
)


def first_that_fits(question: Question, *, model: str, estimate: Callable[[Plan], Estimate]) -> Decision:
    """Return the simplest plan that fits, with its largest micro batch that does; every plan costs one estimate.

    ``estimate``: of one plan of the question's job. Simple means what `strategies.search` says.

    Raises:
        PlanError: no plan may be offered.
        NoPlanFitsError: nothing fits.
    """
    rejected: list[Rejection] = []
    for variant in _offered(question):
        found = _largest(variant, question, estimate)
        if not isinstance(found, Rejection):
            plan, its_estimate = found
            return Decision(
                model=model,
                num_params=question.spec.num_params,
                cluster=question.cluster,
                job=variant.job,
                plan=plan,
                estimate=its_estimate,
                rejected=tuple(rejected),
                safety=question.safety,
                warnings=(NOT_RANKED,),
            )
        rejected.append(found)
    raise NoPlanFitsError(nothing_fits(tuple(rejected), cluster=question.cluster, safety=question.safety))


def _offered(question: Question) -> list[Variant]:
    found = variants(question.spec, cluster=question.cluster, job=question.job, fixed=question.fixed)
    if question.why_not is None:
        return found
    reasons = [question.why_not(variant.job, variant.plan(1, gpus=question.cluster.gpus)) for variant in found]
    if all(reasons):
        raise PlanError(str(reasons[0]))
    return [variant for variant, reason in zip(found, reasons, strict=True) if reason is None]


def _largest(
    variant: Variant, question: Question, estimate: Callable[[Plan], Estimate]
) -> tuple[Plan, Estimate] | Rejection:
    """Return the largest micro batch that fits; as more samples need more memory, by halving what is in question."""
    cluster = question.cluster
    sizes = micro_batch_sizes(cluster, question.job, question.fixed)
    plans = [
        variant.plan(size, gpus=cluster.gpus)
        for size in sizes_of(variant, sizes, cluster=cluster, fixed=question.fixed)
    ]
    best: tuple[Plan, Estimate] | None = None
    rejection: Rejection | None = None
    first, last = 0, len(plans) - 1
    index = 0  # the largest alone is enough where it fits
    while first <= last:
        found = estimate(plans[index])
        lacking = shortage(found, cluster=cluster, safety=question.safety)
        if lacking is None:
            best, last = (plans[index], found), index - 1
        else:
            rejection, first = rejection_of(variant, plans[index], found, lacking, cluster=cluster), index + 1
        index = (first + last) // 2
    if best is not None:
        return best
    assert rejection is not None, "a variant has at least one micro batch"
    return rejection
