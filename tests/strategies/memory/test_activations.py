"""Activation forms against real CPU tensors of transformers' own modules, and against closed forms from elsewhere."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from scaling.losses import token_sum_loss
from scaling.storage_log import StorageLog
from strategies.errors import SpecError
from strategies.job import Attention, LossImplementation
from strategies.load_model import load_model_spec
from strategies.memory.activations import activation_levels
from strategies.memory.forms import has_closed_form, has_fused_attention
from strategies.memory.stretches import Bytes, Setting, Stretch, highest
from strategies.model_spec import ModelSpec
from strategies.plan import ActivationCheckpointing
from tests.strategies.builders import tiny_spec

GQA = {"num_attention_heads": 8, "num_key_value_heads": 2}
WIDTHS = {"hidden_size": 128, "intermediate_size": 352, "vocab_size": 600}
IDS = {"pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 0}
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama", **WIDTHS, **GQA},
    "gpt2": {"model_type": "gpt2", "n_embd": 128, "n_head": 4, "vocab_size": 600, "n_positions": 256},
    "qwen2": {"model_type": "qwen2", **WIDTHS, **GQA},
}
DTYPES = {"fp32": torch.float32, "16bit": torch.bfloat16}
BATCH, SEQ = 3, 128


def setting(
    number_format: str = "16bit",
    *,
    seq_len: int = SEQ,
    attention: Attention = Attention.FLASH,
    checkpointing: ActivationCheckpointing = ActivationCheckpointing.NONE,
    loss: LossImplementation = LossImplementation.STANDARD,
    on_cpu: bool = False,
) -> Setting:
    return Setting(
        seq_len=seq_len,
        number_format=number_format,
        attention=attention,
        activation_checkpointing=checkpointing,
        loss=loss,
        on_cpu=on_cpu,
    )


def level(spec: ModelSpec, stretch: Stretch, setting: Setting, *, batch: int = BATCH) -> Bytes:
    return highest(activation_levels(spec, setting, micro_batch_size=batch)[stretch], batch)


def kept_per_block(spec: ModelSpec, setting: Setting, *, batch: int = BATCH) -> int:
    kept = level(spec, Stretch.KEPT, setting, batch=batch).total
    assert kept % spec.num_layers == 0
    return kept // spec.num_layers


def config_of(name: str, num_layers: int) -> dict[str, Any]:
    depth = {"n_layer" if name == "gpt2" else "num_hidden_layers": num_layers}
    return {**CONFIGS[name], **depth}


class RealForward:
    """Bytes of one forward of a real model on a CPU, beside its weights."""

    def __init__(self, name: str, num_layers: int, number_format: str, *, selective: bool = False) -> None:
        model = AutoModelForCausalLM.from_config(
            AutoConfig.for_model(**config_of(name, num_layers), **IDS, use_cache=False),
            dtype=DTYPES[number_format],
            attn_implementation="sdpa",
        ).train()
        log = StorageLog()
        log.adopt([*model.parameters(), *model.buffers()])
        ids = torch.zeros(BATCH, SEQ, dtype=torch.long)
        log.adopt([ids])
        resident, first = log.live_bytes, len(log.events)
        with log:
            loss = token_sum_loss(model(input_ids=ids).logits, ids)
            self.kept = log.live_bytes - resident
        live = highest_yet = 0
        for event in log.events[first:]:
            live += event.change_bytes
            highest_yet = max(highest_yet, live)
        self.peak = highest_yet
        loss.backward()


@pytest.mark.parametrize("number_format", list(DTYPES))
@pytest.mark.parametrize("name", CONFIGS)
def test_kept_bytes_of_a_block_match_real_tensors(name: str, number_format: str) -> None:
    two, three = (RealForward(name, layers, number_format).kept for layers in (2, 3))
    spec = load_model_spec(config_of(name, 2))
    assert three - two == kept_per_block(spec, setting(number_format, on_cpu=True))


@pytest.mark.parametrize("number_format", list(DTYPES))
@pytest.mark.parametrize("name", CONFIGS)
def test_peak_of_forward_matches_real_tensors(name: str, number_format: str) -> None:
    spec = load_model_spec(config_of(name, 3))
    ours = level(spec, Stretch.FORWARD, setting(number_format, on_cpu=True)).total
    # Scalars, and labels moved one place, which the trace counts as the batch's.
    assert abs(RealForward(name, 3, number_format).peak - ours) <= 8 * BATCH * SEQ + 256


PRESETS = ("llama-3.1-8b", "llama-2-7b", "qwen2.5-7b")


@pytest.mark.parametrize("preset", PRESETS)
def test_llama_blocks_keep_the_closed_form(preset: str) -> None:
    """Fitted independently on four random shapes, exact: 16h + 4q + 4k + 8f + 4a + 8 bytes a token, 24 of RNG state."""
    spec = load_model_spec(preset)
    per_token = (
        16 * spec.hidden_size
        + 4 * (spec.query_size + spec.key_value_size)
        + 8 * spec.intermediate_size
        + 4 * spec.num_attention_heads
        + 8
    )
    assert kept_per_block(spec, setting(seq_len=4096), batch=2) == 2 * 4096 * per_token + 24


@pytest.mark.parametrize("preset", PRESETS)
def test_llama_blocks_keep_the_closed_form_under_autocast(preset: str) -> None:
    """26h instead of 16h, and a 16-bit copy of every matrix of the block; those of biases are not needed again."""
    spec = load_model_spec(preset)
    per_token = (
        26 * spec.hidden_size
        + 4 * (spec.query_size + spec.key_value_size)
        + 8 * spec.intermediate_size
        + 4 * spec.num_attention_heads
        + 8
    )
    block = next(group for group in spec.groups if group.layers)
    matrices = sum(tensor.num_params for tensor in block.tensors if len(tensor.shape) == 2)
    expected = 2 * 4096 * per_token + 24 + 2 * matrices
    assert kept_per_block(spec, setting("autocast", seq_len=4096), batch=2) == expected


def test_gpt2_blocks_keep_the_closed_form() -> None:
    """gelu_new and dropout: 18h + 10f + 4a + 16 bytes a token."""
    spec = load_model_spec("gpt2-xl")
    per_token = 18 * spec.hidden_size + 10 * spec.intermediate_size + 4 * spec.num_attention_heads + 16
    kept = kept_per_block(spec, setting(seq_len=1024), batch=4)
    # CUDA's attention also keeps the state of its random numbers: 24 bytes a block.
    assert kept == 4 * 1024 * per_token + 24


@pytest.mark.parametrize("preset", ["bert-base", "bert-large"])
def test_bert_blocks_with_eager_attention_keep_what_korthikanti_counts(preset: str) -> None:
    """s * b * h * (34 + 5 * a * s / h), 16 bit, dropout, MLP four times as wide (arXiv:2205.05198, equation 2).

    On top are mean and deviation of two norms in fp32, which the paper leaves out as small.
    """
    spec = load_model_spec(preset)
    s, b, h, a = 512, 4, spec.hidden_size, spec.num_attention_heads
    assert spec.intermediate_size == 4 * h
    statistics = 2 * 2 * 4 * s * b
    eager = setting(seq_len=s, attention=Attention.EAGER)
    assert kept_per_block(spec, eager, batch=b) == s * b * h * 34 + 5 * a * s * s * b + statistics


def test_query_and_key_norms_keep_their_closed_form() -> None:
    """Qwen 3, fitted independently: 16h + 10q + 10k + 8f + 8a + 4c + 8 bytes a token."""
    spec = load_model_spec("qwen3-8b")
    per_token = (
        16 * spec.hidden_size
        + 10 * (spec.query_size + spec.key_value_size)
        + 8 * spec.intermediate_size
        + 8 * spec.num_attention_heads
        + 4 * spec.num_key_value_heads
        + 8
    )
    assert kept_per_block(spec, setting(seq_len=4096), batch=2) == 2 * 4096 * per_token + 24


@pytest.mark.parametrize("preset", ["gemma-2b", "gemma-7b"])
def test_gemma_blocks_keep_the_closed_form(preset: str) -> None:
    """Fitted independently: 20h + 4q + 4k + 8f + 4a + 8 bytes a token, and 8h a block for 1 + weight of its norms."""
    spec = load_model_spec(preset)
    per_token = (
        20 * spec.hidden_size
        + 4 * (spec.query_size + spec.key_value_size)
        + 8 * spec.intermediate_size
        + 4 * spec.num_attention_heads
        + 8
    )
    expected = 2 * 4096 * per_token + 8 * spec.hidden_size + 24
    assert kept_per_block(spec, setting(seq_len=4096), batch=2) == expected


def test_mask_of_a_window_is_kept_once_a_block() -> None:
    """8B widths with a window below the length: 2 bytes more for each pair of tokens, in every layer."""
    config = {"model_type": "mistral", **WIDTHS, **GQA, "num_hidden_layers": 2}
    plain, masked = (load_model_spec({**config, "sliding_window": window}) for window in (None, 64))
    twice = [kept_per_block(masked, setting(seq_len=length)) for length in (512, 1024)]
    linear = [kept_per_block(plain, setting(seq_len=length)) for length in (512, 1024)]
    assert linear[1] - 24 == 2 * (linear[0] - 24)
    assert twice[1] - 2 * twice[0] == pytest.approx(2 * BATCH * (1024**2 - 2 * 512**2), abs=64)


@pytest.mark.parametrize("preset", ["llama-3.1-8b", "gpt2-xl"])
def test_full_activation_checkpointing_keeps_each_blocks_input(preset: str) -> None:
    spec = load_model_spec(preset)
    full = setting(seq_len=1024, checkpointing=ActivationCheckpointing.FULL)
    assert kept_per_block(spec, full) == BATCH * 1024 * 2 * spec.hidden_size
    fp32 = replace(full, number_format="autocast")
    assert kept_per_block(spec, fp32) == BATCH * 1024 * 4 * spec.hidden_size


def test_every_second_block_checkpointed_keeps_half_of_both() -> None:
    spec = load_model_spec("llama-3.1-8b")
    full = setting(checkpointing=ActivationCheckpointing.FULL)
    kept = level(spec, Stretch.KEPT, replace(full, checkpoint_every=2)).total
    assert kept == 16 * (kept_per_block(spec, full) + kept_per_block(spec, setting()))


def test_logits_peak_at_ten_and_twelve_bytes_each() -> None:
    """Traced in CUDA's formats: 16-bit logits, their fp32 copy and its log-softmax; then two gradients beside that."""
    spec = load_model_spec("llama-3.1-8b")
    logits = BATCH * 4096 * spec.vocab_size
    assert level(spec, Stretch.FORWARD, setting(seq_len=4096)).logits == 10 * logits
    assert level(spec, Stretch.BEFORE_FIRST_GRADIENT, setting(seq_len=4096)).logits == 12 * logits


def test_fused_loss_never_holds_all_logits() -> None:
    """Liger-Kernel, table 1 of arXiv:2410.10989: chunks of tokens as many as the vocabulary is wider than hidden.

    A logit of a chunk holds 16 bits, then fp32 and its softmax, and the softmax's gradient in 16 bits beside both.
    """
    spec = load_model_spec("llama-3.1-8b")
    chunk = 256  # 128 256 / 4 096 = 31.3, rounded up to 32 chunks of 8 192 tokens
    fused = level(spec, Stretch.FORWARD, setting(seq_len=8192, loss=LossImplementation.FUSED), batch=1)
    assert fused.logits == (4 + 4 + 2) * chunk * spec.vocab_size


def test_families_without_fused_attention_are_named() -> None:
    assert has_fused_attention(load_model_spec("llama-3.1-8b"))
    assert not has_fused_attention(load_model_spec("bloom-560m"))
    assert not has_fused_attention(load_model_spec("mpt-7b"))


def test_fused_attention_that_the_library_lacks_keeps_nothing_quadratic() -> None:
    """MPT as llm-foundry trains it: what eager attention keeps per token, and one fp32 number a query and head."""
    spec = load_model_spec("mpt-7b")
    short, long = (kept_per_block(spec, setting(seq_len=length)) for length in (1024, 2048))
    assert long == 2 * short
    per_token = 32 * spec.hidden_size + 16 + 4 * spec.num_attention_heads
    assert short == BATCH * 1024 * per_token


def test_unknown_family_is_refused_by_name() -> None:
    spec = replace(tiny_spec(), family="unheard")
    assert not has_closed_form(spec)
    with pytest.raises(SpecError, match=r"no closed form for the activations of model_type='unheard'.*--level traced"):
        activation_levels(spec, setting(), micro_batch_size=1)


def test_unknown_setting_of_a_known_family_is_refused() -> None:
    spec = load_model_spec({**config_of("llama", 2), "hidden_act": "gelu"})
    with pytest.raises(SpecError, match=r"model_type='llama' with gelu on cuda"):
        activation_levels(spec, setting(), micro_batch_size=1)


def test_setting_without_a_form_on_a_device_is_refused() -> None:
    spec = load_model_spec(config_of("llama", 2))
    with pytest.raises(SpecError, match=r"no closed form for blocks eager none on this device.*--level traced"):
        activation_levels(spec, setting(attention=Attention.EAGER, on_cpu=True), micro_batch_size=1)
