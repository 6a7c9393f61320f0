"""Parameter tensors of the usual modules, named and ordered as ``named_parameters()`` gives them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from strategies.model_spec import GroupRole, ParameterGroup, ParameterTensor

Tensors = tuple[ParameterTensor, ...]


def tensor(name: str, *shape: int) -> Tensors:
    """Return one bare tensor."""
    return (ParameterTensor(name=name, shape=shape),)


def linear(name: str, inputs: int, outputs: int, *, bias: bool = False) -> Tensors:
    """Return the tensors of ``nn.Linear(inputs, outputs)``: weight (outputs, inputs), then bias (outputs,)."""
    weight = tensor(f"{name}.weight", outputs, inputs)
    return weight + tensor(f"{name}.bias", outputs) if bias else weight


def conv1d(name: str, inputs: int, outputs: int) -> Tensors:
    """Return the tensors of GPT-2's ``Conv1D``: weight (inputs, outputs), then bias (outputs,)."""
    return tensor(f"{name}.weight", inputs, outputs) + tensor(f"{name}.bias", outputs)


def embedding(name: str, entries: int, width: int) -> Tensors:
    """Return the tensor of ``nn.Embedding(entries, width)``."""
    return tensor(f"{name}.weight", entries, width)


def norm(name: str, *shape: int, bias: bool = False) -> Tensors:
    """Return the tensors of an RMS norm, or of a layer norm with ``bias``."""
    weight = tensor(f"{name}.weight", *shape)
    return weight + tensor(f"{name}.bias", *shape) if bias else weight


def under(prefix: str, tensors: Tensors) -> Tensors:
    """Return ``tensors`` with ``prefix`` before every name."""
    return tuple(replace(each, name=prefix + each.name) for each in tensors)


def embedding_group(tensors: Tensors, *, name: str = "embedding") -> ParameterGroup:
    """Return the group of the token, position or patch embeddings."""
    return ParameterGroup(name=name, role=GroupRole.EMBEDDING, tensors=tensors)


def block_group(tensors: Tensors, *, layers: Iterable[int], name: str = "block") -> ParameterGroup:
    """Return one kind of repeated block; tensor names hold ``{layer}``."""
    return ParameterGroup(name=name, role=GroupRole.BLOCK, tensors=tensors, layers=tuple(layers))


def other_group(tensors: Tensors, *, name: str) -> ParameterGroup:
    """Return tensors that stand once and are neither embedding nor head, for instance the final norm."""
    return ParameterGroup(name=name, role=GroupRole.OTHER, tensors=tensors)


def head_group(tensors: Tensors, *, name: str = "head") -> ParameterGroup:
    """Return what turns the last hidden states into logits; without tied weights, which count as the embedding's."""
    return ParameterGroup(name=name, role=GroupRole.HEAD, tensors=tensors)
