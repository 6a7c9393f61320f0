"""T5 (Raffel et al. 2019, arXiv:1910.10683), versions 1.0 and 1.1."""

from __future__ import annotations

from strategies.architectures.config import Architecture, CheckedConfig, shown
from strategies.architectures.decoder import DecoderDims, spec_from_groups
from strategies.architectures.tensors import (
    Tensors,
    block_group,
    embedding,
    embedding_group,
    linear,
    norm,
    other_group,
    under,
)
from strategies.model_spec import ModelSpec, ParameterGroup, TaskKind


def build(config: CheckedConfig) -> ModelSpec:
    """Return the spec; source: transformers 5.24, models/t5/modeling_t5.py.

    Only the first block of each stack holds the table of relative positions. ``lm_head`` is always tied: T5Config
    overrides ``tie_word_embeddings``, which only says how the output is scaled.
    """
    num_layers = config.sizes["num_layers"]
    num_decoder_layers = config.optional_sizes["num_decoder_layers"] or num_layers
    is_gated = _is_gated(config)
    dims = DecoderDims(
        hidden_size=config.sizes["d_model"],
        num_layers=num_layers + num_decoder_layers,
        num_attention_heads=config.sizes["num_heads"],
        num_key_value_heads=config.sizes["num_heads"],
        head_dim=config.sizes["d_kv"],
        intermediate_size=config.sizes["d_ff"],
        vocab_size=config.sizes["vocab_size"],
        max_seq_len=None,  # relative positions: no limit
        tied=True,
    )
    groups = [
        embedding_group(embedding("shared", dims.vocab_size, dims.hidden_size)),
        *_stack(config, dims, name="encoder", num_layers=num_layers, is_gated=is_gated),
        *_stack(config, dims, name="decoder", num_layers=num_decoder_layers, is_gated=is_gated),
    ]
    return spec_from_groups(config, dims, groups=groups, has_gated_mlp=is_gated)


def _is_gated(config: CheckedConfig) -> bool:
    kind = config.other["feed_forward_proj"]
    parts = kind.split("-") if isinstance(kind, str) else []
    if len(parts) == 1 or (len(parts) == 2 and parts[0] == "gated"):
        return len(parts) == 2
    raise config.problem(
        f"feed_forward_proj={shown(kind)} must be an activation or gated-<activation>, for instance relu or gated-gelu"
    )


def _stack(
    config: CheckedConfig, dims: DecoderDims, *, name: str, num_layers: int, is_gated: bool
) -> list[ParameterGroup]:
    attention = _attention(dims, "SelfAttention")
    positions = embedding(
        "SelfAttention.relative_attention_bias",
        config.sizes["relative_attention_num_buckets"],
        dims.num_attention_heads,
    )
    layer_norm = norm("layer_norm", dims.hidden_size)
    rest: list[Tensors] = []
    if name == "decoder":
        rest.append(_attention(dims, "EncDecAttention") + layer_norm)
    rest.append(_feed_forward(dims, is_gated=is_gated) + layer_norm)
    block = f"{name}.block.{{layer}}."
    return [
        block_group(
            under(block, _sublayers([attention + positions + layer_norm, *rest])),
            layers=range(1),
            name=f"{name}_first_block",
        ),
        block_group(
            under(block, _sublayers([attention + layer_norm, *rest])),
            layers=range(1, num_layers),
            name=f"{name}_block",
        ),
        other_group(norm(f"{name}.final_layer_norm", dims.hidden_size), name=f"{name}_final_norm"),
    ]


def _sublayers(sublayers: list[Tensors]) -> Tensors:
    return tuple(tensor for index, each in enumerate(sublayers) for tensor in under(f"layer.{index}.", each))


def _attention(dims: DecoderDims, name: str) -> Tensors:
    inner = dims.query_size
    projections = (
        *linear("q", dims.hidden_size, inner),
        *linear("k", dims.hidden_size, inner),
        *linear("v", dims.hidden_size, inner),
        *linear("o", inner, dims.hidden_size),
    )
    return under(f"{name}.", projections)


def _feed_forward(dims: DecoderDims, *, is_gated: bool) -> Tensors:
    inputs = ("wi_0", "wi_1") if is_gated else ("wi",)
    matrices = (
        *(each for name in inputs for each in linear(name, dims.hidden_size, dims.intermediate_size)),
        *linear("wo", dims.intermediate_size, dims.hidden_size),
    )
    return under("DenseReluDense.", matrices)


T5 = Architecture(
    model_type="t5",
    classes={
        "T5ForConditionalGeneration": TaskKind.SEQ2SEQ_LM,
        "T5WithLMHeadModel": TaskKind.SEQ2SEQ_LM,  # the same class before transformers 3; old config.json files say so
    },
    build=build,
    sizes={
        "vocab_size": 32128,
        "d_model": 512,
        "d_kv": 64,
        "d_ff": 2048,
        "num_layers": 6,
        "num_heads": 8,
        "relative_attention_num_buckets": 32,
    },
    optional_sizes={"num_decoder_layers": None},
    other={"feed_forward_proj": "relu"},
    # num_hidden_layers is left out: T5Config would take it for the encoder and keep six decoder layers.
    renamed={"hidden_size": "d_model", "num_attention_heads": "num_heads", "head_dim": "d_kv"},
)
