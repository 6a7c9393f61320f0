"""Small configurations of the families that traces are checked on: narrow, any depth, two samples of 64 tokens.

The vocabulary has a size that no other dimension has, since logits are told by it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from scaling.trace import image_batch, token_batch
from strategies.model_spec import TaskKind

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PretrainedConfig

TEN_ARCHITECTURES = ("llama", "gpt2", "mistral", "qwen2", "qwen3", "gemma", "mixtral", "bert", "t5", "vit")
THIRTEEN_FAMILIES = (
    *("llama", "gpt2", "mistral-window", "qwen2", "qwen3", "gemma", "gemma2", "gemma3"),
    *("mixtral", "qwen3-moe", "bert", "t5", "vit"),
)
TASKS = {
    "bert": TaskKind.MASKED_LM,
    "t5": TaskKind.SEQ2SEQ_LM,
    "vit": TaskKind.IMAGE_CLASSIFICATION,
}
WINDOW = 16
"""Sliding window, shorter than the sequence, so that masks are built."""

_DECODER = {
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 509,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 2,
}
_ENCODER = {"hidden_size": 64, "intermediate_size": 160, "num_attention_heads": 4}
_EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 96}
_MAKERS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", _DECODER),
    "mistral": ("MistralConfig", {**_DECODER, "sliding_window": None}),
    "mistral-window": ("MistralConfig", {**_DECODER, "sliding_window": WINDOW}),
    "qwen2": ("Qwen2Config", _DECODER),
    "qwen3": ("Qwen3Config", {**_DECODER, "head_dim": 16}),
    "gemma": ("GemmaConfig", {**_DECODER, "head_dim": 16}),
    "gemma2": ("Gemma2Config", {**_DECODER, "head_dim": 16, "sliding_window": WINDOW}),
    "gemma3": ("Gemma3TextConfig", {**_DECODER, "head_dim": 16, "sliding_window": WINDOW}),
    "mixtral": ("MixtralConfig", {**_DECODER, "num_local_experts": 4}),
    "qwen3-moe": ("Qwen3MoeConfig", {**_DECODER, **_EXPERTS, "head_dim": 16, "num_experts": 4}),
    "gpt2": ("GPT2Config", {"n_embd": 64, "n_head": 4, "vocab_size": 509, "bos_token_id": 0, "eos_token_id": 1}),
    "bert": ("BertConfig", {**_ENCODER, "vocab_size": 509, "max_position_embeddings": 1024}),
    "t5": (
        "T5Config",
        {"d_model": 64, "d_ff": 160, "d_kv": 16, "num_heads": 4, "vocab_size": 509, "decoder_start_token_id": 0},
    ),
    "vit": ("ViTConfig", {**_ENCODER, "image_size": 64, "patch_size": 16}),
}
_DEPTH_KEYS = {"gpt2": ("n_layer",), "t5": ("num_layers", "num_decoder_layers")}


def family_config(family: str, *, num_layers: int) -> PretrainedConfig:
    """Return a narrow configuration of ``family`` with ``num_layers`` blocks a stack."""
    import transformers

    kind, values = _MAKERS[family]
    depths = dict.fromkeys(_DEPTH_KEYS.get(family, ("num_hidden_layers",)), num_layers)
    config: PretrainedConfig = getattr(transformers, kind)(**values, **depths)
    return config


def family_task(family: str) -> TaskKind:
    """Return what models of ``family`` are trained to do."""
    return TASKS.get(family, TaskKind.CAUSAL_LM)


def family_attention(family: str) -> str:
    """Return how attention is computed: Gemma 2 caps its scores, which only the eager implementation can."""
    return "eager" if family == "gemma2" else "sdpa"


def family_model(family: str, *, num_layers: int) -> Callable[[], Any]:
    """Return what makes a narrow model of ``family``."""
    from scaling.trace import model_factory

    config = family_config(family, num_layers=num_layers)
    return model_factory(config, task=family_task(family), attention=family_attention(family))


def family_batch(family: str, *, micro_batch_size: int = 2, seq_len: int = 64) -> dict[str, Tensor]:
    """Return two samples (or ``micro_batch_size``) that models of ``family`` read."""
    if family == "vit":
        return image_batch(family_config(family, num_layers=1), micro_batch_size=micro_batch_size)
    return token_batch(micro_batch_size=micro_batch_size, seq_len=seq_len, task=family_task(family))
