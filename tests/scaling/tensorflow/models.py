"""Tiny models of both families with the weights of PyTorch, and batches of random tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray

from scaling.models import build_config
from strategies.load_model import ResolvedModel, resolve_model

SIZES = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "initializer_range": 0.2,
}
"""With a larger spread than usual, so that a slip in one term shows."""
LLAMA = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], **SIZES}
GPT2 = {
    "model_type": "gpt2",
    "architectures": ["GPT2LMHeadModel"],
    "vocab_size": 97,
    "n_positions": 64,
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 4,
    "initializer_range": 0.2,
    "attn_pdrop": 0.0,
    "embd_pdrop": 0.0,
    "resid_pdrop": 0.0,
}
LLAMA3_SCALING = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
MODELS: Mapping[str, dict[str, Any]] = {
    "llama": LLAMA,
    "llama-tied": {**LLAMA, "tie_word_embeddings": True},
    "llama-padding": {**LLAMA, "tie_word_embeddings": True, "pad_token_id": 7},
    "llama-biases": {**LLAMA, "attention_bias": True, "mlp_bias": True, "rms_norm_eps": 1e-3},
    "llama-scaled": {**LLAMA, "rope_parameters": LLAMA3_SCALING},
    "mistral": {**LLAMA, "model_type": "mistral", "architectures": ["MistralForCausalLM"], "sliding_window": 5},
    "qwen2": {
        **LLAMA,
        "model_type": "qwen2",
        "architectures": ["Qwen2ForCausalLM"],
        "use_sliding_window": True,
        "sliding_window": 5,
        "max_window_layers": 1,
    },
    "qwen3": {**LLAMA, "model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "head_dim": 16},
    "gpt2": GPT2,
    "gpt2-untied": {**GPT2, "tie_word_embeddings": False, "n_inner": 40, "layer_norm_epsilon": 1e-3},
}


def resolved(name: str, **changes: Any) -> ResolvedModel:
    return resolve_model({**MODELS[name], **changes})


def torch_model(model: ResolvedModel) -> Any:
    """Return transformers' model with random weights, biases and norms too, in training."""
    torch.manual_seed(0)
    built = transformers.AutoModelForCausalLM.from_config(build_config(model), attn_implementation="eager")
    with torch.no_grad():
        for parameter in built.parameters():
            if parameter.dim() == 1:  # ones and zeros at first, which would hide them
                parameter.add_(0.1 * torch.randn_like(parameter))
    built.config.use_cache = False
    return built.train()


def tokens(shape: tuple[int, ...], *, seed: int = 0) -> NDArray[np.int32]:
    return np.random.default_rng(seed).integers(0, SIZES["vocab_size"], shape).astype(np.int32)
