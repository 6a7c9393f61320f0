"""Weights from and to the Hugging Face model: copies, under the names of one table a family."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import keras
import torch

from scaling.checkpoint_export import generation_of
from scaling.errors import ModelError
from scaling.export import export_tensors, shell_of
from scaling.models import auto_class, build_config
from scaling.tensorflow.decoder import Decoder

Names = Mapping[str, str]
"""From the Hugging Face name to the attribute of `Decoder`, both with ``{layer}`` for the index of the block."""

_LLAMA_BLOCK = {
    "input_layernorm": "input_norm",
    "self_attn.q_proj": "query",
    "self_attn.k_proj": "key",
    "self_attn.v_proj": "value",
    "self_attn.o_proj": "out",
    "self_attn.q_norm": "query_norm",
    "self_attn.k_norm": "key_norm",
    "post_attention_layernorm": "mlp_norm",
    "mlp.gate_proj": "gate",
    "mlp.up_proj": "up",
    "mlp.down_proj": "down",
}
_GPT2_BLOCK = {
    "ln_1": "attention_norm",
    "attn.c_attn": "projections",
    "attn.c_proj": "out",
    "ln_2": "mlp_norm",
    "mlp.c_fc": "up",
    "mlp.c_proj": "down",
}
LLAMA_NAMES: Names = MappingProxyType(
    {
        "model.embed_tokens": "embedding",
        **{f"model.layers.{{layer}}.{theirs}": f"blocks.{{layer}}.{ours}" for theirs, ours in _LLAMA_BLOCK.items()},
        "model.norm": "norm",
        "lm_head": "head",
    }
)
"""Of llama, mistral, qwen2 and qwen3."""
GPT2_NAMES: Names = MappingProxyType(
    {
        "transformer.wte": "embedding",
        "transformer.wpe": "positions",
        **{f"transformer.h.{{layer}}.{theirs}": f"blocks.{{layer}}.{ours}" for theirs, ours in _GPT2_BLOCK.items()},
        "transformer.ln_f": "norm",
        "lm_head": "head",
    }
)


def parameters_by_name(model: Decoder) -> dict[str, keras.Variable]:
    """Return every parameter under its Hugging Face name and in that model's order, tied ones once."""
    spec = model.config.spec
    names = GPT2_NAMES if spec.family == "gpt2" else LLAMA_NAMES
    found: dict[str, keras.Variable] = {}
    for name, _ in spec.parameters():
        module, _, tensor = name.rpartition(".")
        found[name] = getattr(_layer(model, module, names), tensor)
    return found


def _layer(model: Decoder, module: str, names: Names) -> keras.layers.Layer:
    """Return the layer that stands for a module of the Hugging Face model."""
    parts = module.split(".")
    index = next((part for part in parts if part.isdigit()), "")
    attributes = names[".".join("{layer}" if part.isdigit() else part for part in parts)].split(".")
    if not index:
        return getattr(model, attributes[0])
    return getattr(model.blocks[int(index)], attributes[-1])


def load_hugging_face(model: Decoder, source: Path | torch.nn.Module) -> None:
    """Copy the weights of a PyTorch model, or of a folder that ``from_pretrained`` opens, into every replica.

    Raises:
        ModelError: a tensor is missing or has another shape.
    """
    state = _state(source, model) if isinstance(source, Path) else source.state_dict()
    parameters = parameters_by_name(model)
    if absent := [name for name in parameters if name not in state]:
        raise ModelError(
            f"the weights of {model.config.spec.name} lack {', '.join(absent[:3])} ({len(absent)} tensors in all)"
        )
    for name, variable in parameters.items():
        tensor = state[name].detach().float().cpu()
        if tuple(tensor.shape) != tuple(variable.shape):
            raise ModelError(
                f"the weight {name} has shape {tuple(tensor.shape)}, but model {model.config.spec.name} has "
                f"{tuple(variable.shape)}; give the weights of this model"
            )
        variable.value.assign(tensor.numpy())


def _state(folder: Path, model: Decoder) -> dict[str, torch.Tensor]:
    opener = auto_class(build_config(model.resolved))
    opened, report = opener.from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
    if absent := sorted(report["missing_keys"]):
        raise ModelError(
            f"the weights in {folder} lack {', '.join(absent[:3])} ({len(absent)} tensors in all); "
            f"give a folder with the whole model"
        )
    state: dict[str, torch.Tensor] = opened.state_dict()
    return state


def save_hugging_face(model: Decoder, folder: Path, *, tokenizer: Any = None) -> None:
    """Write a folder that ``from_pretrained`` opens; it appears complete and checked, or not at all.

    Raises:
        ExportError: the folder exists, cannot be written, or does not open as what was trained.
    """
    resolved = model.resolved
    shell = shell_of(build_config(resolved), dtype=torch.float32, generation=generation_of(resolved))
    tensors = ((name, torch.from_numpy(variable.numpy())) for name, variable in parameters_by_name(model).items())
    export_tensors(tensors, shell, tokenizer, folder=folder)
