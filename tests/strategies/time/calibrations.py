"""A calibration for tests, with round figures of a small server's core."""

from __future__ import annotations

from strategies.cluster import CPU_NAME, Cluster, Gpu
from strategies.job import Precision
from strategies.plan import PYTORCH_STRATEGIES, ActivationCheckpointing, StrategyName
from strategies.time.calibration import (
    FORMAT,
    Calibration,
    CollectiveKind,
    CollectiveTime,
    EngineCost,
    MemoryRate,
    ModelCost,
    ProductRate,
    this_machine,
    torch_version,
)
from strategies.units import GIB

MICROSECONDS_PER_UNIT = {
    StrategyName.DDP: 40,
    StrategyName.ZERO1: 50,
    StrategyName.ZERO2: 80,
    StrategyName.ZERO3: 1100,
    StrategyName.FSDP2: 5000,
}

STEP_S = 2e-3
"""Of every engine, whatever the model and the micro batches."""


def cpu_calibration(*, ranks: int = 2, engines: tuple[StrategyName, ...] = PYTORCH_STRATEGIES) -> Calibration:
    """Return what this very machine could have reached."""
    return Calibration(
        format=FORMAT,
        device=CPU_NAME,
        machine=this_machine(),
        torch=torch_version(),
        ranks=ranks,
        measured_at="2026-11-29T12:00:00+00:00",
        seconds=40.0,
        products=(
            ProductRate(precision=Precision.FP32, flops=1e6, flops_per_s=4e10),
            ProductRate(precision=Precision.FP32, flops=1e9, flops_per_s=8e10),
            ProductRate(precision=Precision.BF16, flops=1e9, flops_per_s=16e10),
        ),
        elementwise=(
            MemoryRate(precision=Precision.FP32, num_bytes=1e5, bytes_per_s=1.4e10),
            MemoryRate(precision=Precision.FP32, num_bytes=1e7, bytes_per_s=7e9),
        ),
        copy_bytes_per_s=2e10,
        operator_s=4e-6,
        weight_s_per_param=2e-9,
        collectives=(
            CollectiveTime(kind=CollectiveKind.ALL_GATHER, num_bytes=4096, seconds=2e-4),
            CollectiveTime(kind=CollectiveKind.ALL_GATHER, num_bytes=2**20, seconds=6e-4),
        ),
        model=(
            ModelCost(activation_checkpointing=ActivationCheckpointing.NONE, s_per_block=1.5e-3),
            ModelCost(activation_checkpointing=ActivationCheckpointing.SELECTIVE, s_per_block=6e-3),
            ModelCost(activation_checkpointing=ActivationCheckpointing.FULL, s_per_block=3.5e-3),
        ),
        engines=tuple(
            _engine(strategy, checkpointing, reshards, syncs)
            for strategy in engines
            for checkpointing in ActivationCheckpointing
            for reshards in ((True, False) if strategy is StrategyName.FSDP2 else (True,))
            for syncs in ((True, False) if strategy is StrategyName.FSDP2 else (True,))
        ),
        adam_elements_per_s=1.3e9,
        norm_elements_per_s=1e9,
        host_adam_elements_per_s=2.6e9,
        pcie_bytes_per_s=0.0,
        disk_write_bytes_per_s=1e9,
        disk_read_bytes_per_s=2e9,
    )


def _engine(strategy: StrategyName, checkpointing: ActivationCheckpointing, reshards: bool, syncs: bool) -> EngineCost:
    return EngineCost(
        strategy=strategy,
        reshard_after_forward=reshards,
        sync_each_batch=syncs,
        activation_checkpointing=checkpointing,
        micro_batch_s=1e-3,
        micro_batch_s_per_unit=MICROSECONDS_PER_UNIT[strategy] * 1e-6,
        micro_batch_s_per_param=(2e-9 if reshards else 0.0) + (2e-9 if syncs else 0.0),
        step_s=STEP_S,
        step_s_per_tensor=1e-4,
        step_s_per_param=5e-9 if syncs else 7e-9,
    )


def cpu_ranks(gpus: int = 2) -> Cluster:
    return Cluster(gpu=Gpu(name=CPU_NAME, memory_bytes=4 * GIB), gpus=gpus, gpus_per_node=gpus)
