"""Phases of a plan against traces of this package's own trainer under DDP."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scaling.trace import profile
from scaling.trace.training import trace_training
from strategies.base import BlockState, StateLayout
from strategies.cluster import CPU_NAME, Gpu
from strategies.decision import Decision
from strategies.estimate import CauseBytes, Phase
from strategies.job import Precision
from strategies.load_model import load_model_spec
from strategies.memory.moments import number_format, step_phases
from strategies.plan import ActivationCheckpointing, StrategyName
from strategies.registry import STRATEGIES
from strategies.units import GIB
from tests.scaling.decisions import demo_decision

SPEC = load_model_spec("llama-demo")
CUDA = Gpu(name="test-gpu", memory_bytes=80 * GIB)
CPU = Gpu(name=CPU_NAME, memory_bytes=80 * GIB)
OF_ACTIVATIONS = (Phase.FORWARD, Phase.BACKWARD, Phase.EVALUATION)


def ddp_decision(gpu: Gpu, checkpointing: ActivationCheckpointing) -> Decision:
    return demo_decision(StrategyName.DDP, checkpointing=checkpointing, gpu=gpu, gpus=1, seq_len=128)


def layout_of(decision: Decision) -> StateLayout:
    strategy = STRATEGIES[decision.plan.strategy]
    return strategy.layout(SPEC, job=decision.job, plan=decision.plan, data_parallel_size=decision.cluster.gpus)


def predicted(decision: Decision) -> dict[Phase, int]:
    on_cpu = decision.cluster.gpu.is_cpu
    phases = step_phases(SPEC, layout_of(decision), job=decision.job, plan=decision.plan, on_cpu=on_cpu)
    return {phase.phase: phase.total_bytes for phase in phases}


@pytest.mark.parametrize("checkpointing", [ActivationCheckpointing.NONE, ActivationCheckpointing.FULL])
@pytest.mark.parametrize("gpu", [CUDA, CPU], ids=["cuda", "cpu"])
def test_phases_match_the_trainer_traced_under_ddp(gpu: Gpu, checkpointing: ActivationCheckpointing) -> None:
    decision = ddp_decision(gpu, checkpointing)
    log = trace_training(decision)
    traced = {phase.phase: phase.total_bytes for phase in profile(log).phases}
    ours = predicted(decision)
    for phase in OF_ACTIVATIONS:
        assert ours[phase] == pytest.approx(traced[phase], rel=5e-4), phase


def test_phases_are_at_least_what_is_resident_and_grow_with_the_batch() -> None:
    decision = ddp_decision(CUDA, ActivationCheckpointing.NONE)
    resident = layout_of(decision).resident.total_bytes
    one, more = predicted(decision), predicted(replace(decision, plan=replace(decision.plan, micro_batch_size=3)))
    for phase in OF_ACTIVATIONS:
        assert resident < one[phase] < more[phase]


def test_states_of_a_layout_count_at_their_own_moment() -> None:
    """A layout that holds a GiB only while backward is in the blocks raises that phase alone."""
    decision = demo_decision(
        StrategyName.ZERO2, checkpointing=ActivationCheckpointing.NONE, gpu=CUDA, gpus=2, seq_len=128
    )
    layout = layout_of(decision)
    heavy = replace(layout, in_blocks=(BlockState(num_done=0, causes=CauseBytes(gradients=GIB)),))
    before, after = (
        {phase.phase: phase for phase in step_phases(SPEC, each, job=decision.job, plan=decision.plan)}
        for each in (layout, heavy)
    )
    assert after[Phase.FORWARD] == before[Phase.FORWARD]
    assert after[Phase.BACKWARD].causes.gradients == layout.resident.gradients + GIB


@pytest.mark.parametrize(
    ("precision", "strategy", "expected"),
    [
        (Precision.FP32, StrategyName.DDP, "fp32"),
        (Precision.BF16, StrategyName.ZERO3, "16bit"),
        (Precision.BF16_PURE, StrategyName.FSDP2, "16bit"),
        (Precision.FP16_AUTOCAST, StrategyName.DDP, "autocast"),
        (Precision.BF16_AUTOCAST, StrategyName.ZERO3, "autocast-stage3"),
        (Precision.BF16_AUTOCAST, StrategyName.FSDP2, "16bit"),
    ],
)
def test_number_format_of_a_precision(precision: Precision, strategy: StrategyName, expected: str) -> None:
    assert number_format(precision, strategy) == expected
