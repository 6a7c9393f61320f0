"""The trainer itself, traced: against the same program on real tensors as rank 0 of simulated ranks."""

from __future__ import annotations

import pytest

from scaling.measure import Method, measure_plan
from scaling.trace import profile, replay
from scaling.trace.training import trace_training
from strategies.cluster import CPU_NAME, Gpu, gpu_preset
from strategies.decision import Decision
from strategies.estimate import Phase
from strategies.plan import ActivationCheckpointing, StrategyName
from strategies.units import GIB
from tests.scaling.decisions import demo_decision

CPU = Gpu(name=CPU_NAME, memory_bytes=4 * GIB)
SHAPE_CHECK_BYTES = 47
"""DDP compares the shapes of all ranks in a tensor that a trace does not make, at the peak of initialisation."""


def _decision(strategy: StrategyName, gpu: Gpu, *, recompute: ActivationCheckpointing) -> Decision:
    return demo_decision(strategy, checkpointing=recompute, gpu=gpu, gpus=4, seq_len=32)


@pytest.mark.slow
@pytest.mark.deepspeed
@pytest.mark.parametrize(
    ("strategy", "recompute"),
    [
        (StrategyName.DDP, ActivationCheckpointing.FULL),
        (StrategyName.ZERO1, ActivationCheckpointing.NONE),
        (StrategyName.ZERO2, ActivationCheckpointing.FULL),
        (StrategyName.ZERO3, ActivationCheckpointing.NONE),
    ],
)
def test_traced_training_holds_what_simulated_training_holds(
    strategy: StrategyName, recompute: ActivationCheckpointing
) -> None:
    """By phase and cause; two micro batches a step, two steps, an evaluation and the gathering of a save."""
    decision = _decision(strategy, CPU, recompute=recompute)
    traced = {phase.phase: phase.causes for phase in profile(trace_training(decision)).phases}
    real = measure_plan(decision, num_steps=2, method=Method.SIMULATED).measured
    simulated = {phase.phase: phase.causes for phase in real.phases}
    if strategy is StrategyName.DDP:
        start, there = traced.pop(Phase.INITIALISE), simulated.pop(Phase.INITIALISE)
        assert 0 <= there.total_bytes - start.total_bytes <= SHAPE_CHECK_BYTES
    assert traced == simulated


@pytest.mark.deepspeed
@pytest.mark.parametrize("strategy", [StrategyName.DDP, StrategyName.ZERO3])
def test_training_on_a_gpu_is_traced_without_one(strategy: StrategyName) -> None:
    decision = _decision(strategy, gpu_preset("H100-80GB-SXM"), recompute=ActivationCheckpointing.NONE)
    log = trace_training(decision)
    memory = profile(log)
    assert [phase.phase for phase in memory.phases] == list(Phase)
    assert replay(log, expandable_segments=True).peak_reserved_bytes >= memory.peak_bytes
    assert "aten._scaled_dot_product_flash_attention.default" in log.ops
