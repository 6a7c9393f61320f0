"""Closed forms of models trained in part against traces of the trainer that runs them, with CUDA's kernels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from scaling.measure import trace_plan
from strategies.cluster import Cluster, Gpu
from strategies.decision import Decision
from strategies.estimate import MemoryProfile, Phase
from strategies.job import Job
from strategies.load_model import load_model_spec
from strategies.memory.predict import predict
from strategies.plan import ActivationCheckpointing, Plan, StrategyName
from strategies.registry import STRATEGIES
from strategies.trained import Lora
from strategies.units import GIB

NONE, FULL = ActivationCheckpointing.NONE, ActivationCheckpointing.FULL
LLAMA, TIED_GPT2, GEMMA = (f"benchmarks/models/{name}.json" for name in ("llama-gqa", "gpt2-tied", "gemma-small"))
ON_ATTENTION, EVERYWHERE = Lora(rank=8, target_modules=("q_proj", "v_proj")), Lora(rank=16)
RANKS = 4
TOLERANCE = 0.001
PASSES = (Phase.FORWARD, Phase.BACKWARD)


def decision_of(
    model: str, strategy: StrategyName, checkpointing: ActivationCheckpointing = NONE, **parts: Any
) -> Decision:
    spec = load_model_spec(model)
    cluster = Cluster(gpu=Gpu(name="test-gpu", memory_bytes=80 * GIB), gpus=RANKS, gpus_per_node=RANKS)
    job = Job(seq_len=128, global_batch_size=2 * RANKS, **parts)
    plan = Plan(
        strategy=strategy,
        micro_batch_size=2,
        gradient_accumulation_steps=1,
        activation_checkpointing=checkpointing,
        buckets=STRATEGIES[strategy].buckets(spec, job),
    )
    estimate = predict(spec, cluster=cluster, job=job, plan=plan)
    return Decision(model=model, num_params=spec.num_params, cluster=cluster, job=job, plan=plan, estimate=estimate)


def assert_as_traced(decision: Decision, phases: Sequence[Phase] = PASSES) -> None:
    ours, theirs = (_bytes(memory) for memory in (decision.estimate.memory, trace_plan(decision, num_steps=2).measured))
    for phase in phases:
        assert ours[phase] == pytest.approx(theirs[phase], rel=TOLERANCE), phase
    assert max(ours.values()) == pytest.approx(max(theirs.values()), rel=TOLERANCE)


def _bytes(memory: MemoryProfile) -> dict[Phase, int]:
    return {phase.phase: phase.total_bytes for phase in memory.phases}


@pytest.mark.deepspeed
@pytest.mark.slow
@pytest.mark.parametrize(
    ("strategy", "lora", "checkpointing"),
    [
        (StrategyName.DDP, ON_ATTENTION, NONE),
        (StrategyName.DDP, EVERYWHERE, FULL),
        (StrategyName.ZERO2, EVERYWHERE, NONE),
        (StrategyName.ZERO3, ON_ATTENTION, NONE),
        (StrategyName.ZERO3, EVERYWHERE, FULL),
        (StrategyName.FSDP2, EVERYWHERE, NONE),
    ],
)
def test_adapters_hold_what_their_closed_form_says(
    strategy: StrategyName, lora: Lora, checkpointing: ActivationCheckpointing
) -> None:
    decision = decision_of(LLAMA, strategy, checkpointing, lora=lora)
    # The walk of stage 3 gathers too early in a forward of many small modules, 10 % here; it does not peak there.
    assert_as_traced(decision, () if strategy is StrategyName.ZERO3 else PASSES)


@pytest.mark.slow
@pytest.mark.parametrize("model", [TIED_GPT2, GEMMA])
def test_adapters_of_other_families_hold_what_their_closed_form_says(model: str) -> None:
    assert_as_traced(decision_of(model, StrategyName.DDP, lora=EVERYWHERE))


@pytest.mark.slow
@pytest.mark.parametrize(
    "freeze",
    [("embed_tokens",), ("*", "!lm_head"), ("embed_tokens", "layers.0", "layers.1")],
    ids=["embedding", "head", "first blocks"],
)
def test_frozen_parts_hold_what_their_closed_form_says(freeze: tuple[str, ...]) -> None:
    assert_as_traced(decision_of(LLAMA, StrategyName.DDP, freeze=freeze))
