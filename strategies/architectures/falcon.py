"""Falcon (Almazrouei et al. 2023, arXiv:2311.16867)."""

from __future__ import annotations

from strategies.architectures.config import Architecture, CheckedConfig
from strategies.architectures.decoder import CAUSAL_LM, DecoderDims, lm_head, spec_from_groups
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
from strategies.model_spec import ModelSpec


def build(config: CheckedConfig) -> ModelSpec:
    """Return the spec; source: transformers 5.24, models/falcon/modeling_falcon.py."""
    width, num_heads = config.sizes["hidden_size"], config.sizes["num_attention_heads"]
    dims = DecoderDims(
        hidden_size=width,
        num_layers=config.sizes["num_hidden_layers"],
        num_attention_heads=num_heads,
        num_key_value_heads=_num_key_value_heads(config),
        head_dim=config.head_dim(width, num_heads),
        intermediate_size=config.optional_sizes["ffn_hidden_size"] or 4 * width,
        vocab_size=config.sizes["vocab_size"],
        max_seq_len=None if config.flags["alibi"] else config.sizes["max_position_embeddings"],
        tied=config.flags["tie_word_embeddings"],
    )
    has_bias = config.flags["bias"]
    block = (
        *linear("self_attention.query_key_value", width, width + 2 * dims.key_value_size, bias=has_bias),
        *linear("self_attention.dense", width, width, bias=has_bias),
        *linear("mlp.dense_h_to_4h", width, dims.intermediate_size, bias=has_bias),
        *linear("mlp.dense_4h_to_h", dims.intermediate_size, width, bias=has_bias),
        *_norms(config, width),
    )
    groups = [
        embedding_group(embedding("transformer.word_embeddings", dims.vocab_size, width)),
        block_group(under("transformer.h.{layer}.", block), layers=range(dims.num_layers)),
        other_group(norm("transformer.ln_f", width, bias=True), name="final_norm"),
        lm_head(dims),
    ]
    return spec_from_groups(config, dims, groups=groups, has_gated_mlp=False)


def _num_key_value_heads(config: CheckedConfig) -> int:
    num_heads = config.sizes["num_attention_heads"]
    given = config.optional_sizes["num_kv_heads"] or num_heads
    if config.flags["new_decoder_architecture"]:
        return given
    if config.flags["multi_query"]:
        return 1  # num_kv_heads is not read then; published configs leave it at the number of heads
    if given != num_heads:
        raise config.problem(
            f"num_kv_heads={given} must equal num_attention_heads={num_heads} where new_decoder_architecture and "
            "multi_query are false; correct the config.json"
        )
    return num_heads


def _norms(config: CheckedConfig, width: int) -> Tensors:
    """Return the norms of a block in the order of FalconDecoderLayer, which depends on three keys."""
    given = config.optional_sizes["num_ln_in_parallel_attn"]
    num_parallel_norms = given or (2 if config.flags["new_decoder_architecture"] else 1)
    if not config.flags["parallel_attn"]:
        names = ["post_attention_layernorm", "input_layernorm"]
    elif num_parallel_norms == 2:
        names = ["ln_attn", "ln_mlp"]
    else:
        names = ["input_layernorm"]
    return tuple(tensor for name in names for tensor in norm(name, width, bias=True))


FALCON = Architecture(
    model_type="falcon",
    classes={"FalconForCausalLM": CAUSAL_LM},
    build=build,
    sizes={
        "vocab_size": 65024,
        "hidden_size": 4544,
        "num_hidden_layers": 32,
        "num_attention_heads": 71,
        "max_position_embeddings": 2048,
    },
    optional_sizes={"num_kv_heads": None, "ffn_hidden_size": None, "num_ln_in_parallel_attn": None},
    flags={
        "alibi": False,
        "new_decoder_architecture": False,
        "multi_query": True,
        "parallel_attn": True,
        "bias": False,
        "tie_word_embeddings": True,
    },
    renamed={"n_embed": "hidden_size"},
)
