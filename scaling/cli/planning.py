"""What ``scaling plan`` was asked: a plan, or one of the questions turned round; and what to say where nothing fits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from typing import Any

from scaling.levels import Question as Estimated
from scaling.levels import estimate_at, estimator
from strategies.decision import Decision
from strategies.errors import NoPlanFitsError, PlanError
from strategies.estimate import Estimate, Level
from strategies.explain import describe_kind, suggestion_line
from strategies.plan import Plan
from strategies.planner.sweep import Question, has_forms
from strategies.planner.without_forms import first_that_fits
from strategies.search import variants
from strategies.select import decide
from strategies.units import format_bytes


class Turn(StrEnum):
    """Which part of the question is asked for instead of given: the flag, without its dashes."""

    SEQ_LEN = "longest-seq-len"
    GLOBAL_BATCH_SIZE = "best-global-batch-size"
    MODEL = "largest-model"
    CLUSTER = "smallest-cluster"


_GIVEN_INSTEAD = {
    Turn.SEQ_LEN: "seq_len",
    Turn.GLOBAL_BATCH_SIZE: "global_batch_size",
    Turn.CLUSTER: "gpus",
}
_NEEDED = (Turn.SEQ_LEN, Turn.GLOBAL_BATCH_SIZE)
"""What has no default: given, or asked for."""
USUAL_HOST_BYTES = 2 * 10**12
"""Of a node of eight GPUs with 80 GB: NVIDIA's data sheets of the DGX A100 640GB and the DGX H100 have 2 TB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A question whose missing part has been found."""

    question: Question
    model: str | None = None
    """Where another one is to be planned than was named."""
    asked: str = ""
    """What was asked for, in words; empty where nothing was."""
    found: str = ""
    remark: str = ""

    @property
    def headline(self) -> str:
        """The answer in one line, empty where nothing was asked for."""
        return f"{self.asked}: {self.found}{self.remark}" if self.asked else ""


def chosen_turn(flags: Mapping[str, Any]) -> Turn | None:
    """Return what is asked for instead of given; None where everything is given.

    Raises:
        PlanError: more than one is, or one that is given too, or a part is neither given nor asked for.
    """
    asked = [turn for turn in Turn if flags[turn.replace("-", "_")]]
    if len(asked) > 1:
        raise PlanError(f"{' and '.join(f'--{turn}' for turn in asked)} are two questions; ask one at a time")
    turn = asked[0] if asked else None
    for each, name in _GIVEN_INSTEAD.items():
        flag, value = f"--{name.replace('_', '-')}", flags[name]
        if each is turn and value is not None:
            raise PlanError(f"--{each} asks for what {flag} {value} gives; leave one of them out")
        if each in _NEEDED and each is not turn and value is None:
            raise PlanError(f"{flag} is missing; give it, or ask for it with --{each}")
    return turn


def turned(turn: Turn | None, question: Question) -> Answer:
    """Return the question with the part that was asked for; as it is where none was.

    Offloading is kept out of an answer where some plan does without: it stands behind, with the host memory that it
    takes. Where that memory is known, what fits may offload, but no batch is better for it.

    Raises:
        NoPlanFitsError: there is none with which a plan fits.
    """
    if turn is None:
        return Answer(question=question)
    from strategies.planner.reverse import without_offload

    on_gpus, is_host_known = without_offload(question), question.cluster.host_memory_bytes is not None
    if on_gpus == question or (is_host_known and turn is not Turn.GLOBAL_BATCH_SIZE):
        return _answer(turn, question)
    try:
        answer = _answer(turn, on_gpus)
    except NoPlanFitsError:
        answer = _answer(turn, question)
        needed = "" if is_host_known else f", with {_host_memory(answer.question)}"
        return replace(answer, remark=f"{needed}{answer.remark}")
    beyond = "" if turn is Turn.GLOBAL_BATCH_SIZE else _with_offload(turn, question, on_gpus=answer)
    return replace(answer, remark=f", without offloading{beyond}{answer.remark}")


def _with_offload(turn: Turn, question: Question, *, on_gpus: Answer) -> str:
    """Return what offloading would add on nodes that there are; empty where it adds nothing."""
    try:
        answer = _answer(turn, question.on(cluster=replace(question.cluster, host_memory_bytes=USUAL_HOST_BYTES)))
    except NoPlanFitsError:
        return ""
    return "" if answer.found == on_gpus.found else f"; {answer.found} with {_host_memory(answer.question)}"


def _host_memory(question: Question) -> str:
    """Return the least host memory with which a plan fits."""
    from strategies.planner.reverse import host_bytes, preferred

    return f"offloading to {format_bytes(min(map(host_bytes, preferred(question))))} of host memory a node"


def _answer(turn: Turn, question: Question) -> Answer:
    """Return the question with the part that was asked for.

    Raises:
        NoPlanFitsError: there is none with which a plan fits.
    """
    from strategies.planner.ranking import TIE
    from strategies.planner.reverse import best_global_batch_size, largest_model, longest_seq_len, smallest_cluster

    match turn:
        case Turn.SEQ_LEN:
            seq_len = longest_seq_len(question)
            is_all = seq_len == question.spec.max_seq_len
            return Answer(
                question=question.on(job=replace(question.job, seq_len=seq_len)),
                asked="Longest sequence that fits",
                found=f"{seq_len:,} tokens",
                remark="; the model has no more positions, memory is not the limit" if is_all else "",
            )
        case Turn.GLOBAL_BATCH_SIZE:
            samples = best_global_batch_size(question)
            return Answer(
                question=question.on(job=replace(question.job, global_batch_size=samples)),
                asked=f"Smallest global batch within {100 * TIE:g} % of the most samples per second",
                found=f"{samples:,}",
            )
        case Turn.MODEL:
            spec = largest_model(question)
            return Answer(
                question=replace(question, spec=spec),
                model=spec.name,
                asked=f"Largest {spec.family} preset that fits",
                found=spec.name,
            )
        case Turn.CLUSTER:
            cluster = smallest_cluster(question)
            return Answer(
                question=question.on(cluster=cluster),
                asked=f"Fewest {cluster.gpu.name} that fit",
                found=f"{cluster.gpus}",
            )


def plan_or_suggest(question: Question, *, model: str, level: Level, wants_suggestions: bool) -> Decision:
    """Return the decision, with what would make it faster where that is wanted.

    Raises:
        NoPlanFitsError: nothing fits; says what would.
    """
    estimated = Estimated(model=model, spec=question.spec, cluster=question.cluster, job=question.job)
    if level is not Level.INSTANT and not has_forms(question):
        return first_that_fits(question, model=model, estimate=partial(_at, level, estimated))
    try:
        decision = decide(
            question.spec,
            cluster=question.cluster,
            job=question.job,
            fixed=question.fixed,
            model=model,
            estimate=None if level is Level.INSTANT else estimator(level, estimated),
            safety=question.safety,
            why_not=question.why_not,
        )
    except NoPlanFitsError as error:
        raise NoPlanFitsError("\n".join((str(error), *_what_fits(question)))) from error
    return _with_suggestions(decision, question) if wants_suggestions else decision


def _at(level: Level, question: Estimated, plan: Plan) -> Estimate:
    return estimate_at(level, plan, question)


def _with_suggestions(decision: Decision, question: Question) -> Decision:
    from strategies.planner.changes import what_if

    return replace(decision, suggestions=what_if(question))


def _what_fits(question: Question) -> list[str]:
    from strategies.planner.changes import what_if

    suggestions = what_if(question)
    if not suggestions:
        return ["No single change, and no two together, would fit."]
    return ["What would fit:", *(f"  {suggestion_line(suggestion)}" for suggestion in suggestions)]


def training_notes(decision: Decision, question: Question, *, for_training: bool) -> list[str]:
    """Return what our trainer has to do with the answer: kinds of plan that were left out, or why it is not run."""
    from scaling.cli.options import why_not_trainable

    why_not = why_not_trainable(
        Estimated(model=decision.model, spec=question.spec, cluster=question.cluster, job=question.job)
    )
    if not for_training:
        reason = why_not(decision.job, decision.plan)
        return [f"Note: our trainer does not run this plan: {reason}"] if reason else []
    cluster, runs = question.cluster, dict[str, bool]()
    for variant in variants(question.spec, cluster=cluster, job=question.job, fixed=question.fixed):
        plan = variant.plan(1, gpus=cluster.gpus)
        kind = describe_kind(plan)
        runs[kind] = runs.get(kind, False) or why_not(variant.job, plan) is None
    left_out = [kind for kind, does_run in runs.items() if not does_run]
    return [f"Not looked at, since our trainer does not run it: {'; '.join(left_out)}"] if left_out else []
