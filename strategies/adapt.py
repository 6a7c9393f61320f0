"""From the model to what is in memory when only a part of it is trained: adapters in place, frozen tensors marked.

Names and order are those of Hugging Face PEFT (0.17, tuners/lora/layer.py), so that engines and this model agree.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache

from strategies.errors import JobError
from strategies.job import Job
from strategies.model_spec import GroupRole, ModelSpec, ParameterGroup, ParameterTensor
from strategies.trained import Lora, fits, is_frozen

TRANSPOSED = ("gpt2",)
"""Families whose linear layers hold their weight as (in, out): transformers' ``Conv1D``."""
NO_LINEAR_LAYERS = ("relative_attention_bias",)
"""Matrices in blocks that are looked up, not multiplied."""
ROUTER = "gate"
"""Of experts: a bare parameter, for which PEFT has no adapter."""
LORA = "lora"
EMBEDDING_FROZEN = "embedding"
"""Frozen is the embedding, and perhaps the blocks that come first: backward ends early."""
BLOCKS_FROZEN = "blocks"
"""Frozen are the embedding and all blocks: backward stays in the head."""
OTHERWISE = "otherwise"


def as_trained(spec: ModelSpec, job: Job) -> ModelSpec:
    """Return the model as the job trains it; ``spec`` itself where it trains everything.

    Raises:
        JobError: adapters or patterns name nothing that the model has, or nothing is left to train.
    """
    if job.trains_all:
        return spec
    return _adapted(spec, job.lora) if job.lora else _frozen(spec, job.freeze)


@lru_cache(maxsize=256)
def _adapted(spec: ModelSpec, lora: Lora) -> ModelSpec:
    found: set[str] = set()
    groups = []
    for group in spec.groups:
        tensors: list[ParameterTensor] = []
        for module, each in _modules(group, spec):
            if module is None or not lora.targets(module):
                tensors += (replace(tensor, is_trained=False) for tensor in each)
                continue
            found.add(module.partition("{layer}.")[2])
            tensors += _with_adapter(module, each, lora.rank, is_transposed=spec.family in TRANSPOSED)
        groups.append(replace(group, tensors=tuple(tensors)))
    if unknown := [name for name in lora.target_modules if found and not _names_any(name, found, lora)]:
        raise _no_target(unknown, spec)
    if not found:
        raise _no_target(lora.target_modules, spec)
    return replace(
        spec, groups=tuple(groups), trained_parts=f"{LORA}:{','.join(sorted(found))}", adapter_rank=lora.rank
    )


def _names_any(name: str, found: set[str], lora: Lora) -> bool:
    only = replace(lora, target_modules=(name,))
    return any(only.targets(module) for module in found)


def _no_target(names: Sequence[str], spec: ModelSpec) -> JobError:
    known = sorted(
        {
            module.rpartition(".")[2]
            for group in spec.groups
            for module, _ in _modules(group, spec)
            if module is not None
        }
    )
    return JobError(
        f"lora.target_modules={list(names)}: the blocks of model {spec.name} have no linear layer of that name; "
        f"they have {', '.join(known)}"
    )


def _modules(group: ParameterGroup, spec: ModelSpec) -> Iterator[tuple[str | None, list[ParameterTensor]]]:
    """Yield the tensors of each module, with its name where it is a linear layer of a block."""
    together: dict[str, list[ParameterTensor]] = {}
    for tensor in group.tensors:
        together.setdefault(tensor.name.rpartition(".")[0], []).append(tensor)
    for module, tensors in together.items():
        last = module.rpartition(".")[2]
        is_router = spec.num_experts > 0 and last == ROUTER
        is_linear = (
            group.role is GroupRole.BLOCK
            and len(tensors[0].shape) == 2
            and tensors[0].name.endswith(".weight")
            and not is_router
            and last not in NO_LINEAR_LAYERS
        )
        yield module if is_linear else None, tensors


def _with_adapter(
    module: str, tensors: Sequence[ParameterTensor], rank: int, *, is_transposed: bool
) -> Iterator[ParameterTensor]:
    for tensor in tensors:
        last = tensor.name.rpartition(".")[2]
        yield replace(tensor, name=f"{module}.base_layer.{last}", is_trained=False)
    outputs, inputs = tensors[0].shape[::-1] if is_transposed else tensors[0].shape
    yield ParameterTensor(name=f"{module}.lora_A.default.weight", shape=(rank, inputs))
    yield ParameterTensor(name=f"{module}.lora_B.default.weight", shape=(outputs, rank))


@lru_cache(maxsize=256)
def _frozen(spec: ModelSpec, patterns: tuple[str, ...]) -> ModelSpec:
    names = [tensor.name for tensor in spec.tensors()]
    if idle := [pattern for pattern in patterns if not any(fits(name, pattern) for name in names)]:
        raise JobError(
            f"freeze={idle}: model {spec.name} has no such parameter; its names are like {names[0]}, {names[-1]}"
        )
    groups = [part for group in spec.groups for part in _marked(group, patterns)]
    marked = replace(spec, groups=tuple(groups))
    if not marked.num_trained_params:
        raise JobError(f"freeze={list(patterns)} freezes every parameter of model {spec.name}; leave some to train")
    if marked.num_trained_params == marked.num_params:
        raise JobError(f"freeze={list(patterns)} freezes no parameter of model {spec.name}; leave the option out")
    layers = _frozen_layers(marked)
    return replace(marked, trained_parts=_parts(marked, layers), num_frozen_layers=layers)


def _marked(group: ParameterGroup, patterns: Sequence[str]) -> list[ParameterGroup]:
    """Return the group with frozen tensors marked, cut up where its layers differ."""
    if group.role is not GroupRole.BLOCK:
        return [replace(group, tensors=_mark(group.tensors, patterns, layer=None))]
    by_tensors: dict[tuple[ParameterTensor, ...], list[int]] = {}
    for layer in group.layers:
        by_tensors.setdefault(_mark(group.tensors, patterns, layer=layer), []).append(layer)
    return [replace(group, tensors=tensors, layers=tuple(layers)) for tensors, layers in by_tensors.items()]


def _mark(
    tensors: Sequence[ParameterTensor], patterns: Sequence[str], *, layer: int | None
) -> tuple[ParameterTensor, ...]:
    return tuple(
        replace(tensor, is_trained=not is_frozen(tensor.name.format(layer=layer), patterns)) for tensor in tensors
    )


def _frozen_layers(spec: ModelSpec) -> int:
    """Return how many blocks, from the first on, backward does not reach."""
    if any(tensor.is_trained for tensor in _tensors(spec, GroupRole.EMBEDDING)):
        return 0
    trained = [
        layer
        for group in spec.groups
        if group.role is GroupRole.BLOCK and any(tensor.is_trained for tensor in group.tensors)
        for layer in group.layers
    ]
    return min(trained, default=spec.num_layers)


def _parts(spec: ModelSpec, frozen_layers: int) -> str:
    """Return what form files call the parts that are trained."""
    blocks = [group for group in spec.groups if group.role is GroupRole.BLOCK]
    has_one_stack = (
        sum(len(group.layers) for group in blocks)
        == spec.num_layers
        == 1 + max(layer for group in blocks for layer in group.layers)
    )
    if not has_one_stack or any(tensor.is_trained for tensor in _tensors(spec, GroupRole.EMBEDDING)):
        return OTHERWISE
    if frozen_layers == spec.num_layers:
        return BLOCKS_FROZEN if all(tensor.is_trained for tensor in _tensors(spec, GroupRole.HEAD)) else OTHERWISE
    above = (group for group in spec.groups if not group.layers or max(group.layers) >= frozen_layers)
    trained = (
        tensor.is_trained for group in above if group.role is not GroupRole.EMBEDDING for tensor in group.tensors
    )
    return EMBEDDING_FROZEN if all(trained) else OTHERWISE


def _tensors(spec: ModelSpec, role: GroupRole) -> Iterator[ParameterTensor]:
    return (tensor for group in spec.groups if group.role is role for tensor in group.tensors)
