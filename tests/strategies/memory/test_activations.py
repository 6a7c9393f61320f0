"""Activation formulas against what transformers' own modules keep alive on real CPU tensors, counted by storage."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from scaling.losses import token_sum_loss
from scaling.storage_log import StorageLog
from strategies.errors import SpecError
from strategies.job import Precision
from strategies.load_model import load_model_spec
from strategies.memory.activations import block_activations, kept_activations, outer_activations
from strategies.memory.logits import standard_loss
from strategies.plan import ActivationCheckpointing
from tests.strategies.builders import tiny_spec

GQA = {"num_attention_heads": 8, "num_key_value_heads": 2}
MHA = {"num_attention_heads": 4, "num_key_value_heads": 4}
WIDTHS = {"hidden_size": 128, "intermediate_size": 352, "vocab_size": 600}
IDS = {"pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 0}
CONFIGS: dict[str, dict[str, Any]] = {
    "llama-gqa": {"model_type": "llama", **WIDTHS, **GQA},
    "llama-mha": {"model_type": "llama", **WIDTHS, **MHA},
    "mistral": {"model_type": "mistral", **WIDTHS, **GQA, "sliding_window": None},
    "qwen2": {"model_type": "qwen2", **WIDTHS, **GQA},
    "qwen3": {"model_type": "qwen3", **WIDTHS, **GQA, "head_dim": 64},
    "granite": {"model_type": "granite", **WIDTHS, **GQA},
    "olmo2": {"model_type": "olmo2", **WIDTHS, **GQA},
    "stablelm": {"model_type": "stablelm", **WIDTHS, **GQA},
    "gemma3": {"model_type": "gemma3_text", **WIDTHS, **GQA, "head_dim": 64, "sliding_window": 4096},
    "gemma": {"model_type": "gemma", **WIDTHS, **GQA, "head_dim": 64},
    "phi3": {"model_type": "phi3", **WIDTHS, **GQA, "sliding_window": None},
    "gpt_neox": {"model_type": "gpt_neox", **WIDTHS, "num_attention_heads": 4},
    # Attention dropout off: with it torch's CPU attention falls back to keeping quadratic weights.
    "gpt2": {"model_type": "gpt2", "n_embd": 128, "n_head": 4, "vocab_size": 600, "attn_pdrop": 0.0},
    "opt": {"model_type": "opt", "hidden_size": 128, "ffn_dim": 352, "num_attention_heads": 4, "vocab_size": 600,
            "word_embed_proj_dim": 128},
}  # fmt: skip
DTYPES = {Precision.FP32: torch.float32, Precision.BF16: torch.bfloat16}
BATCH, SEQ = 3, 128


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """Bytes that a forward left alive, of models with 2 and 3 blocks."""

    two: int
    three: int


def measure(config: dict[str, Any], precision: Precision, *, checkpointing: bool = False) -> Kept:
    two, three = (_kept_bytes(config, layers, precision, checkpointing) for layers in (2, 3))
    return Kept(two=two, three=three)


def _kept_bytes(config: dict[str, Any], num_layers: int, precision: Precision, checkpointing: bool) -> int:
    model = AutoModelForCausalLM.from_config(
        AutoConfig.for_model(**config, **_depth(config, num_layers), **IDS, use_cache=False),
        dtype=DTYPES[precision],
        attn_implementation="sdpa",
    ).train()
    if checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    log = StorageLog()
    log.adopt([*model.parameters(), *model.buffers()])
    resident = log.live_bytes
    with log:
        ids = torch.zeros(BATCH, SEQ, dtype=torch.long)
        loss = token_sum_loss(model(input_ids=ids).logits, ids)
        kept = log.live_bytes - resident
    loss.backward()
    return kept


def _depth(config: dict[str, Any], num_layers: int) -> dict[str, int]:
    return {"n_layer" if config["model_type"] == "gpt2" else "num_hidden_layers": num_layers}


@pytest.mark.parametrize("precision", list(DTYPES))
@pytest.mark.parametrize("name", CONFIGS)
def test_block_activations_match_what_transformers_keeps(name: str, precision: Precision) -> None:
    kept = measure(CONFIGS[name], precision)
    spec = load_model_spec({**CONFIGS[name], **_depth(CONFIGS[name], 2)})
    ours = block_activations(spec, num_tokens=BATCH * SEQ, precision=precision, on_cpu=True)
    assert kept.three - kept.two == ours


@pytest.mark.parametrize("precision", list(DTYPES))
@pytest.mark.parametrize("name", CONFIGS)
def test_whole_forward_matches_within_a_few_bytes_a_token(name: str, precision: Precision) -> None:
    kept = measure(CONFIGS[name], precision)
    spec = load_model_spec({**CONFIGS[name], **_depth(CONFIGS[name], 2)})
    tokens = BATCH * SEQ
    blocks = kept_activations(
        spec,
        num_tokens=tokens,
        precision=precision,
        activation_checkpointing=ActivationCheckpointing.NONE,
        on_cpu=True,
    )
    outer = outer_activations(spec, num_tokens=tokens, seq_len=SEQ, precision=precision, on_cpu=True)
    logits = standard_loss(spec, num_tokens=tokens, precision=precision).kept
    assert abs(kept.two - blocks - outer - logits) <= 24 * tokens


EXPERTS = {
    "mixtral": {"model_type": "mixtral", **WIDTHS, **GQA, "num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen3_moe": {"model_type": "qwen3_moe", **WIDTHS, **GQA, "head_dim": 64, "num_experts": 8,
                  "num_experts_per_tok": 2, "moe_intermediate_size": 96},
    "qwen2_moe": {"model_type": "qwen2_moe", **WIDTHS, **GQA, "num_experts": 8, "num_experts_per_tok": 2,
                  "moe_intermediate_size": 96, "shared_expert_intermediate_size": 192},
}  # fmt: skip


@pytest.mark.parametrize("name", EXPERTS)
def test_expert_blocks_are_within_their_router(name: str) -> None:
    """The router's own tensors (scores, sorted indices: a few numbers an expert and token) have no form."""
    config = {**EXPERTS[name], "sliding_window": None}
    kept = measure(config, Precision.BF16)
    spec = load_model_spec({**config, "num_hidden_layers": 2})
    tokens = BATCH * SEQ
    ours = block_activations(spec, num_tokens=tokens, precision=Precision.BF16, on_cpu=True)
    router = tokens * (14 * spec.num_experts + 64 * spec.num_experts_per_token)
    assert 0 <= kept.three - kept.two - ours <= router


@pytest.mark.parametrize("precision", list(DTYPES))
def test_full_activation_checkpointing_keeps_one_input_a_block(precision: Precision) -> None:
    kept = measure(CONFIGS["llama-gqa"], precision, checkpointing=True)
    spec = load_model_spec({**CONFIGS["llama-gqa"], "num_hidden_layers": 1})
    ours = kept_activations(
        spec,
        num_tokens=BATCH * SEQ,
        precision=precision,
        activation_checkpointing=ActivationCheckpointing.FULL,
    )
    rng_state = torch.get_rng_state().nbytes  # kept per block on a CPU; host memory where the device is a GPU
    assert 0 <= kept.three - kept.two - ours <= rng_state


# tracing.md's source: published Llama-3-8B widths, bf16, CUDA kernels: 16h + 4q + 4k + 8f + 4a + 8 bytes a token.
def test_block_activations_of_llama_3_8b_on_cuda() -> None:
    spec = load_model_spec("llama-3.1-8b")
    per_token = 16 * 4096 + 4 * 4096 + 4 * 1024 + 8 * 14336 + 4 * 32 + 8
    assert block_activations(spec, num_tokens=4096, precision=Precision.BF16) == 4096 * per_token + 24


def test_unknown_family_is_refused_by_name() -> None:
    spec = replace(tiny_spec(), family="bloom")
    with pytest.raises(
        SpecError, match=r"no closed form for the activations of model_type='bloom'.*parameters are known"
    ):
        block_activations(spec, num_tokens=1, precision=Precision.BF16)
