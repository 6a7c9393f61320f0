"""LoRA adapters and frozen parts on real models: as PEFT names and counts them, and merged back."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import transformers

from scaling.adapters import LoraLinear, adapted_layers, choose_trained, merged
from scaling.errors import ModelError
from strategies.adapt import as_trained
from strategies.job import Job
from strategies.load_model import load_model_spec
from strategies.trained import Lora
from tests.scaling.decisions import TINY_LLAMA

TINY_GPT2 = {"model_type": "gpt2", "vocab_size": 288, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
TINY_QWEN2 = {**TINY_LLAMA, "model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"]}
JOB = Job(seq_len=8, global_batch_size=1)
WITH_LORA = replace(JOB, lora=Lora(rank=3))


def model_of(config: dict[str, Any]) -> Any:
    torch.manual_seed(0)
    settings = {name: value for name, value in config.items() if name not in ("model_type", "architectures")}
    if config["model_type"] == "gpt2":
        settings |= {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    made = transformers.AutoConfig.for_model(config["model_type"], **settings)
    model: Any = transformers.AutoModelForCausalLM.from_config(made)  # type: ignore[no-untyped-call]
    return model.eval()


@pytest.mark.parametrize("config", [TINY_LLAMA, TINY_GPT2, TINY_QWEN2], ids=lambda config: config["model_type"])
@pytest.mark.parametrize(
    "job",
    [
        WITH_LORA,
        replace(JOB, freeze=("embed_tokens", "wte", "wpe")),
        replace(JOB, freeze=("*", "!lm_head", "!ln_f")),
        replace(JOB, freeze=("*.0.*",)),
    ],
    ids=["lora", "embedding", "head", "first block"],
)
def test_the_model_holds_and_trains_what_is_planned(config: dict[str, Any], job: Job) -> None:
    model = model_of(config)
    names = [name for name, _ in model.named_parameters()]
    fitting = tuple(
        pattern for pattern in job.freeze if pattern[0] in "*!" or any(f".{pattern}." in name for name in names)
    )
    fitting = tuple(pattern for pattern in fitting if pattern[0] != "!" or any(pattern[1:] in name for name in names))
    job = replace(job, freeze=fitting)
    choose_trained(model, job)
    planned = {
        tensor.name: (tensor.shape, tensor.is_trained) for tensor in as_trained(load_model_spec(config), job).tensors()
    }
    real = {name: (tuple(each.shape), each.requires_grad) for name, each in model.named_parameters()}
    assert list(real) == list(planned)
    assert real == planned


def test_a_new_adapter_changes_nothing() -> None:
    """Its second matrix starts as zeros (arXiv:2106.09685, section 4.1)."""
    ids = torch.arange(8).reshape(1, 8)
    model = model_of(TINY_LLAMA)
    before = model(input_ids=ids).logits
    choose_trained(model, WITH_LORA)
    assert torch.equal(model(input_ids=ids).logits, before)


@pytest.mark.parametrize("config", [TINY_LLAMA, TINY_GPT2, TINY_QWEN2], ids=lambda config: config["model_type"])
def test_merged_weights_compute_what_the_adapted_model_does(config: dict[str, Any]) -> None:
    ids = torch.arange(8).reshape(1, 8)
    model, plain = model_of(config), model_of(config)
    choose_trained(model, WITH_LORA)
    with torch.no_grad():
        for _, layer in adapted_layers(model):
            layer.lora_B["default"].weight.normal_(std=0.1)  # type: ignore[operator]
    state = merged(model, dict(model.state_dict()))
    plain.load_state_dict(state)  # strict: every name is one of the model without adapters
    expected = model(input_ids=ids).logits
    assert not torch.allclose(model_of(config)(input_ids=ids).logits, expected, atol=1e-3)
    torch.testing.assert_close(plain(input_ids=ids).logits, expected)


def test_gradients_are_those_of_the_adapters_alone() -> None:
    model = model_of(TINY_LLAMA)
    choose_trained(model, WITH_LORA)
    model(input_ids=torch.arange(8).reshape(1, 8)).logits.sum().backward()
    with_gradient = {name for name, each in model.named_parameters() if each.grad is not None}
    assert with_gradient == {name for name, _ in model.named_parameters() if ".lora_" in name}


def test_an_adapter_computes_in_its_own_format_and_gives_that_of_the_layer() -> None:
    base = torch.nn.Linear(4, 6, dtype=torch.bfloat16)
    layer = LoraLinear(base, Lora(rank=2)).float()
    layer.base_layer.to(torch.bfloat16)
    assert layer(torch.zeros(1, 4, dtype=torch.bfloat16)).dtype is torch.bfloat16


def test_a_model_without_the_named_layers_is_refused() -> None:
    with pytest.raises(ModelError, match="no linear layer of that name"):
        choose_trained(model_of(TINY_GPT2), replace(JOB, lora=Lora(target_modules=("q_proj",))))


def test_a_model_frozen_whole_is_refused() -> None:
    with pytest.raises(ModelError, match="freezes every parameter"):
        choose_trained(model_of(TINY_GPT2), replace(JOB, freeze=("*",)))
