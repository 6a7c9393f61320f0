"""The token-summed loss against transformers' own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers

from scaling.losses import chunked_token_sum_loss, count_loss_tokens, token_sum_loss

SMALL = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 32,
}
GROUPED = {**SMALL, "num_key_value_heads": 2}
EXPERTS = {"num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": GROUPED,
    "mistral": GROUPED,
    "qwen2": GROUPED,
    "qwen3": {**GROUPED, "head_dim": 8},
    "gemma": {**GROUPED, "head_dim": 8},
    "gemma2": {**GROUPED, "head_dim": 8},
    "gemma3_text": {**GROUPED, "head_dim": 8},
    "phi3": {**GROUPED, "pad_token_id": 0},
    "olmo2": GROUPED,
    "starcoder2": GROUPED,
    "phi": SMALL,
    "gpt2": {"vocab_size": 64, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 32},
    "gptj": {"vocab_size": 64, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 32, "rotary_dim": 4},
    "gpt_neox": SMALL,
    "opt": {**SMALL, "ffn_dim": 64, "word_embed_proj_dim": 32},
    "bloom": {"vocab_size": 64, "hidden_size": 32, "n_layer": 2, "n_head": 4},
    "mpt": {"vocab_size": 64, "d_model": 32, "n_layers": 2, "n_heads": 4, "max_seq_len": 32},
    "falcon": SMALL,
    "mixtral": {**GROUPED, **EXPERTS},
    "qwen2_moe": {**GROUPED, **EXPERTS, "shared_expert_intermediate_size": 32},
    "qwen3_moe": {**GROUPED, **EXPERTS, "head_dim": 8},
}


@pytest.mark.parametrize("model_type", FAMILIES)
def test_token_sum_loss_matches_transformers(model_type: str) -> None:
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(model_type, **FAMILIES[model_type])
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    ids = torch.randint(0, 64, (2, 16))
    labels = ids.clone()
    labels[0, :7] = -100
    labels[1, 12:] = -100
    with torch.no_grad():
        theirs = model(input_ids=ids, labels=labels, num_items_in_batch=1).loss
        ours = token_sum_loss(model(input_ids=ids).logits, labels)
    assert float(ours) == pytest.approx(float(theirs), rel=1e-6)


def test_count_loss_tokens_leaves_out_the_first_and_ignored_ones() -> None:
    # Row 1 predicts its last two of three tokens; row 2 has one label left after the move, row 3 none.
    labels = torch.tensor([[5, 6, 7], [5, 6, -100], [5, -100, -100]])
    assert count_loss_tokens(labels) == 3


@pytest.mark.parametrize("length", [2, 7, 32])
def test_chunked_loss_has_the_value_and_the_gradient_of_torchs_own(length: int) -> None:
    torch.manual_seed(0)
    logits = torch.randn(3, length, 50, requires_grad=True)
    labels = torch.randint(0, 50, (3, length))
    labels[1, length // 2 :] = -100
    chunked_token_sum_loss(logits, labels).backward()
    again = logits.detach().double().requires_grad_()
    theirs = torch.nn.functional.cross_entropy(again[:, :-1].transpose(1, 2), labels[:, 1:], reduction="sum")
    theirs.backward()
    with torch.no_grad():
        assert float(chunked_token_sum_loss(logits, labels)) == pytest.approx(float(theirs), rel=1e-6)
    assert again.grad is not None
    torch.testing.assert_close(logits.grad, again.grad.float(), rtol=1e-5, atol=1e-6)


def test_token_sum_loss_is_computed_in_fp32() -> None:
    # 4096 equally likely classes: ln 4096 = 8.3178 a token; summed in bf16 the 128 tokens would give a multiple of 4.
    logits = torch.zeros(1, 129, 4096, dtype=torch.bfloat16)
    loss = token_sum_loss(logits, torch.zeros(1, 129, dtype=torch.int64))
    assert loss.dtype is torch.float32
    assert float(loss) == pytest.approx(128 * 8.317766166719343, rel=1e-6)
