"""Gemma (arXiv:2403.08295), Gemma 2 (arXiv:2408.00118) and the text models of Gemma 3 (arXiv:2503.19786)."""

from __future__ import annotations

from collections.abc import Sequence

from strategies.architectures.config import Architecture, CheckedConfig
from strategies.architectures.decoder import (
    CAUSAL_LM,
    DecoderDims,
    SlidingWindow,
    attention,
    blocks,
    decoder_spec,
    gated_mlp,
    hidden_divided,
    read_dims,
    sliding_layers,
)
from strategies.architectures.qwen import query_key_norms
from strategies.architectures.tensors import Tensors, norm
from strategies.model_spec import ModelSpec

_NORMS = ("input_layernorm", "post_attention_layernorm")
_SANDWICH_NORMS = (*_NORMS, "pre_feedforward_layernorm", "post_feedforward_layernorm")


def build_gemma(config: CheckedConfig) -> ModelSpec:
    """Return the spec; source: transformers 5.24, models/gemma/modeling_gemma.py."""
    dims = read_dims(config)
    return _spec(config, dims, norm_names=_NORMS)


def build_gemma2(config: CheckedConfig) -> ModelSpec:
    """Return the spec; source: transformers 5.24, models/gemma2/modeling_gemma2.py."""
    dims = hidden_divided(config, read_dims(config))
    sliding = sliding_layers(
        config,
        size=config.optional_counts["sliding_window"],
        default=[layer % 2 == 0 for layer in range(dims.num_layers)],
    )
    return _spec(config, dims, norm_names=_SANDWICH_NORMS, sliding=sliding)


def build_gemma3_text(config: CheckedConfig) -> ModelSpec:
    """Return the spec; source: transformers 5.24, models/gemma3/modeling_gemma3.py, Gemma3ForCausalLM."""
    dims = hidden_divided(config, read_dims(config))
    pattern = config.sizes["sliding_window_pattern"]
    size = config.optional_counts["sliding_window"]
    if size is not None and config.other["use_bidirectional_attention"]:
        size = size // 2 + 1  # Gemma3TextConfig.__post_init__: the bounds are exclusive then
    sliding = sliding_layers(
        config, size=size, default=[(layer + 1) % pattern != 0 for layer in range(dims.num_layers)]
    )
    return _spec(config, dims, norm_names=_SANDWICH_NORMS, sliding=sliding, attention_extra=query_key_norms(dims))


def refuse_multimodal(config: CheckedConfig) -> ModelSpec:
    """Raise: the image part of Gemma 3 has no closed list of tensors here."""
    raise config.problem(
        "model_type gemma3 reads images and text, and only its text part is known; give the config's text_config "
        "object (model_type gemma3_text), or trace the model with `scaling.trace` (docs/tracing.md)"
    )


def _spec(
    config: CheckedConfig,
    dims: DecoderDims,
    *,
    norm_names: Sequence[str],
    sliding: SlidingWindow | None = None,
    attention_extra: Tensors = (),
) -> ModelSpec:
    has_bias = config.flags["attention_bias"]
    block = (
        *attention(dims, input_bias=has_bias, output_bias=has_bias),
        *attention_extra,
        *gated_mlp(dims.hidden_size, dims.intermediate_size),
        *(tensor for name in norm_names for tensor in norm(name, dims.hidden_size)),
    )
    return decoder_spec(
        config,
        dims,
        block_groups=[blocks(block, layers=range(dims.num_layers))],
        final_norm=norm("norm", dims.hidden_size),
        sliding=sliding,
    )


_FLAGS = {"attention_bias": False, "tie_word_embeddings": True}
GEMMA = Architecture(
    model_type="gemma",
    classes={"GemmaForCausalLM": CAUSAL_LM},
    build=build_gemma,
    sizes={
        "vocab_size": 256000,
        "hidden_size": 3072,
        "intermediate_size": 24576,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "head_dim": 256,
        "max_position_embeddings": 8192,
    },
    flags=_FLAGS,
)
_GEMMA2_SIZES = {
    "vocab_size": 256000,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "max_position_embeddings": 8192,
}
GEMMA2 = Architecture(
    model_type="gemma2",
    classes={"Gemma2ForCausalLM": CAUSAL_LM},
    build=build_gemma2,
    sizes=_GEMMA2_SIZES,
    optional_counts={"sliding_window": 4096},
    flags=_FLAGS,
    other={"layer_types": None},
)
GEMMA3_TEXT = Architecture(
    model_type="gemma3_text",
    classes={"Gemma3ForCausalLM": CAUSAL_LM},
    build=build_gemma3_text,
    sizes={
        **_GEMMA2_SIZES,
        "vocab_size": 262208,
        "max_position_embeddings": 131072,
        "sliding_window_pattern": 6,
    },
    optional_counts={"sliding_window": 4096},
    flags=_FLAGS,
    other={"layer_types": None, "use_bidirectional_attention": False},
)
GEMMA3 = Architecture(
    model_type="gemma3",
    classes={"Gemma3ForConditionalGeneration": CAUSAL_LM},
    build=refuse_multimodal,
    sizes={},
)
