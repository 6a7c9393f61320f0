"""GPT-2 (Radford et al. 2019)."""

from __future__ import annotations

from strategies.architectures.config import Architecture, CheckedConfig
from strategies.architectures.decoder import CAUSAL_LM, DecoderDims, lm_head, spec_from_groups
from strategies.architectures.tensors import (
    block_group,
    conv1d,
    embedding,
    embedding_group,
    norm,
    other_group,
    under,
)
from strategies.model_spec import ModelSpec


def read_gpt2_dims(config: CheckedConfig) -> DecoderDims:
    """Return the dimensions of a decoder whose keys are named as GPT-2's."""
    hidden_size, num_heads = config.sizes["n_embd"], config.sizes["n_head"]
    return DecoderDims(
        hidden_size=hidden_size,
        num_layers=config.sizes["n_layer"],
        num_attention_heads=num_heads,
        num_key_value_heads=num_heads,
        head_dim=config.head_dim(hidden_size, num_heads),
        intermediate_size=config.optional_sizes["n_inner"] or 4 * hidden_size,
        vocab_size=config.sizes["vocab_size"],
        max_seq_len=config.sizes["n_positions"],
        tied=config.flags["tie_word_embeddings"],
    )


def build(config: CheckedConfig) -> ModelSpec:
    """Return the spec; source: transformers 5.24, models/gpt2/modeling_gpt2.py."""
    dims = read_gpt2_dims(config)
    width = dims.hidden_size
    embeddings = embedding("wte", dims.vocab_size, width) + embedding("wpe", config.sizes["n_positions"], width)
    block = (
        *norm("ln_1", width, bias=True),
        *conv1d("attn.c_attn", width, 3 * width),
        *conv1d("attn.c_proj", width, width),
        *norm("ln_2", width, bias=True),
        *conv1d("mlp.c_fc", width, dims.intermediate_size),
        *conv1d("mlp.c_proj", dims.intermediate_size, width),
    )
    groups = [
        embedding_group(under("transformer.", embeddings)),
        block_group(under("transformer.h.{layer}.", block), layers=range(dims.num_layers)),
        other_group(norm("transformer.ln_f", width, bias=True), name="final_norm"),
        lm_head(dims),
    ]
    return spec_from_groups(config, dims, groups=groups, has_gated_mlp=False)


GPT2_SPELLINGS = {
    "hidden_size": "n_embd",
    "max_position_embeddings": "n_positions",
    "num_attention_heads": "n_head",
    "num_hidden_layers": "n_layer",
}
GPT2 = Architecture(
    model_type="gpt2",
    classes={"GPT2LMHeadModel": CAUSAL_LM},
    build=build,
    sizes={"vocab_size": 50257, "n_positions": 1024, "n_embd": 768, "n_layer": 12, "n_head": 12},
    optional_sizes={"n_inner": None},
    flags={"tie_word_embeddings": True},
    renamed=GPT2_SPELLINGS,
)
