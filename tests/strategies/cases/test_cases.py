"""The case format: the example of the design, and what is told about lines that are wrong."""

from __future__ import annotations

import json
from typing import Any

import pytest

from strategies.cases import answer_line

CASE: dict[str, Any] = {
    "id": "a",
    "model": "llama-3.1-8b",
    "cluster": {
        "gpu": "A100-80GB-SXM",
        "gpus": 8,
        "gpus_per_node": 8,
        "gpu_memory_gib": 79.15,
        "host_memory_gib": 1000,
    },
    "job": {
        "seq_len": 4096,
        "global_batch_size": 64,
        "precision": "bf16",
        "optimizer": "adamw",
        "attention": "flash",
        "loss": "standard",
    },
    "plan": {
        "strategy": "zero2",
        "micro_batch_size": 2,
        "gradient_accumulation_steps": 4,
        "activation_checkpointing": "full",
        "offload_optimizer": "none",
        "offload_param": "none",
    },
}
KEYS = {
    "id",
    "fits",
    "plan",
    "peak_allocated_gib",
    "peak_reserved_gib",
    "peak_phase",
    "interval_gib",
    "breakdown_gib",
    "phases_gib",
    "host_gib_per_node",
    "step_time_s",
    "tokens_per_s_per_gpu",
    "mfu",
    "warnings",
}
"""Of the design's answer; there may be more."""


def answered(**changes: Any) -> dict[str, Any]:
    """Return the answer to the example with some of its parts replaced; None leaves a part out."""
    case = {key: value for key, value in (CASE | changes).items() if value is not None}
    line = answer_line(json.dumps(case), number=1)
    assert "\n" not in line
    result: dict[str, Any] = json.loads(line)
    return result


def test_example_of_the_design_is_answered_with_every_key() -> None:
    result = answered()
    assert result.keys() >= KEYS
    assert result["id"] == "a"
    assert result["fits"] is True
    assert result["plan"].items() >= CASE["plan"].items()


def test_breakdown_sums_to_the_peak_and_the_peak_is_the_highest_phase() -> None:
    result = answered()
    rounding = 0.0001 * len(result["breakdown_gib"])
    assert sum(result["breakdown_gib"].values()) == pytest.approx(result["peak_allocated_gib"], abs=rounding)
    assert result["phases_gib"][result["peak_phase"]] == max(result["phases_gib"].values())
    assert result["peak_reserved_gib"] >= result["peak_allocated_gib"]


def test_states_of_the_example_are_those_of_the_zero_paper() -> None:
    """Llama-3.1-8B has 8,030,261,248 parameters: 2 bytes each for weights, 12/8 of master and moments at stage 2."""
    gib = 8_030_261_248 / 2**30
    states = answered()["breakdown_gib"]
    assert states["parameters"] == pytest.approx(2 * gib, rel=1e-3)
    assert states["master_weights"] + states["optimizer_states"] == pytest.approx(12 / 8 * gib, rel=1e-3)


def test_without_a_plan_the_planner_chooses() -> None:
    result = answered(plan=None)
    assert result["fits"] is True
    plan = result["plan"]
    assert 8 * plan["micro_batch_size"] * plan["gradient_accumulation_steps"] == 64


def test_accumulation_that_is_left_out_follows_from_the_batch() -> None:
    plan = {key: value for key, value in CASE["plan"].items() if key != "gradient_accumulation_steps"}
    assert answered(plan=plan)["plan"]["gradient_accumulation_steps"] == 4


def test_memory_that_is_too_small_does_not_fit() -> None:
    assert answered(cluster=CASE["cluster"] | {"gpu_memory_gib": 20})["fits"] is False


def test_inline_config_equals_its_preset() -> None:
    config = {
        "model_type": "llama",
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 128256,
        "max_position_embeddings": 131072,
        "tie_word_embeddings": False,
    }
    assert answered(model=config) == answered()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": "lama-3.1-8b"}, r"lama-3\.1-8b.*closest presets: llama-3\.1-8b"),
        ({"model": None}, r"model is missing"),
        ({"model": {"model_type": "llama", "hidden_size": -1}}, r"hidden_size=-1"),
        ({"cluster": {"gpu": "A100-80GB-SXM", "gpus": 0}}, r"gpus=0"),
        ({"cluster": {"gpu": "A1000", "gpus": 8}}, r"gpu='A1000' is not in configs/gpus\.csv"),
        ({"cluster": {"gpu": "A100-80GB-SXM", "gpus": 8, "gpu_memory_gib": -4}}, r"gpu_memory_gib=-4"),
        ({"cluster": {"gpu": "cpu", "gpus": 2}}, r"gpu_memory_gib"),
        ({"job": CASE["job"] | {"precison": "bf16"}}, r"unknown keys job\.precison"),
        ({"job": CASE["job"] | {"precision": "int3"}}, r"job\.precision=.int3. must be .*'bf16'"),
        ({"job": CASE["job"] | {"seq_len": 200_000}}, r"seq_len=200000 is longer than the 131072"),
        ({"job": CASE["job"] | {"global_batch_size": 63}}, r"global_batch_size=63 is not a positive multiple"),
        ({"plan": CASE["plan"] | {"gradient_accumulation_steps": 3}}, r"gradient_accumulation_steps=3, but .* = 4"),
        ({"plan": CASE["plan"] | {"strategy": "zero4"}}, r"plan\.strategy=.zero4. must be 'ddp', "),
        ({"plan": CASE["plan"] | {"micro_batch_size": 0}}, r"micro_batch_size=0|micro_batch_size.*above zero"),
        ({"plan": CASE["plan"] | {"reduce_bucket_size": -5}}, r"reduce_bucket_size=-5"),
        ({"plan": CASE["plan"] | {"reduce_bucket_size": 10**30}}, r"reduce_bucket_size=10*"),
        ({"cluster": {"gpu": "A100-80GB-SXM", "gpus": 8, "gpu_memory_gib": 1e-10}}, r"memory_bytes=0"),
        ({"model": "{bad"}, r"model \{bad is not known"),
        ({"model": {"model_type": "gpt_neox", "rotary_pct": 1e9}}, r"partial_rotary_factor=1000000000"),
        ({"extra": 1}, r"unknown keys extra"),
        ({"cluster": CASE["cluster"] | {"gpus": True}}, r"cluster\.gpus=true must be a whole number"),
        ({"cluster": CASE["cluster"] | {"gpu_memory_gib": True}}, r"cluster\.gpu_memory_gib=true must be a number"),
        ({"job": CASE["job"] | {"seq_len": "128"}}, r"job\.seq_len=.128. must be a whole number"),
        ({"job": CASE["job"] | {"fused_optimizer": "no"}}, r"job\.fused_optimizer=.no. must be true or false"),
        ({"job": CASE["job"] | {"global_batch_size": True}}, r"job\.global_batch_size=true must be a whole number"),
    ],
)
def test_what_is_wrong_is_named_with_its_value(changes: dict[str, Any], message: str) -> None:
    import re

    result = answered(**changes)
    assert result.keys() == {"id", "error"}
    assert result["id"] == "a"
    assert re.search(message, result["error"]), result["error"]


@pytest.mark.parametrize(
    "line", ["", "{", "[" * 100_000, "[]", "null", "3", '{"id": 3}', '{"id": "b", "model": NaN}', '"\\ud800"']
)
def test_lines_that_are_no_case_are_answered_too(line: str) -> None:
    assert "error" in json.loads(answer_line(line, number=7))
