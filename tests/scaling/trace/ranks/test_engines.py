"""The real DDP, FSDP2 and DeepSpeed on tensors without data, against the same engines on real CPU tensors."""

from __future__ import annotations

import os
import sys

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F

from benchmarks.trace_families import family_batch, family_model
from benchmarks.trace_modules import TiedModel, cross_entropy, token_rows
from benchmarks.trace_truth import WORLD_SIZE, deepspeed_json
from scaling.ownership import Cause
from scaling.trace import (
    EngineSpec,
    Recompute,
    TraceError,
    TraceLog,
    TraceOptions,
    TracePrecision,
    fused_adamw,
    profile,
    trace_step,
)
from scaling.trace.log import CAUSES
from scaling.trace.ranks.ddp import Ddp
from scaling.trace.ranks.deepspeed import Zero
from scaling.trace.ranks.fsdp2 import Fsdp2
from strategies.estimate import CauseBytes, Phase

FP32, BF16 = TracePrecision.FP32, TracePrecision.BF16
ENGINES = [
    pytest.param(Ddp(world_size=WORLD_SIZE, gradient_clipping=1.0), FP32, id="ddp"),
    pytest.param(Fsdp2(world_size=WORLD_SIZE, optimizer=fused_adamw), FP32, id="fsdp2"),
    pytest.param(
        Fsdp2(world_size=WORLD_SIZE, reshard_after_forward=False),
        FP32,
        id="fsdp2 never resharded",
        marks=pytest.mark.slow,
    ),
    pytest.param(
        Fsdp2(world_size=WORLD_SIZE, reduce_every_micro_batch=False),
        FP32,
        id="fsdp2 reduced once",
        marks=pytest.mark.slow,
    ),
    *(
        pytest.param(
            Zero(world_size=WORLD_SIZE, config=deepspeed_json(stage, overlap_comm=stage > 1)),
            BF16,
            id=f"zero {stage}",
            marks=[pytest.mark.deepspeed, *([] if stage == 2 else [pytest.mark.slow])],
        )
        for stage in range(4)
    ),
]


def _log(engine: EngineSpec, *, on_cpu: bool = False, precision: TracePrecision = FP32, **settings: object) -> TraceLog:
    options = TraceOptions(**{"kernels": "cpu", "precision": precision, **settings})
    model, batch = family_model("llama", num_layers=2), family_batch("llama", seq_len=16)
    return trace_step(model, batch, options, engine=engine, on_cpu=on_cpu)


@pytest.mark.parametrize(("engine", "precision"), ENGINES)
def test_engine_without_data_matches_engine_on_cpu(engine: EngineSpec, precision: TracePrecision) -> None:
    """By phase and cause; activation checkpointing and more engines in benchmarks/trace_truth.py."""
    logs = [_log(engine, on_cpu=on_cpu, precision=precision, gradient_accumulation_steps=2) for on_cpu in (False, True)]
    assert profile(logs[0]) == profile(logs[1])


def test_ddp_keeps_one_bucket_byte_a_gradient_byte() -> None:
    """DDP copies gradients into buckets of their size (torch.nn.parallel, gradient_as_bucket_view=False)."""
    causes = _at(_log(Ddp(world_size=2)), Phase.OPTIMIZER_STEP)
    assert causes.communication_buckets == causes.gradients == causes.parameters


def test_fsdp2_shares_states_evenly() -> None:
    """Each of N ranks keeps an Nth of weights, gradients and states, padded up to whole rows."""
    alone, shared = (_at(_log(Fsdp2(world_size=size)), Phase.OPTIMIZER_STEP) for size in (1, 4))
    for cause in ("parameters", "gradients", "optimizer_states"):
        assert getattr(shared, cause) == pytest.approx(getattr(alone, cause) / 4, rel=0.02)


def test_fsdp2_gathers_on_a_stream_of_its_own_and_old_versions_reduced_there_too() -> None:
    new = _log(Fsdp2(world_size=4), kernels="cuda")
    old = _log(Fsdp2(world_size=4, reduce_scatter_input_on_own_stream=True), kernels="cuda")
    buckets = CAUSES.index(Cause.COMMUNICATION_BUCKETS)
    on_main = [int((log.cause[log.stream == 0] == buckets).sum()) for log in (new, old)]
    assert set(new.stream.tolist()) == {0, 1, 3}
    assert on_main[0] == 2 * 3, "a reduce-scatter input for each of two blocks and the rest, in two steps"
    assert on_main[1] == 0
    assert profile(new) == profile(old)


@pytest.mark.deepspeed
def test_zero_with_asynchronous_device_uses_streams() -> None:
    log = _log(Zero(world_size=4, config=deepspeed_json(2, overlap_comm=True)), precision=BF16, kernels="cuda")
    assert set(log.stream.tolist()) == {0, 1}


@pytest.mark.slow
@pytest.mark.deepspeed
def test_engines_leave_the_process_as_it_was() -> None:
    def state() -> list[object]:
        variables = [os.environ.get(name) for name in ("RANK", "WORLD_SIZE", "MASTER_PORT")]
        return [F.linear, sys.excepthook, torch.Tensor.record_stream, dist.is_initialized(), *variables]

    before = state()
    for world_size in (2, 4):
        config = deepspeed_json(3, overlap_comm=False)
        _log(Zero(world_size=world_size, config=config), precision=BF16, num_steps=1)
    assert state() == before


def test_recomputation_gathers_again() -> None:
    kept, recomputed = (
        _log(Fsdp2(world_size=4, reshard_after_forward=True), kernels="cuda", activation_checkpointing=mode)
        for mode in (Recompute.NONE, Recompute.FULL)
    )
    assert _at(recomputed, Phase.BACKWARD).activations < _at(kept, Phase.BACKWARD).activations


def test_world_size_of_zero_is_refused() -> None:
    with pytest.raises(TraceError, match="world_size=0 must be above zero"):
        _log(Ddp(world_size=0))


def test_module_without_blocks_is_refused() -> None:
    with pytest.raises(TraceError, match="has no repeated blocks to shard"):
        trace_step(
            TiedModel, token_rows(), TraceOptions(precision=FP32), loss=cross_entropy, engine=Fsdp2(world_size=2)
        )


def test_process_that_has_a_group_is_refused() -> None:
    from scaling.trace.ranks.group import rank_0_of

    with rank_0_of(2), pytest.raises(TraceError, match="this process already has one"):
        _log(Ddp(world_size=2))


def _at(log: TraceLog, phase: Phase) -> CauseBytes:
    return next(found.causes for found in profile(log).phases if found.phase is phase)
