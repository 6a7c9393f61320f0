"""What holds for any question: more memory, the front, repeatability, suggestions that fit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from strategies.decision import Decision
from strategies.errors import NoPlanFitsError, SpecError
from strategies.learning.step_correction import known_step_time
from strategies.memory.predict import predict
from strategies.planner.bound import Bound, lower_bound
from strategies.planner.changes import what_if
from strategies.planner.ranking import TIE
from strategies.planner.safety import needed_bytes, shortage
from strategies.planner.sweep import Fit, Question, Sweep
from strategies.search import Variant, candidates, micro_batch_sizes, variants
from strategies.select import decide
from strategies.serialize import from_json, to_json
from tests.strategies.planner.builders import questions

slow_first_time = settings(deadline=None, max_examples=20, suppress_health_check=list(HealthCheck))


def decided(question: Question) -> Decision | None:
    try:
        return decide(
            question.spec,
            cluster=question.cluster,
            job=question.job,
            fixed=question.fixed,
            safety=question.safety,
        )
    except NoPlanFitsError:
        return None


@slow_first_time
@given(question=questions(), more=st.floats(min_value=1.01, max_value=3))
def test_more_memory_never_makes_the_chosen_plan_slower(question: Question, more: float) -> None:
    less = decided(question)
    assume(less is not None)
    gpu = question.cluster.gpu
    larger = replace(question.cluster, gpu=replace(gpu, memory_bytes=round(gpu.memory_bytes * more)))
    found = decided(question.on(cluster=larger))
    assert less is not None
    assert less.time is not None
    assert found is not None
    assert found.time is not None
    # Times within a tie count as equal, and the simpler plan may come with the memory it needs.
    assert found.time.total_s <= less.time.total_s * (1 + TIE)


@slow_first_time
@given(question=questions())
def test_the_chosen_plan_is_the_fastest_that_fits_and_stands_on_the_front(question: Question) -> None:
    """Against every plan there is, one by one, without any of the search's shortcuts."""
    jobs = {variant.job for variant in _variants(question)}
    fitting = []
    for job in jobs:
        for plan in candidates(question.spec, cluster=question.cluster, job=job, fixed=question.fixed):
            try:
                estimate = predict(question.spec, cluster=question.cluster, job=job, plan=plan)
            except SpecError:  # selective activation checkpointing of adapters, for instance, has no forms
                continue
            if shortage(estimate, cluster=question.cluster, safety=question.safety) is None:
                time = known_step_time(question.spec, cluster=question.cluster, job=job, plan=plan)
                assert time is not None
                fitting.append((time.total_s, estimate.device_bytes))
    decision = decided(question)
    assert (decision is None) is (not fitting)
    if decision is None or decision.time is None:
        return
    fastest = min(seconds for seconds, _ in fitting)
    assert decision.time.total_s <= fastest * (1 + TIE)
    chosen = decision.front[0]
    assert (chosen.plan, chosen.loss) == (decision.plan, decision.job.loss)
    sizes = [ranked.device_bytes for ranked in decision.front]
    assert sizes == sorted(set(sizes), reverse=True)
    # Nothing that fits needs less memory than the last, and nothing beats a point of the front in both.
    assert sizes[-1] == min(num_bytes for _, num_bytes in fitting)
    for ranked in decision.front:
        assert ranked.time is not None
        assert not any(
            seconds < ranked.time.total_s / (1 + TIE) ** 2 and num_bytes < ranked.device_bytes
            for seconds, num_bytes in fitting
        )


@slow_first_time
@given(question=questions())
def test_no_other_loss_alone_is_faster_and_smaller(question: Question) -> None:
    decision = decided(question)
    assume(decision is not None and decision.time is not None)
    assert decision is not None
    assert decision.time is not None
    chosen = decision.plan
    for other in decision.alternatives:
        batch = {"micro_batch_size": chosen.micro_batch_size, "buckets": chosen.buckets}
        alike = replace(other.plan, gradient_accumulation_steps=chosen.gradient_accumulation_steps, **batch)
        if alike == chosen and other.time is not None:
            assert other.time.total_s > decision.time.total_s or other.device_bytes >= decision.estimate.device_bytes


@slow_first_time
@given(question=questions())
def test_whether_any_plan_fits_is_found_without_all_of_them(question: Question) -> None:
    found = [outcome for outcome in Sweep(question).outcomes() if isinstance(outcome, Fit)]
    assert Sweep(question).any_fits() is bool(found)
    assert list(Sweep(question).fits()) == found


def _variants(question: Question) -> list:
    return variants(question.spec, cluster=question.cluster, job=question.job, fixed=question.fixed)


@slow_first_time
@given(question=questions())
def test_the_same_question_has_the_same_answer_byte_for_byte(question: Question) -> None:
    first, second = decided(question), decided(question)
    assume(first is not None)
    assert to_json(first) == to_json(second)
    assert from_json(Decision, to_json(first), source="test") == first


@slow_first_time
@given(question=questions())
def test_every_suggested_change_fits_when_it_is_applied(question: Question) -> None:
    for suggestion in what_if(question):
        estimate = predict(question.spec, cluster=suggestion.cluster, job=suggestion.job, plan=suggestion.plan)
        assert shortage(estimate, cluster=suggestion.cluster, safety=suggestion.safety) is None
        needed = needed_bytes(estimate, cluster=suggestion.cluster, safety=suggestion.safety)
        assert suggestion.needed_bytes == needed <= suggestion.cluster.gpu.memory_bytes
        assert suggestion.plan.micro_batch_size * suggestion.plan.gradient_accumulation_steps * (
            suggestion.cluster.gpus
        ) == (suggestion.job.global_batch_size)


def _with_closed_forms(question: Question) -> Iterator[tuple[Variant, Bound]]:
    """Yield what the search looks at."""
    for variant in _variants(question):
        with suppress(SpecError):
            yield variant, lower_bound(question.spec, variant, cluster=question.cluster)


@slow_first_time
@given(question=questions())
def test_the_floor_of_a_variant_is_below_every_estimate(question: Question) -> None:
    sizes = micro_batch_sizes(question.cluster, question.job, question.fixed)
    for variant, bound in _with_closed_forms(question):
        for size in (sizes[0], sizes[-1]):
            plan = variant.plan(size, gpus=question.cluster.gpus)
            estimate = predict(question.spec, cluster=question.cluster, job=variant.job, plan=plan)
            assert bound.num_bytes(size) <= estimate.peak_allocated_bytes
