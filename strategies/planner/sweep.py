"""Estimates every plan of a question as far as its answer needs: for each variant the largest micro batch that fits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from strategies.adapt import as_trained
from strategies.cluster import Cluster
from strategies.decision import RankedPlan, Rejection, Resource
from strategies.errors import PlanError, SpecError
from strategies.estimate import Estimate
from strategies.job import Job
from strategies.learning.run_kind import kind_of, model_of
from strategies.learning.step_correction import known_step_time
from strategies.memory.host import host_ledger
from strategies.memory.predict import predict
from strategies.memory.reserved import context_bytes
from strategies.model_spec import ModelSpec
from strategies.plan import Plan
from strategies.planner.bound import Bound, lower_bound
from strategies.planner.buckets import WITH_BUCKETS, smaller_buckets
from strategies.planner.safety import capacity, margin, needed_bytes, shortage
from strategies.search import FixedParts, Variant, micro_batch_sizes, sizes_of, variants
from strategies.time.step_time import StepTime

WhyNot = Callable[[Job, Plan], str | None]
"""Why a plan may not be offered, for instance because the trainer cannot run it; None where it may."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is to be planned: everything that decides the answer."""

    spec: ModelSpec
    cluster: Cluster
    job: Job
    fixed: FixedParts = field(default_factory=FixedParts)
    safety: float
    why_not: WhyNot | None = None

    def on(
        self, *, cluster: Cluster | None = None, job: Job | None = None, fixed: FixedParts | None = None
    ) -> Question:
        """Return the same question about another cluster, job or fixed parts."""
        return replace(self, cluster=cluster or self.cluster, job=job or self.job, fixed=fixed or self.fixed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """A plan that fits."""

    order: int
    """Of its variant: 0 is the simplest."""
    variant: Variant
    plan: Plan
    estimate: Estimate
    time: StepTime | None

    def ranked(self, *, cluster: Cluster, safety: float) -> RankedPlan:
        """Return what a decision keeps of it."""
        estimate = self.estimate
        return RankedPlan(
            plan=self.plan,
            loss=self.variant.job.loss,
            device_bytes=estimate.device_bytes,
            needed_bytes=needed_bytes(estimate, cluster=cluster, safety=safety),
            host_bytes=None if estimate.host is None else estimate.host.peak.total_bytes,
            peak=estimate.memory.peak,
            time=self.time,
        )


class Sweep:
    """All variants of a question; nothing is estimated twice."""

    def __init__(self, question: Question) -> None:
        """Find the variants and their floors.

        Raises:
            PlanError: no plan obeys the fixed parts, or none of those may be offered.
            SpecError: no variant has closed forms.
        """
        self.question = question
        cluster = question.cluster
        self._sizes = micro_batch_sizes(cluster, question.job, question.fixed)
        self._context = context_bytes(cluster)
        found = variants(question.spec, cluster=cluster, job=question.job, fixed=question.fixed)
        self._variants = list(_predictable(question, _allowed(question, found)))
        self._model = model_of(as_trained(question.spec, question.job))
        self._known: dict[tuple[int, Plan], Estimate] = {}
        self._times: dict[tuple[int, Plan], StepTime | None] = {}

    def outcomes(self) -> Iterator[Fit | Rejection]:
        """Yield for each variant its largest micro batch that fits, or the closest one that does not."""
        for order, (variant, bound) in enumerate(self._variants):
            yield self._largest(order, variant, bound)

    def fits(self) -> Iterator[Fit]:
        """Yield for each variant that fits its largest micro batch that does."""
        for order, (variant, bound) in enumerate(self._variants):
            if self._is_possible(order, variant, bound):
                found = self._largest(order, variant, bound)
                assert isinstance(found, Fit)
                yield found

    def any_fits(self) -> bool:
        """Whether any plan fits; the variants that save most, which are the least simple ones, are looked at first."""
        numbered = reversed(list(enumerate(self._variants)))
        return any(self._is_possible(order, variant, bound) for order, (variant, bound) in numbered)

    def smaller(self, fit: Fit) -> Iterator[tuple[Plan, int]]:
        """Yield the plans of a variant with smaller micro batches, each with the floor under its device bytes."""
        _, bound = self._variants[fit.order]
        for size in self._sizes_of(fit.variant):
            if size < fit.plan.micro_batch_size:
                plan = fit.variant.plan(size, gpus=self.question.cluster.gpus, buckets=fit.plan.buckets)
                yield plan, bound.num_bytes(size) + self._context

    def fit_of(self, fit: Fit, plan: Plan) -> Fit | None:
        """Return another plan of the same variant as a fit, None where it does not fit."""
        estimate = self._estimate(fit.order, fit.variant, plan)
        if self._shortage(estimate) is not None:
            return None
        return replace(fit, plan=plan, estimate=estimate, time=self.time_of(fit.order, plan))

    def time_of(self, order: int, plan: Plan) -> StepTime | None:
        """Return the time of a step of a variant's plan, None where the rates of the device are not known."""
        key = (order, plan)
        if key not in self._times:
            job, question = self._variants[order][0].job, self.question
            self._times[key] = known_step_time(question.spec, cluster=question.cluster, job=job, plan=plan)
        return self._times[key]

    def _is_possible(self, order: int, variant: Variant, bound: Bound) -> bool:
        """Whether any micro batch of a variant fits.

        More samples never need less, all else being equal: of those that accumulate the smallest decides, and there is
        one that does not.
        """
        plans = self._plans(variant, bound)
        deciding = plans[-1:] if len(plans) < 2 or _accumulates(plans[0]) else [plans[-1], plans[0]]
        return any(
            not self._lacks_host_memory(variant, plan) and self._tried(order, variant, plan)[2] is None
            for plan in deciding
        )

    def _largest(self, order: int, variant: Variant, bound: Bound) -> Fit | Rejection:
        rejection = None
        for whole in self._plans(variant, bound):
            plan, estimate, lacking = self._tried(order, variant, whole)
            if lacking is None:
                time = self.time_of(order, plan)
                return Fit(order=order, variant=variant, plan=plan, estimate=estimate, time=time)
            rejection = rejection_of(variant, plan, estimate, lacking, cluster=self.question.cluster)
            if lacking[0] is Resource.HOST_MEMORY and _accumulates(plan):
                break  # a node holds as much with smaller micro batches
        return rejection or self._below_floor(variant, bound)

    def _plans(self, variant: Variant, bound: Bound) -> list[Plan]:
        """Return a variant's plans whose floor is not above the memory, largest micro batch first."""
        room = self.question.cluster.gpu.memory_bytes - self._context
        return [
            variant.plan(size, gpus=self.question.cluster.gpus)
            for size in self._sizes_of(variant)
            if self._with_margin(variant, bound.num_bytes(size)) <= room
        ]

    def _with_margin(self, variant: Variant, num_bytes: int) -> float:
        """Return what torch allocates in a variant's run at the question's safety, where so much is predicted."""
        kind = kind_of(variant, on_cpu=self.question.cluster.gpu.is_cpu, model=self._model)
        return num_bytes * margin(kind, self.question.safety, predicted_bytes=num_bytes)

    def _tried(self, order: int, variant: Variant, plan: Plan) -> tuple[Plan, Estimate, tuple[Resource, int] | None]:
        """Return the plan, with smaller buckets where those let it fit, its estimate, and what it lacks."""
        estimate = self._estimate(order, variant, plan)
        lacking = self._shortage(estimate)
        if lacking is not None and lacking[0] is Resource.GPU_MEMORY:
            return self._with_smaller_buckets(order, variant, plan, estimate, lacking)
        return plan, estimate, lacking

    def _lacks_host_memory(self, variant: Variant, plan: Plan) -> bool:
        """Whether a node's memory is too small for a plan: found without laying out what is on the GPUs."""
        cluster, spec = self.question.cluster, as_trained(self.question.spec, variant.job)
        if cluster.host_memory_bytes is None or cluster.gpu.is_cpu:
            return False
        host = host_ledger(spec, cluster=cluster, job=variant.job, plan=plan)
        return host.peak.total_bytes > cluster.host_memory_bytes

    def _sizes_of(self, variant: Variant) -> list[int]:
        return sizes_of(variant, self._sizes, cluster=self.question.cluster, fixed=self.question.fixed)

    def _with_smaller_buckets(
        self, order: int, variant: Variant, plan: Plan, estimate: Estimate, lacking: tuple[Resource, int]
    ) -> tuple[Plan, Estimate, tuple[Resource, int] | None]:
        """Return the plan with the largest buckets that let it fit; as it was where no size does."""
        # More than the buckets hold cannot be saved.
        if variant.strategy not in WITH_BUCKETS or lacking[1] > estimate.memory.peak.causes.communication_buckets:
            return plan, estimate, lacking
        for buckets in smaller_buckets(variant.buckets):
            smaller = replace(plan, buckets=buckets)
            less = self._estimate(order, variant, smaller)
            if self._shortage(less) is None:
                return smaller, less, None
        return plan, estimate, lacking

    def _estimate(self, order: int, variant: Variant, plan: Plan) -> Estimate:
        known = self._known.get((order, plan))
        if known is None:
            known = predict(self.question.spec, cluster=self.question.cluster, job=variant.job, plan=plan)
            self._known[order, plan] = known
        return known

    def _shortage(self, estimate: Estimate) -> tuple[Resource, int] | None:
        return shortage(estimate, cluster=self.question.cluster, safety=self.question.safety)

    def _below_floor(self, variant: Variant, bound: Bound) -> Rejection:
        """Return the rejection of a variant whose floor is above the memory with the smallest micro batch."""
        cluster, size = self.question.cluster, self._sizes[-1]
        needed = round(self._with_margin(variant, bound.num_bytes(size))) + self._context
        return Rejection(
            plan=variant.plan(size, gpus=cluster.gpus),
            loss=variant.job.loss,
            needed_bytes=needed,
            over_by_bytes=needed - cluster.gpu.memory_bytes,
            peak=bound.moment(size),
            is_lower_bound=True,
        )


def rejection_of(
    variant: Variant, plan: Plan, estimate: Estimate, lacking: tuple[Resource, int], *, cluster: Cluster
) -> Rejection:
    """Return why a plan that lacks so many bytes of a resource is not taken."""
    resource, over = lacking
    return Rejection(
        plan=plan,
        loss=variant.job.loss,
        resource=resource,
        needed_bytes=over + capacity(resource, cluster),
        over_by_bytes=over,
        peak=estimate.memory.peak,
    )


def _accumulates(plan: Plan) -> bool:
    return plan.gradient_accumulation_steps > 1


def _allowed(question: Question, found: list[Variant]) -> list[Variant]:
    """Return the variants that may be offered.

    Raises:
        PlanError: none may; says why not the simplest one.
    """
    why_not, gpus = question.why_not, question.cluster.gpus
    if why_not is None:
        return found
    reasons = [why_not(variant.job, variant.plan(1, gpus=gpus)) for variant in found]
    allowed = [variant for variant, reason in zip(found, reasons, strict=True) if reason is None]
    if not allowed:
        raise PlanError(str(reasons[0]))
    return allowed


def has_forms(question: Question) -> bool:
    """Whether any plan's activations have closed forms."""
    found = variants(question.spec, cluster=question.cluster, job=question.job, fixed=question.fixed)
    try:
        return next(_predictable(question, found), None) is not None
    except SpecError:
        return False


def _predictable(question: Question, found: list[Variant]) -> Iterator[tuple[Variant, Bound]]:
    """Yield the variants whose activations have closed forms.

    Raises:
        SpecError: none has.
    """
    error: SpecError | None = None
    any_found = False
    for variant in found:
        try:
            bound = lower_bound(question.spec, variant, cluster=question.cluster)
        except SpecError as missing:
            error = error or missing
            continue
        any_found = True
        yield variant, bound
    if error is not None and not any_found:
        raise error
