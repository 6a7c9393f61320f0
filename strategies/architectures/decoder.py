"""What decoders in the style of Llama share: ``model.embed_tokens``, ``model.layers``, ``model.norm``, ``lm_head``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from strategies.architectures.config import CheckedConfig, shown
from strategies.architectures.tensors import (
    Tensors,
    block_group,
    embedding,
    embedding_group,
    head_group,
    linear,
    other_group,
    under,
)
from strategies.model_spec import ModelSpec, ParameterGroup, TaskKind

CAUSAL_LM = TaskKind.CAUSAL_LM


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderDims:
    """The dimensions that every decoder has."""

    hidden_size: int
    num_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    max_seq_len: int | None
    tied: bool

    @property
    def query_size(self) -> int:
        return self.num_attention_heads * self.head_dim

    @property
    def key_value_size(self) -> int:
        return self.num_key_value_heads * self.head_dim


@dataclass(frozen=True, slots=True, kw_only=True)
class SlidingWindow:
    """How many tokens back attention sees (None: all of them), and in how many layers that limit holds."""

    size: int | None = None
    num_layers: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class MixtureOfExperts:
    """The expert layers of a decoder."""

    num_experts: int
    num_experts_per_token: int
    expert_size: int
    """Intermediate size of one expert."""
    shared_expert_size: int = 0
    """Intermediate size of the expert that sees every token; 0 where there is none."""
    num_layers: int


def read_dims(config: CheckedConfig) -> DecoderDims:
    """Return the dimensions of a decoder whose keys are named as Llama's."""
    sizes = config.sizes
    num_heads = sizes["num_attention_heads"]
    num_key_value_heads = sizes.get("num_key_value_heads") or config.optional_sizes.get("num_key_value_heads")
    return DecoderDims(
        hidden_size=sizes["hidden_size"],
        num_layers=sizes["num_hidden_layers"],
        num_attention_heads=num_heads,
        num_key_value_heads=num_key_value_heads or num_heads,
        head_dim=config.head_dim(sizes["hidden_size"], num_heads),
        intermediate_size=sizes["intermediate_size"],
        vocab_size=sizes["vocab_size"],
        max_seq_len=sizes["max_position_embeddings"],
        tied=config.flags["tie_word_embeddings"],
    )


def attention(
    dims: DecoderDims, *, input_bias: bool = False, output_bias: bool = False, output_name: str = "o_proj"
) -> Tensors:
    """Return the four projections of grouped-query attention."""
    projections = (
        *linear("q_proj", dims.hidden_size, dims.query_size, bias=input_bias),
        *linear("k_proj", dims.hidden_size, dims.key_value_size, bias=input_bias),
        *linear("v_proj", dims.hidden_size, dims.key_value_size, bias=input_bias),
        *linear(output_name, dims.query_size, dims.hidden_size, bias=output_bias),
    )
    return under("self_attn.", projections)


def gated_mlp(hidden_size: int, intermediate_size: int, *, bias: bool = False, name: str = "mlp") -> Tensors:
    """Return the three matrices of a gated feed-forward layer."""
    matrices = (
        *linear("gate_proj", hidden_size, intermediate_size, bias=bias),
        *linear("up_proj", hidden_size, intermediate_size, bias=bias),
        *linear("down_proj", intermediate_size, hidden_size, bias=bias),
    )
    return under(f"{name}.", matrices)


def blocks(tensors: Tensors, *, layers: Sequence[int], name: str = "block") -> ParameterGroup:
    """Return the group of the blocks ``model.layers.<layer>`` that share this layout."""
    return block_group(under("model.layers.{layer}.", tensors), layers=layers, name=name)


def sliding_layers(config: CheckedConfig, *, size: int | None, default: Sequence[bool]) -> SlidingWindow:
    """Return the sliding window of a model whose ``layer_types`` may override ``default`` (True: sliding)."""
    layer_types = config.other["layer_types"]
    if layer_types is None:
        sliding = list(default)
    else:
        if not isinstance(layer_types, list) or len(layer_types) != len(default):
            raise config.problem(
                f"layer_types={shown(layer_types)} must list one entry for each of the {len(default)} layers"
            )
        if unknown := [each for each in layer_types if each not in ("full_attention", "sliding_attention")]:
            raise config.problem(f"layer_types has {shown(unknown[0])}; known are full_attention, sliding_attention")
        sliding = [each == "sliding_attention" for each in layer_types]
    return SlidingWindow(size=size, num_layers=sum(sliding)) if size else SlidingWindow()


def hidden_divided(config: CheckedConfig, dims: DecoderDims) -> DecoderDims:
    """Return ``dims`` of a class that demands that the heads divide the hidden size, even where head_dim is given.

    Raises:
        SpecError: they do not.
    """
    if dims.hidden_size % dims.num_attention_heads:
        raise config.problem(
            f"hidden_size={dims.hidden_size} is not a multiple of num_attention_heads={dims.num_attention_heads}; "
            "use a head count that divides it"
        )
    return dims


def decoder_spec(
    config: CheckedConfig,
    dims: DecoderDims,
    *,
    block_groups: Sequence[ParameterGroup],
    final_norm: Tensors,
    head_bias: bool = False,
    has_gated_mlp: bool = True,
    sliding: SlidingWindow | None = None,
    experts: MixtureOfExperts | None = None,
) -> ModelSpec:
    """Return the spec of a decoder in the style of Llama with the given blocks."""
    groups = [
        embedding_group(embedding("model.embed_tokens", dims.vocab_size, dims.hidden_size)),
        *block_groups,
        other_group(under("model.", final_norm), name="final_norm"),
        lm_head(dims, bias=head_bias),
    ]
    return spec_from_groups(config, dims, groups=groups, has_gated_mlp=has_gated_mlp, sliding=sliding, experts=experts)


def lm_head(dims: DecoderDims, *, bias: bool = False, inputs: int | None = None) -> ParameterGroup:
    """Return the output projection ``lm_head``, without its weight where that is the embedding's."""
    tensors = linear("lm_head", inputs or dims.hidden_size, dims.vocab_size, bias=bias)
    return head_group(tensors[1:] if dims.tied else tensors)


def spec_from_groups(
    config: CheckedConfig,
    dims: DecoderDims,
    *,
    groups: Sequence[ParameterGroup],
    has_gated_mlp: bool,
    sliding: SlidingWindow | None = None,
    experts: MixtureOfExperts | None = None,
) -> ModelSpec:
    """Return the spec that ``dims`` and the parameter groups describe; groups without tensors are left out."""
    sliding = sliding or SlidingWindow()
    return ModelSpec(
        name=config.name,
        family=config.model_type,
        task=config.task,
        hidden_size=dims.hidden_size,
        num_layers=dims.num_layers,
        num_attention_heads=dims.num_attention_heads,
        num_key_value_heads=dims.num_key_value_heads,
        head_dim=dims.head_dim,
        intermediate_size=dims.intermediate_size,
        vocab_size=dims.vocab_size,
        max_seq_len=dims.max_seq_len,
        tied_embeddings=dims.tied,
        gated_mlp=has_gated_mlp,
        num_experts=experts.num_experts if experts else 0,
        num_experts_per_token=experts.num_experts_per_token if experts else 0,
        moe_intermediate_size=experts.expert_size if experts else 0,
        shared_expert_intermediate_size=experts.shared_expert_size if experts else 0,
        num_moe_layers=experts.num_layers if experts else 0,
        sliding_window=sliding.size,
        num_sliding_layers=sliding.num_layers,
        groups=tuple(group for group in groups if group.tensors and (group.layers or group.role != "block")),
    )
