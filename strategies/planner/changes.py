"""What would make a plan fit, or be faster: single changes to what was asked, and where none helps, two together."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from functools import partial
from itertools import combinations, islice
from typing import Any, cast

from strategies.cluster import Cluster, gpu_presets
from strategies.decision import Suggestion
from strategies.errors import NoPlanFitsError, PlanError
from strategies.job import Job, LossImplementation, Precision
from strategies.planner.ranking import TIE
from strategies.planner.reverse import NODE_SIZE, best_fit, fits, grown, longest_seq_len
from strategies.planner.safety import needed_bytes
from strategies.planner.sweep import Fit, Question
from strategies.search import FixedParts
from strategies.units import GIB, ceil_div, round_up

MAX_SUGGESTIONS = 8
MAX_GPUS = 16384
"""Where the search for more GPUs ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One change to a question."""

    question: Question
    """As it is after the change."""
    flags: Callable[[Fit], str]
    """What to type, given the plan that is chosen then."""


Kind = Callable[[Question], Iterator[Change]]
"""Yields changes of one kind, the smallest first; the first that helps is the one to tell."""


def what_if(question: Question) -> tuple[Suggestion, ...]:
    """Return changes after which a plan fits; where one does already, those after which one is faster.

    Two changes together are looked for where nothing fits and none alone is enough. Every suggestion has been planned:
    it fits.

    Raises:
        PlanError: no plan obeys the fixed parts.
    """
    chosen, kinds = best_fit(question), _kinds(question)
    if chosen is not None:
        kinds.remove(shorter_sequence)
    found = [each for kind in kinds if (each := _first(kind(question), chosen=chosen)) is not None]
    if not found and chosen is None:
        found = list(islice(_doubles(question), MAX_SUGGESTIONS))
    return tuple(found[:MAX_SUGGESTIONS])


def _kinds(question: Question) -> list[Kind]:
    """Return every kind of change that the question is open to, from cheap to dear."""
    named = [field.name for field in fields(FixedParts) if getattr(question.fixed, field.name) is not None]
    freed = [_freeing(name) for name in named if name != "searches_loss"]
    return [*freed, other_loss, less_safety, more_host_memory, more_gpus, other_gpu, shorter_sequence]


def _freeing(name: str) -> Kind:
    """Return the kind of change that leaves one fixed part to the search."""

    def freed(question: Question) -> Iterator[Change]:
        fixed = replace(question.fixed, **cast(Any, {name: None}))
        yield Change(question=question.on(fixed=fixed), flags=lambda fit: _flag(name, getattr(fit.plan, name)))

    return freed


def _flag(name: str, value: object) -> str:
    words = name.replace("_", "-")
    if isinstance(value, bool):
        return f"--{words}" if value else f"--no-{words}"
    return f"--{words} {value}"


def other_loss(question: Question) -> Iterator[Change]:
    """Yield the loss left to the search, where the framework's own was asked for."""
    if question.job.loss is LossImplementation.STANDARD and not question.fixed.searches_loss:
        fixed = replace(question.fixed, searches_loss=True)
        yield Change(question=question.on(fixed=fixed), flags=lambda fit: f"--loss {fit.variant.job.loss}")


def less_safety(question: Question) -> Iterator[Change]:
    """Yield the point estimate in place of the upper end of an interval."""
    if question.safety:
        yield Change(question=replace(question, safety=0.0), flags=partial(_always, "--safety 0"))


def shorter_sequence(question: Question) -> Iterator[Change]:
    """Yield the longest sequence that fits."""
    try:
        seq_len = longest_seq_len(question)
    except NoPlanFitsError:
        return
    if seq_len < question.job.seq_len:
        job = replace(question.job, seq_len=seq_len)
        yield Change(question=question.on(job=job), flags=partial(_always, f"--seq-len {seq_len}"))


def more_host_memory(question: Question) -> Iterator[Change]:
    """Yield as much host memory as the best plan takes that the GPUs allow."""
    known = question.cluster.host_memory_bytes
    if known is None:
        return
    fit = best_fit(question.on(cluster=replace(question.cluster, host_memory_bytes=None)))
    if fit is not None and fit.estimate.host is not None and fit.estimate.host.peak.total_bytes > known:
        gibibytes = ceil_div(fit.estimate.host.peak.total_bytes, GIB)
        cluster = replace(question.cluster, host_memory_bytes=gibibytes * GIB)
        yield Change(question=question.on(cluster=cluster), flags=partial(_always, f"--host-memory-gib {gibibytes}"))


def more_gpus(question: Question) -> Iterator[Change]:
    """Yield one more GPU or node, then twice as many GPUs, four times ...; the global batch grows where it has to."""
    cluster = question.cluster
    step = 1 if cluster.num_nodes == 1 and cluster.gpus < NODE_SIZE else cluster.gpus_per_node
    sizes, doubled = {cluster.gpus + step}, 2 * cluster.gpus
    while doubled <= MAX_GPUS:
        sizes.add(doubled)
        doubled *= 2
    for gpus in sorted(sizes):
        if (larger := grown(cluster, gpus)) is not None:
            yield _on_cluster(question, larger)


def _on_cluster(question: Question, cluster: Cluster) -> Change:
    job, unit = question.job, cluster.gpus * (question.fixed.micro_batch_size or 1)
    words = f"--gpus {cluster.gpus}"
    if cluster.gpus_per_node != min(cluster.gpus, NODE_SIZE) and not cluster.gpu.is_cpu:
        words += f" --gpus-per-node {cluster.gpus_per_node}"
    if job.global_batch_size % unit:
        job = replace(job, global_batch_size=round_up(job.global_batch_size, unit))
        words += f" --global-batch-size {job.global_batch_size}"
    return Change(question=question.on(cluster=cluster, job=job), flags=partial(_always, words))


def _always(words: str, fit: Fit) -> str:
    """Return flags that do not depend on the plan that is chosen."""
    return words


def other_gpu(question: Question) -> Iterator[Change]:
    """Yield the GPU models of configs/gpus.csv with more memory, the smallest first."""
    cluster, job = question.cluster, question.job
    if cluster.gpu.is_cpu:
        return
    larger = [gpu for gpu in gpu_presets().values() if gpu.memory_bytes > cluster.gpu.memory_bytes]
    for gpu in sorted(larger, key=lambda each: (each.memory_bytes, each.name)):
        if _can_compute(job, gpu.supports_bf16):
            yield Change(
                question=question.on(cluster=replace(cluster, gpu=gpu)),
                flags=partial(_always, f"--gpu {shlex.quote(gpu.name)}"),
            )


def _can_compute(job: Job, supports_bf16: bool) -> bool:
    return supports_bf16 or job.precision in (Precision.FP32, Precision.FP16, Precision.FP16_AUTOCAST)


def _first(changes: Iterator[Change], *, chosen: Fit | None = None, before: Change | None = None) -> Suggestion | None:
    """Return the first change of a kind that helps; ``before``: the one that was made before it."""
    for change in changes:
        try:
            fit = best_fit(change.question) if fits(change.question) else None
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


def _doubles(question: Question) -> Iterator[Suggestion]:
    """Yield pairs of changes: of the first kind a few, of the second kind the first that helps."""
    for one, two in combinations(_kinds(question), 2):
        tried = (_first(two(change.question), before=change) for change in _few(one(question)))
        if (found := next((each for each in tried if each is not None), None)) is not None:
            yield found


def _few(changes: Iterator[Change]) -> list[Change]:
    """Return the smallest change of a kind, one in the middle and the largest."""
    found = list(changes)
    return [found[index] for index in sorted({0, len(found) // 2, len(found) - 1})] if found else []
