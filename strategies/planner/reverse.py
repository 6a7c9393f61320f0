"""Questions the other way round: how long, how much at once, which model, how few GPUs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from strategies.cluster import Cluster
from strategies.decision import Rejection
from strategies.errors import NoPlanFitsError, PlanError, ScalingError
from strategies.explain import nothing_fits
from strategies.job import MAX_SIZE
from strategies.load_model import load_model_spec
from strategies.model_spec import ModelSpec
from strategies.plan import OffloadDevice, StrategyName
from strategies.planner.ranking import TIE, ranked
from strategies.planner.sweep import Fit, Question, Sweep
from strategies.presets import configs_folder
from strategies.search import divisors

SEQ_LEN_STEP = 128
"""Lengths are told in multiples of this, which attention kernels like; shorter ones token by token."""
SHORTEST = 2
"""Tokens: one leaves none to predict."""
LONGEST = 2**22
"""Tokens: where the search for a length ends that the model itself does not limit."""
MOST_SAMPLES_A_GPU = 1024
"""Of a global batch: where the search for the best one ends."""
NODE_SIZE = 8
"""GPUs of one machine where nothing else is said, as on the command line."""


def best_fit(question: Question) -> Fit | None:
    """Return the plan that is preferred, None where none fits."""
    return next(iter(preferred(question)), None)


def preferred(question: Question) -> list[Fit]:
    """Return of each variant that fits its best plan, in order of preference."""
    sweep = Sweep(question)
    return ranked(sweep, sweep.fits()) if sweep.any_fits() else []


def fits(question: Question) -> bool:
    """Whether any plan fits."""
    return Sweep(question).any_fits()


def host_bytes(fit: Fit) -> int:
    """Return the host memory of a node that a plan takes at its highest moment."""
    return 0 if fit.estimate.host is None else fit.estimate.host.peak.total_bytes


def without_offload(question: Question) -> Question:
    """Return the question about plans that keep everything on the GPUs; as it is where a place has been named."""
    named = {question.fixed.offload_optimizer, question.fixed.offload_param} - {None, OffloadDevice.NONE}
    if named or question.cluster.gpu.is_cpu:
        return question
    nowhere = OffloadDevice.NONE
    return question.on(fixed=replace(question.fixed, offload_optimizer=nowhere, offload_param=nowhere))


def longest_seq_len(question: Question) -> int:
    """Return the most tokens a sample can have, all else being as asked: in multiples of 128 from there on.

    Raises:
        NoPlanFitsError: not even two tokens fit.
    """
    limit = question.spec.max_seq_len or LONGEST
    if not _fits_at(question, SHORTEST):
        raise NoPlanFitsError(f"no sequence is short enough: with {SHORTEST} tokens {_lack(_at(question, SHORTEST))}")
    steps = _largest(limit // SEQ_LEN_STEP, lambda number: _fits_at(question, number * SEQ_LEN_STEP))
    if steps * SEQ_LEN_STEP + SEQ_LEN_STEP > limit:
        return limit if _fits_at(question, limit) else steps * SEQ_LEN_STEP
    return steps * SEQ_LEN_STEP or _largest(SEQ_LEN_STEP - 1, lambda number: _fits_at(question, max(number, SHORTEST)))


def best_global_batch_size(question: Question) -> int:
    """Return the smallest global batch whose samples per second are within `TIE` of the best, up to 1024 a GPU.

    Where no step time is known, it is the largest batch that fits in one pass.

    Raises:
        NoPlanFitsError: no batch fits.
    """
    unit = question.cluster.gpus * (question.fixed.micro_batch_size or 1)
    rates: dict[int, float] = {}
    for samples in _batches(unit, MOST_SAMPLES_A_GPU * question.cluster.gpus):
        fit = best_fit(question.on(job=replace(question.job, global_batch_size=samples)))
        if fit is not None:
            rates[samples] = samples / fit.time.total_s if fit.time else float(fit.plan.micro_batch_size)
    if not rates:
        smallest = question.on(job=replace(question.job, global_batch_size=unit))
        raise NoPlanFitsError(f"no global batch fits: with {unit}, one micro batch a GPU, {_lack(smallest)}")
    best = max(rates.values())
    return min(samples for samples, rate in rates.items() if rate >= best / (1 + TIE))


def largest_model(question: Question) -> ModelSpec:
    """Return the largest preset of the model's family that the cluster trains.

    Raises:
        NoPlanFitsError: none fits.
    """
    family = [spec for spec in _presets() if spec.family == question.spec.family]
    if not family:
        raise PlanError(f"no preset under configs/models is of the family {question.spec.family}")
    seq_len = question.job.seq_len
    long_enough = [spec for spec in family if seq_len <= (spec.max_seq_len or seq_len)]
    if not long_enough:
        raise PlanError(f"no preset of the family {question.spec.family} has seq_len={seq_len} positions; give less")
    by_size = sorted(long_enough, key=lambda each: -each.num_params)
    for spec in by_size:
        if fits(replace(question, spec=spec)):
            return spec
    smallest = replace(question, spec=by_size[-1])
    raise NoPlanFitsError(
        f"no {question.spec.family} preset fits: of {smallest.spec.name}, the smallest, {_lack(smallest)}"
    )


def smallest_cluster(question: Question) -> Cluster:
    """Return the fewest GPUs of the asked kind that train the model with the asked global batch.

    Tried is every number that divides the global batch and fills whole nodes.

    Raises:
        NoPlanFitsError: no number does.
    """
    samples, micro_batch_size = question.job.global_batch_size, question.fixed.micro_batch_size or 1
    largest: Question | None = None
    for gpus in divisors(samples):
        cluster = grown(question.cluster, gpus)
        if cluster is None or samples % (gpus * micro_batch_size):
            continue
        if cluster.num_nodes > 1 and question.fixed.strategy is StrategyName.MIRRORED:
            continue  # one process drives one node
        largest = question.on(cluster=cluster)
        if fits(largest):
            return cluster
    raise NoPlanFitsError(
        f"no number of {question.cluster.gpu.name} fits, up to one a sample (global_batch_size={samples}); "
        f"give a larger global batch, or another GPU{_told(largest) if largest else ''}"
    )


def _told(largest: Question) -> str:
    return f". On {largest.cluster.gpus}, {largest.cluster.ranks_per_node} a node: {_lack(largest)}"


def _lack(question: Question) -> str:
    """Return what is lacking where nothing fits."""
    rejected = tuple(each for each in Sweep(question).outcomes() if isinstance(each, Rejection))
    return nothing_fits(rejected, cluster=question.cluster, safety=question.safety)


def grown(cluster: Cluster, gpus: int) -> Cluster | None:
    """Return the cluster with so many GPUs in nodes like its own; None where they fill no whole number of nodes.

    A single node may have up to eight, as on the command line, unless another size was given; ranks on CPUs are always
    one node, and share its memory.
    """
    per_node = cluster.gpus_per_node
    if cluster.gpu.is_cpu and cluster.num_nodes == 1:
        per_node = gpus
    elif per_node == min(cluster.gpus, NODE_SIZE):
        per_node = NODE_SIZE
    if gpus > per_node and gpus % per_node:
        return None
    gpu = cluster.gpu
    if gpu.shares_host_memory:
        gpu = replace(gpu, memory_bytes=gpu.memory_bytes * cluster.gpus // gpus)
    return replace(cluster, gpu=gpu, gpus=gpus, gpus_per_node=min(gpus, per_node))


def _batches(unit: int, most: int) -> Iterator[int]:
    samples = unit
    while samples <= max(unit, min(most, MAX_SIZE)):
        yield samples
        samples *= 2


def _at(question: Question, seq_len: int) -> Question:
    return question.on(job=replace(question.job, seq_len=seq_len))


def _fits_at(question: Question, seq_len: int) -> bool:
    return fits(_at(question, seq_len))


def _largest(limit: int, holds: Callable[[int], bool]) -> int:
    """Return the largest number up to ``limit`` for which a condition holds that fails from some number on; 0: none."""
    low, high = 0, 1
    while high <= limit and holds(high):
        low, high = high, high * 2
    high = min(high, limit + 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def _presets() -> Iterator[ModelSpec]:
    """Yield every preset that can be read."""
    for path in sorted((configs_folder() / "models").glob("*.json")):
        try:
            yield load_model_spec(path.stem)
        except ScalingError:
            continue
