"""Head and loss as one function against the same model's own logits and torch's cross-entropy."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import transformers

from scaling.errors import ModelError
from scaling.fused_loss import compute_loss_fused
from scaling.losses import IGNORED_LABEL, next_token_labels, token_sum_loss
from scaling.storage_log import StorageLog
from strategies.job import Precision
from strategies.search import FUSED_LOSS_FAMILIES

SIZES = {
    "vocab_size": 97,
    "hidden_size": 32,
    "n_embd": 32,
    "intermediate_size": 48,
    "ffn_dim": 48,
    "word_embed_proj_dim": 32,
    "num_hidden_layers": 1,
    "n_layer": 1,
    "num_attention_heads": 4,
    "n_head": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "rotary_dim": 4,
    "num_experts": 4,
    "num_local_experts": 2,
    "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 16,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "use_cache": False,
    "attention_dropout": 0.0,
    "dropout": 0.0,
    "resid_pdrop": 0.0,
    "embd_pdrop": 0.0,
    "attn_pdrop": 0.0,
    "hidden_dropout": 0.0,
    "embedding_dropout": 0.0,
}
OWN_SIZES: dict[str, dict[str, Any]] = {
    "granite": {"logits_scaling": 3.0},
    "gemma2": {"final_logit_softcapping": 2.0},
    "falcon": {"num_kv_heads": 4, "head_dim": None},
}


def tiny(model_type: str, **changes: Any) -> Any:
    sizes = {**SIZES, **OWN_SIZES.get(model_type, {}), **changes}
    given = {name: size for name, size in sizes.items() if size is not None}
    config = transformers.AutoConfig.for_model(model_type, **given)
    torch.manual_seed(0)
    model: Any = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():  # zero biases and equal norms would hide that they are left out
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    return model


def ids_and_labels() -> tuple[torch.Tensor, torch.Tensor]:
    ids = torch.randint(3, 97, (2, 21), generator=torch.Generator().manual_seed(1))
    labels = ids.clone()
    labels[0, :9] = IGNORED_LABEL
    return ids, labels


def relative(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found - expected).norm() / expected.norm().clamp(min=1e-30))


@pytest.mark.parametrize("model_type", sorted(FUSED_LOSS_FAMILIES))
def test_fused_loss_and_gradients_are_those_of_the_models_own_logits(model_type: str) -> None:
    plain = tiny(model_type)
    ids, labels = ids_and_labels()
    expected = token_sum_loss(plain(input_ids=ids).logits, labels)
    (expected / 31).backward()
    fused = tiny(model_type)
    compute_loss_fused(fused, precision=Precision.FP32)
    loss = fused(input_ids=ids, targets=next_token_labels(labels)).loss
    (loss / 31).backward()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-6)
    for (name, found), (_, wanted) in zip(fused.named_parameters(), plain.named_parameters(), strict=True):
        if wanted.grad is not None and float(wanted.grad.abs().max()) > 1e-6:  # else of a bias that cannot matter
            assert relative(found.grad, wanted.grad) < 2e-6, name


def test_bf16_gradients_are_as_near_to_fp32_as_those_of_all_logits_at_once() -> None:
    exact = tiny("llama")
    ids, labels = ids_and_labels()
    token_sum_loss(exact(input_ids=ids).logits, labels).backward()
    at_once, fused = copy.deepcopy(exact).bfloat16(), copy.deepcopy(exact).bfloat16()
    for model in (at_once, fused):
        model.zero_grad()
    token_sum_loss(at_once(input_ids=ids).logits, labels).backward()
    compute_loss_fused(fused, precision=Precision.BF16)
    fused(input_ids=ids, targets=next_token_labels(labels)).loss.backward()
    errors = [relative(model.lm_head.weight.grad.float(), exact.lm_head.weight.grad) for model in (at_once, fused)]
    # 97 words are 4 times as wide as 32 hidden units, so that 42 tokens make chunks of 16 (11 rounded up): the weight's
    # gradient is rounded to bf16 after each of 3 instead of once: 2**-9 each, at random.
    assert errors[1] < errors[0] + 3**0.5 * 2**-9


def test_a_frozen_head_gets_no_gradient_and_evaluation_makes_none() -> None:
    model = tiny("llama")
    ids, labels = ids_and_labels()
    with torch.no_grad():
        expected = float(token_sum_loss(model(input_ids=ids).logits, labels))
    model.lm_head.weight.requires_grad_(False)
    compute_loss_fused(model, precision=Precision.FP32)
    with torch.no_grad():
        evaluated = model(input_ids=ids, targets=next_token_labels(labels)).loss
    assert not evaluated.requires_grad
    assert float(evaluated) == pytest.approx(expected, rel=1e-6)
    model(input_ids=ids, targets=next_token_labels(labels)).loss.backward()
    assert model.lm_head.weight.grad is None
    assert model.model.embed_tokens.weight.grad is not None


def test_a_batch_without_labels_gives_zero_and_zero_gradients() -> None:
    model = tiny("llama")
    compute_loss_fused(model, precision=Precision.FP32)
    ids, _ = ids_and_labels()
    loss = model(input_ids=ids, targets=torch.full_like(ids, IGNORED_LABEL)).loss
    loss.backward()
    assert loss.item() == 0.0
    assert not any(bool(parameter.grad.any()) for parameter in model.parameters())


def test_a_family_that_is_not_tested_is_refused() -> None:
    with pytest.raises(ModelError, match="loss=fused is not tested with model_type='bloom'"):
        compute_loss_fused(tiny("bloom"), precision=Precision.FP32)


def peak_of_loss(model: Any, ids: torch.Tensor, *, fused: bool) -> int:
    """Return the most bytes that forward and backward add to the weights."""
    with StorageLog() as log:
        log.adopt(model.parameters())
        first = len(log.events)
        if fused:
            loss = model(input_ids=ids, targets=next_token_labels(ids)).loss
        else:
            loss = token_sum_loss(model(input_ids=ids).logits, ids)
        loss.backward()
    live, peak = 0, 0
    for event in log.events[first:]:
        live += event.change_bytes
        peak = max(peak, live)
    return peak


def test_152k_vocabulary_holds_a_part_of_its_logits() -> None:
    num_tokens, vocabulary, width = 512, 151_936, 64
    sizes = {"vocab_size": vocabulary, "hidden_size": width, "tie_word_embeddings": True}
    ids = torch.arange(num_tokens).unsqueeze(0)
    model = tiny("qwen2", **sizes)
    standard = peak_of_loss(model, ids, fused=False)
    # Logits, their fp32 softmax and its gradient: three times 4 bytes for every token and word, at least.
    assert standard > 3 * 4 * num_tokens * vocabulary * 0.98
    model.zero_grad()
    compute_loss_fused(model, precision=Precision.FP32)
    fused = peak_of_loss(model, ids, fused=True)
    # The vocabulary is 2374 times as wide as the hidden size, so a chunk is of the fewest tokens, four. What is left is
    # the gradient of the tied weight as head and as embedding, and their sum.
    expected = 3 * 4 * vocabulary * width
    assert fused < 1.05 * expected
    assert fused < 0.2 * standard
