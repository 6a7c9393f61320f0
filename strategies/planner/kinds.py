"""The kinds of change to a question, each from small to large."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, cast

from strategies.cluster import Cluster, Gpu, gpu_presets
from strategies.errors import NoPlanFitsError
from strategies.job import LossImplementation
from strategies.plan import StrategyName
from strategies.planner.reverse import NODE_SIZE, grown, host_bytes, longest_seq_len, preferred
from strategies.planner.sweep import Fit, Question
from strategies.search import FixedParts
from strategies.units import GIB, ceil_div, round_up

MAX_GPUS = 16384
"""Where the search for more GPUs ends."""
SAME_MEMORY = 0.97
"""Of a GPU's memory: models of one marketed size differ by less (configs/gpus.csv: 79.10 and 79.15 GiB for 80 GB)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One change to a question."""

    question: Question
    """As it is after the change."""
    flags: Callable[[Fit], str]
    """What to type, given the plan that is chosen then."""


Kind = Callable[[Question], Iterator[Change]]
"""Yields changes of one kind, the smallest first; the first that helps is the one to tell."""


def kinds_of_change(question: Question, *, is_fitting: bool) -> list[Kind]:
    """Return every kind of change that the question is open to, from cheap to dear.

    ``is_fitting``: whether a plan fits already, so that changes are to make it faster.
    """
    named = [field.name for field in fields(FixedParts) if getattr(question.fixed, field.name) is not None]
    freed = [_freeing(name) for name in named if name != "searches_loss"]
    found = [*freed, other_loss, less_safety, more_host_memory, fewer_gpus_a_node, fewer_ranks, more_gpus, more_nodes]
    return [*found, faster_gpu] if is_fitting else [*found, larger_gpu, shorter_sequence]


def _freeing(name: str) -> Kind:
    """Return the kind of change that leaves one fixed part to the search."""

    def freed(question: Question) -> Iterator[Change]:
        fixed = replace(question.fixed, **cast(Any, {name: None}))
        other = "--framework pytorch " if question.fixed.strategy is StrategyName.MIRRORED else ""
        yield Change(question=question.on(fixed=fixed), flags=lambda fit: other + _flag(name, getattr(fit.plan, name)))

    return freed


def _flag(name: str, value: object) -> str:
    words = name.replace("_", "-")
    if isinstance(value, bool):
        return f"--{words}" if value else f"--no-{words}"
    return f"--{words} {value}"


def _typed(words: str, question: Question) -> Change:
    """Return a change whose flags do not depend on the plan that is chosen."""
    return Change(question=question, flags=partial(_always, words))


def _always(words: str, fit: Fit) -> str:
    return words


def other_loss(question: Question) -> Iterator[Change]:
    """Yield the loss left to the search, where the framework's own was asked for."""
    if question.job.loss is LossImplementation.STANDARD and not question.fixed.searches_loss:
        fixed = replace(question.fixed, searches_loss=True)
        yield Change(question=question.on(fixed=fixed), flags=lambda fit: f"--loss {fit.variant.job.loss}")


def less_safety(question: Question) -> Iterator[Change]:
    """Yield the point estimate in place of the upper end of an interval."""
    if question.safety:
        yield _typed("--safety 0", replace(question, safety=0.0))


def shorter_sequence(question: Question) -> Iterator[Change]:
    """Yield the longest sequence that fits."""
    try:
        seq_len = longest_seq_len(question)
    except NoPlanFitsError:
        return
    if seq_len < question.job.seq_len:
        yield _typed(f"--seq-len {seq_len}", question.on(job=replace(question.job, seq_len=seq_len)))


def more_host_memory(question: Question) -> Iterator[Change]:
    """Yield the least host memory with which a plan fits, then as much as the best plan takes that the GPUs allow."""
    cluster = question.cluster
    known = cluster.host_memory_bytes
    if known is None or cluster.gpu.is_cpu:
        return
    best = preferred(question.on(cluster=replace(cluster, host_memory_bytes=None)))
    needed = [ceil_div(host_bytes(fit), GIB) for fit in best]
    for gibibytes in sorted({min(needed), needed[0]} if needed else set()):
        if gibibytes * GIB > known:
            larger = replace(cluster, host_memory_bytes=gibibytes * GIB)
            yield _typed(f"--host-memory-gib {gibibytes}", question.on(cluster=larger))


def fewer_gpus_a_node(question: Question) -> Iterator[Change]:
    """Yield nodes with half the GPUs, a quarter, ...: fewer ranks share the memory of each, where that is known."""
    cluster = question.cluster
    if cluster.host_memory_bytes is None or cluster.gpu.is_cpu:
        return
    per_node = cluster.ranks_per_node // 2
    while per_node:
        if cluster.gpus % per_node == 0:
            spread = replace(cluster, gpus_per_node=per_node)
            yield _typed(f"--gpus-per-node {per_node}", question.on(cluster=spread))
        per_node //= 2


def fewer_ranks(question: Question) -> Iterator[Change]:
    """Yield half the ranks, a quarter, ... on CPUs that share one memory: each has the more of it."""
    gpus = question.cluster.gpus
    while question.cluster.gpu.shares_host_memory and (gpus := gpus // 2):
        if (smaller := grown(question.cluster, gpus)) is not None:
            yield _on_cluster(question, smaller)


def more_gpus(question: Question) -> Iterator[Change]:
    """Yield one more GPU or node, then twice as many GPUs, four times ...; the global batch grows where it has to.

    More ranks on CPUs that share one memory have the less each: they are not looked at.
    """
    cluster = question.cluster
    if cluster.gpu.shares_host_memory:
        return
    step = 1 if cluster.num_nodes == 1 and cluster.gpus < NODE_SIZE else cluster.gpus_per_node
    for gpus in sorted({cluster.gpus + step, *_doubled(cluster.gpus)}):
        if (larger := grown(cluster, gpus)) is not None:
            yield _on_cluster(question, larger)


def more_nodes(question: Question) -> Iterator[Change]:
    """Yield a small node twice, four times, ..., where its memory is known: a full node would not have more of that."""
    cluster = question.cluster
    is_small = cluster.num_nodes == 1 and cluster.gpus < NODE_SIZE
    if cluster.host_memory_bytes is None or cluster.gpu.is_cpu or not is_small:
        return
    for gpus in _doubled(cluster.gpus):
        yield _on_cluster(question, replace(cluster, gpus=gpus, gpus_per_node=cluster.gpus))


def _doubled(gpus: int) -> Iterator[int]:
    while (gpus := 2 * gpus) <= MAX_GPUS:
        yield gpus


def _on_cluster(question: Question, cluster: Cluster) -> Change:
    job, unit = question.job, cluster.gpus * (question.fixed.micro_batch_size or 1)
    words, per_node = f"--gpus {cluster.gpus}", cluster.gpus_per_node
    # It need not be said where it is what stands for nothing said, and what may have been said before.
    is_usual = per_node == min(cluster.gpus, NODE_SIZE) == question.cluster.gpus_per_node
    if not is_usual and not cluster.gpu.is_cpu:
        words += f" --gpus-per-node {per_node}"
    if job.global_batch_size % unit:
        job = replace(job, global_batch_size=round_up(job.global_batch_size, unit))
        words += f" --global-batch-size {job.global_batch_size}"
    return _typed(words, question.on(cluster=cluster, job=job))


def larger_gpu(question: Question) -> Iterator[Change]:
    """Yield the GPU models of configs/gpus.csv with more memory."""
    yield from _other_gpus(question, above_bytes=question.cluster.gpu.memory_bytes)


def faster_gpu(question: Question) -> Iterator[Change]:
    """Yield those with as much memory too."""
    yield from _other_gpus(question, above_bytes=SAME_MEMORY * question.cluster.gpu.memory_bytes)


def _other_gpus(question: Question, *, above_bytes: float) -> Iterator[Change]:
    """Yield other models from the smallest on; those whose links are slower come last."""
    cluster = question.cluster
    if cluster.gpu.is_cpu:
        return
    own_link = cluster.gpu.link_bytes_per_s or 0.0

    def effort(gpu: Gpu) -> tuple[bool, int, str]:
        return (gpu.link_bytes_per_s or 0.0) < own_link, gpu.memory_bytes, gpu.name

    others = (gpu for gpu in gpu_presets().values() if gpu.memory_bytes > above_bytes and gpu.name != cluster.gpu.name)
    for gpu in sorted(others, key=effort):
        if gpu.computes_in(question.job.precision):
            yield _typed(f"--gpu {shlex.quote(gpu.name)}", question.on(cluster=replace(cluster, gpu=gpu)))
