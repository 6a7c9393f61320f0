"""GPT-J (Wang and Komatsuzaki 2021)."""

from __future__ import annotations

from strategies.architectures.config import Architecture, CheckedConfig
from strategies.architectures.decoder import CAUSAL_LM, lm_head, spec_from_groups
from strategies.architectures.gpt2 import GPT2_SPELLINGS, read_gpt2_dims
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


def build(config: CheckedConfig) -> ModelSpec:
    """Return the spec; source: transformers 5.24, models/gptj/modeling_gptj.py. One norm feeds attention and MLP."""
    dims = read_gpt2_dims(config)
    width = dims.hidden_size
    projections = tuple(
        tensor for name in ("k_proj", "v_proj", "q_proj", "out_proj") for tensor in linear(name, width, width)
    )
    block = (
        *norm("ln_1", width, bias=True),
        *under("attn.", projections),
        *linear("mlp.fc_in", width, dims.intermediate_size, bias=True),
        *linear("mlp.fc_out", dims.intermediate_size, width, bias=True),
    )
    groups = [
        embedding_group(embedding("transformer.wte", dims.vocab_size, width)),
        block_group(under("transformer.h.{layer}.", block), layers=range(dims.num_layers)),
        other_group(norm("transformer.ln_f", width, bias=True), name="final_norm"),
        lm_head(dims, bias=True),
    ]
    return spec_from_groups(config, dims, groups=groups, has_gated_mlp=False)


GPTJ = Architecture(
    model_type="gptj",
    classes={"GPTJForCausalLM": CAUSAL_LM},
    build=build,
    sizes={"vocab_size": 50400, "n_positions": 2048, "n_embd": 4096, "n_layer": 28, "n_head": 16},
    optional_sizes={"n_inner": None},
    flags={"tie_word_embeddings": False},
    renamed=GPT2_SPELLINGS,
)
