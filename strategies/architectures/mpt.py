"""MPT (MosaicML 2023)."""

from __future__ import annotations

from strategies.architectures.config import Architecture, CheckedConfig, shown
from strategies.architectures.decoder import CAUSAL_LM, DecoderDims, lm_head, spec_from_groups
from strategies.architectures.tensors import (
    block_group,
    embedding,
    embedding_group,
    linear,
    norm,
    other_group,
    under,
)
from strategies.model_spec import ModelSpec

BUILT_ATTENTION = {"attn_type": "multihead_attention", "qk_ln": False, "alibi": True}
"""Keys of ``attn_config`` that would change the parameters, with the only value that MptForCausalLM builds."""


def build(config: CheckedConfig) -> ModelSpec:
    """Return the spec; source: transformers 5.24, models/mpt/modeling_mpt.py. No biases, not even in the norms."""
    _check_attention(config)
    width, num_heads = config.sizes["d_model"], config.sizes["n_heads"]
    dims = DecoderDims(
        hidden_size=width,
        num_layers=config.sizes["n_layers"],
        num_attention_heads=num_heads,
        num_key_value_heads=num_heads,
        head_dim=config.head_dim(width, num_heads),
        intermediate_size=4 * width,
        vocab_size=config.sizes["vocab_size"],
        max_seq_len=config.sizes["max_seq_len"],
        tied=config.flags["tie_word_embeddings"],
    )
    block = (
        *norm("norm_1", width),
        *linear("attn.Wqkv", width, 3 * width),
        *linear("attn.out_proj", width, width),
        *norm("norm_2", width),
        *linear("ffn.up_proj", width, dims.intermediate_size),
        *linear("ffn.down_proj", dims.intermediate_size, width),
    )
    groups = [
        embedding_group(embedding("transformer.wte", dims.vocab_size, width)),
        block_group(under("transformer.blocks.{layer}.", block), layers=range(dims.num_layers)),
        other_group(norm("transformer.norm_f", width), name="final_norm"),
        lm_head(dims),
    ]
    return spec_from_groups(config, dims, groups=groups, has_gated_mlp=False)


def _check_attention(config: CheckedConfig) -> None:
    given = config.other["attn_config"] or {}
    if not isinstance(given, dict):
        raise config.problem(f"attn_config={shown(given)} must be an object; correct the config.json")
    for key, built in BUILT_ATTENTION.items():
        if given.get(key, built) != built:
            raise config.problem(
                f"attn_config.{key}={shown(given[key])} is not what Hugging Face's MptForCausalLM builds, which is "
                f"{built}; correct the config.json"
            )


MPT = Architecture(
    model_type="mpt",
    classes={"MptForCausalLM": CAUSAL_LM, "MPTForCausalLM": CAUSAL_LM},
    build=build,
    sizes={"vocab_size": 50368, "d_model": 2048, "n_layers": 24, "n_heads": 16, "max_seq_len": 2048},
    flags={"tie_word_embeddings": True},
    other={"attn_config": None},
    renamed={"hidden_size": "d_model", "num_hidden_layers": "n_layers", "num_attention_heads": "n_heads"},
    only={"expansion_ratio": (4,), "no_bias": (True,)},
)
