"""T5's activations, encoder and decoder of different depth, against a trace of transformers' own module."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from transformers import AutoConfig

from benchmarks.activation_check import IN_BACKWARD, IN_FORWARD, peaks
from scaling.trace import Recompute, TraceOptions, TracePrecision, model_factory, token_batch
from scaling.trace.step import trace_step
from strategies.errors import SpecError
from strategies.estimate import Phase
from strategies.job import Attention, LossImplementation
from strategies.load_model import load_model_spec
from strategies.memory.activations import activation_levels
from strategies.memory.stretches import Setting, Stretch, highest
from strategies.model_spec import TaskKind
from strategies.plan import ActivationCheckpointing

NONE, FULL = ActivationCheckpointing.NONE, ActivationCheckpointing.FULL
DEPTHS = {"num_layers": 5, "num_decoder_layers": 3}
IDS = {"pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0}
SIZES = {"d_model": 192, "d_kv": 32, "num_heads": 5, "d_ff": 520, "vocab_size": 120}
"""Few words: layouts count the gradient of a tied head that waits for that of the embedding."""
BATCH, SEQ = 3, 264
FORMATS = {"16bit": TracePrecision.BF16, "autocast": TracePrecision.BF16_AUTOCAST, "fp32": TracePrecision.FP32}
SETTING = Setting(
    seq_len=SEQ,
    number_format="16bit",
    attention=Attention.FLASH,
    activation_checkpointing=NONE,
    loss=LossImplementation.STANDARD,
)


def config(feed_forward: str) -> dict[str, Any]:
    return {"model_type": "t5", **SIZES, **DEPTHS, "feed_forward_proj": feed_forward}


@pytest.mark.parametrize("number_format", list(FORMATS))
@pytest.mark.parametrize("checkpointing", [NONE, FULL])
@pytest.mark.parametrize("attention", list(Attention))
@pytest.mark.parametrize("feed_forward", ["relu", "gated-gelu"])
def test_peaks_of_t5_match_a_trace(
    feed_forward: str, attention: Attention, checkpointing: ActivationCheckpointing, number_format: str
) -> None:
    values = config(feed_forward)
    spec = load_model_spec(values)
    setting = replace(SETTING, number_format=number_format, attention=attention, activation_checkpointing=checkpointing)
    levels = activation_levels(spec, setting, micro_batch_size=BATCH)
    task = TaskKind.SEQ2SEQ_LM
    implementation = "eager" if attention is Attention.EAGER else "sdpa"
    options = TraceOptions(
        precision=FORMATS[number_format], activation_checkpointing=Recompute(checkpointing.value), num_steps=1
    )
    log = trace_step(
        model_factory(AutoConfig.for_model(**values, **IDS), task=task, attention=implementation),
        token_batch(micro_batch_size=BATCH, seq_len=SEQ, task=task),
        options,
    )
    traced = peaks(log)
    for phase, stretches in ((Phase.FORWARD, IN_FORWARD), (Phase.BACKWARD, IN_BACKWARD)):
        ours = max(highest(levels[stretch], BATCH).total for stretch in stretches)
        assert ours == pytest.approx(traced[phase], rel=0.01), phase


def test_blocks_of_a_decoder_keep_more_than_those_of_an_encoder() -> None:
    """Cross attention: queries, keys, values, its output and weights come on top."""
    kept = []
    for depths in ({"num_layers": 4, "num_decoder_layers": 2}, {"num_layers": 2, "num_decoder_layers": 4}):
        spec = load_model_spec(config("relu") | depths)
        kept.append(highest(activation_levels(spec, SETTING, micro_batch_size=BATCH)[Stretch.KEPT], BATCH).total)
    assert kept[0] < kept[1] < 2 * kept[0]


def test_every_second_block_of_two_stacks_is_refused() -> None:
    setting = replace(SETTING, activation_checkpointing=FULL, checkpoint_every=2)
    with pytest.raises(SpecError, match=r"two stacks with checkpoint_every=2; give 1$"):
        activation_levels(load_model_spec(config("relu")), setting, micro_batch_size=1)


def test_cpu_ranks_are_refused_without_naming_a_level_that_does_not_build_the_model() -> None:
    spec = load_model_spec(config("relu"))
    with pytest.raises(
        SpecError, match=r"on cpu, .*give a GPU: there are forms for CUDA; a model with task=seq2seq-lm"
    ):
        activation_levels(spec, replace(SETTING, on_cpu=True), micro_batch_size=1)
