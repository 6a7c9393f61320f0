from __future__ import annotations

import csv
from itertools import product

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoConfig, AutoModelForCausalLM

from benchmarks.published_cases import FOLDER
from strategies.adapt import as_trained
from strategies.architectures import spec_from_config
from strategies.job import Job
from strategies.load_model import load_model_spec
from strategies.time.flops import (
    MfuDefinition,
    active_params,
    attended_tokens,
    forward_flops,
    model_flops,
    utilisation,
)
from strategies.trained import is_frozen

TINY = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 96}
LLAMA_LIKE = {**TINY, "num_key_value_heads": 2, "intermediate_size": 80, "tie_word_embeddings": False}
CONFIGS = [
    {"model_type": "llama", **LLAMA_LIKE},
    {"model_type": "qwen2", **LLAMA_LIKE, "tie_word_embeddings": True},
    {"model_type": "gpt2", "n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 96, "n_positions": 32},
    {"model_type": "mixtral", **LLAMA_LIKE, "num_local_experts": 4, "num_experts_per_tok": 2},
]


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: str(config["model_type"]))
def test_training_flops_match_torch_flop_counter(config: dict[str, object]) -> None:
    spec = spec_from_config(config, name="tiny")
    loaded = AutoConfig.for_model(**config)
    model = AutoModelForCausalLM.from_config(loaded, attn_implementation="eager", experts_implementation="eager")
    tokens = torch.arange(2 * 16).reshape(2, 16) % 96
    with FlopCounterMode(display=False) as counter:
        model(input_ids=tokens, use_cache=False).logits.sum().backward()
    counted = counter.get_total_flops() / tokens.numel()
    # torch counts rotary's outer product (positions times frequencies), which has no weight.
    rotation = spec.head_dim / 2
    expected = model_flops(spec, seq_len=16, definition=MfuDefinition.MEGATRON)
    assert counted == pytest.approx(expected, abs=rotation)


@pytest.mark.parametrize("freeze", [("*", "!lm_head*"), ("*embed_tokens*", "*layers.0.*"), ("*mlp*",)])
def test_flops_of_a_model_of_which_a_part_is_trained_match_torch_flop_counter(freeze: tuple[str, ...]) -> None:
    config = CONFIGS[0]
    job = Job(seq_len=16, global_batch_size=2, freeze=freeze)
    spec = as_trained(spec_from_config(config, name="tiny"), job)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config), attn_implementation="eager")
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(not is_frozen(name, freeze))
    with FlopCounterMode(display=False) as counter:
        model(input_ids=torch.arange(2 * 16).reshape(2, 16) % 96, use_cache=False).logits.sum().backward()
    ours = model_flops(spec, seq_len=16, definition=MfuDefinition.MEGATRON)
    assert counter.get_total_flops() == 2 * 16 * ours


@pytest.mark.parametrize(("seq_len", "window"), list(product((7, 16), (None, 3, 16, 40))))
def test_attended_tokens_match_counting_pairs(seq_len: int, window: int | None) -> None:
    pairs = [(query, key) for query in range(seq_len) for key in range(query + 1)]
    seen = [(query, key) for query, key in pairs if window is None or query - key < window]
    assert attended_tokens(seq_len, window=window, causal=True) == pytest.approx(len(seen) / seq_len)


def test_causal_attention_counts_half_in_the_limit() -> None:
    spec = load_model_spec("llama-3.1-8b")
    full, causal = (forward_flops(spec, seq_len=8192, causal=causal).attention for causal in (False, True))
    assert causal / full == pytest.approx(0.5, abs=1e-4)


def test_model_flops_match_llm_foundry_mfu() -> None:
    """llm-foundry's own MFU column; its MPT has a position table, which Hugging Face's has not: large, short runs."""
    with (FOLDER / "measured.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["id"].startswith("LF-") and row["seq_len"] == "2048"]
    peaks = {"A100": 312e12, "H100": 989.4e12}
    checked = 0
    for row in rows:
        name = {"MPT-7b": "mpt-7b", "MPT-30b": "mpt-30b"}.get(row["model"])
        if name is None or "fp8" in row["precision"]:
            continue
        flops = model_flops(load_model_spec(name), seq_len=2048)
        peak = peaks[row["gpu"][:4]]
        mfu = utilisation(flops, tokens_per_s_per_gpu=float(row["tokens_per_s_per_gpu"]), peak_flops_per_s=peak)
        assert 100 * mfu == pytest.approx(float(row["mfu"]), rel=2e-3)
        checked += 1
    assert checked >= 15


def test_model_flops_without_embedding_match_torchtitan_mfu() -> None:
    # TTC-001: torchtitan prints 5605 tokens/s and 32.82 % of 989 TFLOP/s for Llama 3.1 8B at 8192.
    flops = model_flops(load_model_spec("llama-3.1-8b"), seq_len=8192, definition=MfuDefinition.WITHOUT_EMBEDDING)
    mfu = utilisation(flops, tokens_per_s_per_gpu=5605, peak_flops_per_s=989e12)
    assert 100 * mfu == pytest.approx(32.82, abs=0.02)


@pytest.mark.parametrize(
    ("model", "billions"),
    # Jiang et al. 2024, arXiv:2401.04088, section 2; Qwen3's model card: 3.3B activated.
    [("mixtral-8x7b", 12.9), ("mixtral-8x22b", 39.1), ("qwen3-30b-a3b", 3.35)],
)
def test_active_params_match_model_cards(model: str, billions: float) -> None:
    assert active_params(load_model_spec(model)) / 1e9 == pytest.approx(billions, rel=0.01)
