"""`ModelSpec`: the architecture facts that memory and time predictions need. No weights, no framework."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from strategies.errors import SpecError


class GroupRole(StrEnum):
    """Where a parameter group stands in the model."""

    EMBEDDING = "embedding"
    BLOCK = "block"
    """Repeated, one copy per entry of ``ParameterGroup.layers``."""
    HEAD = "head"
    OTHER = "other"
    """Final norms, poolers and the like."""


class TaskKind(StrEnum):
    """What the model is trained to do; decides the Hugging Face class and the shape of its output."""

    CAUSAL_LM = "causal-lm"
    MASKED_LM = "masked-lm"
    SEQ2SEQ_LM = "seq2seq-lm"
    SEQUENCE_CLASSIFICATION = "sequence-classification"
    """One label a text."""
    IMAGE_CLASSIFICATION = "image-classification"
    CONTRASTIVE = "contrastive"
    """Pairs of text and image, as CLIP: each is to be told from the others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterTensor:
    """One tensor of weights."""

    name: str
    """As ``named_parameters()`` gives it, with ``{layer}`` in place of the block index."""
    shape: tuple[int, ...]
    is_trained: bool = True
    """Not frozen: it gets a gradient and is updated."""

    @property
    def num_params(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterGroup:
    """Tensors that belong together: the embedding, one kind of block, the head."""

    name: str
    role: GroupRole
    tensors: tuple[ParameterTensor, ...]
    layers: tuple[int, ...] = ()
    """Block indices that share this layout; empty for a group that stands once."""

    @property
    def num_copies(self) -> int:
        return len(self.layers) if self.role is GroupRole.BLOCK else 1

    @property
    def num_params_per_copy(self) -> int:
        return sum(tensor.num_params for tensor in self.tensors)

    @property
    def num_params(self) -> int:
        return self.num_copies * self.num_params_per_copy


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """Shape of a transformer. Frozen facts; the parameter count is computed from ``groups``."""

    name: str
    """Preset name, folder or hub id it was read from."""
    family: str
    """Hugging Face ``model_type``, for instance ``llama``."""
    task: TaskKind
    hidden_size: int
    num_layers: int
    """Blocks in all stacks; for an encoder-decoder, the sum of both."""
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    """0 for a model without a vocabulary (vision)."""
    max_seq_len: int | None
    """Longest sequence the position encoding allows; None where there is no limit."""
    tied_embeddings: bool
    gated_mlp: bool
    """Three matrices (gate, up, down) instead of two."""
    num_experts: int = 0
    num_experts_per_token: int = 0
    moe_intermediate_size: int = 0
    shared_expert_intermediate_size: int = 0
    num_moe_layers: int = 0
    sliding_window: int | None = None
    num_sliding_layers: int = 0
    rotary_dim: int = 0
    """Numbers of each head that are rotated."""
    variant: str = ""
    """Settings that change no parameter but what forward keeps: see `strategies.architectures.variants`."""
    groups: tuple[ParameterGroup, ...] = ()
    trained_parts: str = ""
    """What is trained, as form files call it: empty for everything, see `strategies.adapt`."""
    adapter_rank: int = 0
    num_frozen_layers: int = 0
    """Blocks from the first one on that backward does not reach."""

    def __post_init__(self) -> None:
        sizes = {
            "hidden_size": self.hidden_size,
            "num_layers": self.num_layers,
            "num_attention_heads": self.num_attention_heads,
            "num_key_value_heads": self.num_key_value_heads,
            "head_dim": self.head_dim,
        }
        if bad := [f"{name}={value}" for name, value in sizes.items() if value <= 0]:
            raise SpecError(f"model {self.name}: {', '.join(bad)} must be above zero; correct the config.json")
        if self.num_attention_heads % self.num_key_value_heads:
            raise SpecError(
                f"model {self.name}: num_attention_heads={self.num_attention_heads} is not a multiple of "
                f"num_key_value_heads={self.num_key_value_heads}; correct the config.json"
            )

    def __hash__(self) -> int:
        """Return a hash of what tells models apart; one of every tensor would cost more than an estimate."""
        return hash((self.name, self.family, self.hidden_size, self.num_layers, self.vocab_size))

    @property
    def num_params(self) -> int:
        """All parameters, frozen ones and adapters included; tied embeddings counted once."""
        return sum(group.num_params for group in self.groups)

    @property
    def num_trained_params(self) -> int:
        return sum(
            group.num_copies * tensor.num_params
            for group in self.groups
            for tensor in group.tensors
            if tensor.is_trained
        )

    @property
    def num_trained_layers(self) -> int:
        """Blocks that backward runs through."""
        return self.num_layers - self.num_frozen_layers

    @property
    def query_size(self) -> int:
        return self.num_attention_heads * self.head_dim

    @property
    def key_value_size(self) -> int:
        return self.num_key_value_heads * self.head_dim

    def parameters(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Yield (name, shape) of every tensor, in the order of ``named_parameters()``."""
        yield from ((tensor.name, tensor.shape) for tensor in self.tensors())

    def tensors(self) -> Iterator[ParameterTensor]:
        """Yield every tensor under its full name, in the order of ``named_parameters()``.

        Consecutive block groups form one stack and are interleaved by layer index.
        """
        stack: list[ParameterGroup] = []
        for group in self.groups:
            if group.role is GroupRole.BLOCK:
                stack.append(group)
                continue
            yield from _stack_tensors(stack)
            stack = []
            yield from group.tensors
        yield from _stack_tensors(stack)

    def largest_block_params(self) -> int:
        """Return the parameters of the largest single block, 0 for a model without blocks."""
        blocks = [group.num_params_per_copy for group in self.groups if group.role is GroupRole.BLOCK]
        return max(blocks, default=0)


def _stack_tensors(stack: list[ParameterGroup]) -> Iterator[ParameterTensor]:
    by_layer = sorted(((layer, group) for group in stack for layer in group.layers), key=lambda pair: pair[0])
    for layer, group in by_layer:
        for tensor in group.tensors:
            # Not with `replace`, which takes five times as long: there are thousands.
            yield ParameterTensor(
                name=tensor.name.format(layer=layer), shape=tensor.shape, is_trained=tensor.is_trained
            )
