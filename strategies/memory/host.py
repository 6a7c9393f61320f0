"""Host memory and disk: what the ranks of one node hold in RAM, pinned and pageable, and what goes to NVMe and files.

Sources: deepspeed 0.19.8, runtime/zero/stage_1_and_2.py, stage3.py, offload_config.py and runtime/swap_tensor; torch
2.13, ATen/core/CachingHostAllocator.h, for the sizes of pinned blocks; our own trainer for loading and export.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from strategies.base import largest_tensor_params, largest_trained_params
from strategies.cluster import Cluster
from strategies.fsdp2_groups import formats_of, shard_elements
from strategies.host_ledger import HostBytes, HostLedger
from strategies.job import Job, OptimizerName, Precision
from strategies.memory.optimizer_states import (
    FP32_BYTES,
    flat_state_bytes,
    master_element_bytes,
    shard_state_bytes,
)
from strategies.model_spec import ModelSpec
from strategies.parameter_order import parameter_order
from strategies.plan import OffloadDevice, Plan, StrategyName
from strategies.units import MIB, ceil_div
from strategies.zero_partitions import partition_elements, ranks_that_may_hold_most, touched_elements
from strategies.zero_stage3 import frozen_sizes, sub_groups

PROCESS_BYTES = 360 * MIB
"""Of one rank with torch, transformers and DeepSpeed imported (measured, CPU builds); CUDA's libraries come on top."""
SAVE_PIECE_BYTES = 32 * MIB
"""Of a rank that saves a checkpoint: what it copies to the host at a time (scaling/checkpoint/tensor_file.py)."""
EXPORT_TENSORS = 2
"""Of the rank that exports: the tensor that is written, as it came and in the format of the folder. Opening the folder
again maps its files (measured: 19 MiB in all for a model of 166 MiB, tests/scaling/export_memory.py)."""
OPTIMIZER_SWAP_BUFFERS = 4
PARAMETER_SWAP_BUFFERS = 5
PARAMETER_SWAP_ELEMENTS = 100_000_000
"""DeepSpeed's defaults of ``buffer_count`` and ``buffer_size`` for NVMe."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Offloaded:
    """What one rank rests outside of its device."""

    pinned: tuple[int, ...] = ()
    """Bytes of each pinned buffer, before rounding."""
    pageable: int = 0
    locked: int = 0
    """Of the pinned buffers those for NVMe, which DeepSpeed locks itself (csrc/pin_memory/page_alloc.cpp)."""
    nvme: int = 0


def host_ledger(
    spec: ModelSpec, *, cluster: Cluster, job: Job, plan: Plan, loaded_element_bytes: int | None = None
) -> HostLedger:
    """Return the host memory of the first node.

    ``loaded_element_bytes``: bytes of one weight as every rank loads it; None for the format of the forward pass, as
    the trainer does it. Programs that load fp32 checkpoints as they are need 4.
    """
    # Neither batch nor length changes it: a search asks for few of them.
    placement = _Placement(
        plan.strategy, plan.offload_optimizer, plan.offload_param, plan.gradient_accumulation_steps > 1
    )
    return _ledger(
        spec,
        cluster.ranks_per_node,
        cluster.gpus,
        job.precision,
        job.optimizer,
        job.fused_optimizer,
        placement,
        loaded_element_bytes,
    )


class _Placement(NamedTuple):
    """What of a plan decides where states rest."""

    strategy: StrategyName
    offload_optimizer: OffloadDevice
    offload_param: OffloadDevice
    accumulates: bool


@lru_cache(maxsize=4096)
def _ledger(
    spec: ModelSpec,
    ranks: int,
    data_parallel_size: int,
    precision: Precision,
    optimizer: OptimizerName,
    fused_optimizer: bool,
    plan: _Placement,
    loaded_element_bytes: int | None,
) -> HostLedger:
    params = spec.num_params
    job = Job(seq_len=2, global_batch_size=1, precision=precision, optimizer=optimizer, fused_optimizer=fused_optimizer)
    element = loaded_element_bytes or built_element_bytes(job.precision)
    rank = _offloaded(spec, job=job, plan=plan, data_parallel_size=data_parallel_size)
    processes = HostBytes(pageable=ranks * PROCESS_BYTES)
    load = processes + HostBytes(pageable=ranks * element * params)
    buffers = HostBytes(pinned=ranks * sum(map(pinned_block_bytes, rank.pinned)))
    steady = processes + buffers + HostBytes(pageable=ranks * rank.pageable)
    # A buffer is made pageable and copied into a pinned one. States come with the first step.
    pinning = HostBytes(pageable=ranks * max(rank.pinned, default=0))
    saved = saved_element_bytes(job.precision) * params
    largest = saved_element_bytes(job.precision) * largest_tensor_params(spec)
    # transformers 5 computes with the experts of a layer as one tensor and stores each alone: it opens copies.
    read_whole = saved if spec.num_experts else 0
    return HostLedger(
        load=load,
        initialise=processes + buffers + pinning,
        steady=steady,
        save=steady + HostBytes(pageable=ranks * SAVE_PIECE_BYTES + EXPORT_TENSORS * largest + read_whole),
        locked_bytes=rank.locked,
        nvme_bytes=ranks * rank.nvme,
        model_checkpoint_bytes=saved,
        training_checkpoint_bytes=saved + _updated_bytes(spec, job),
    )


def built_element_bytes(precision: Precision) -> int:
    """Return the bytes of one weight as the trainer builds it (scaling/models.py, DTYPES)."""
    return precision.weight_bytes


def saved_element_bytes(precision: Precision) -> int:
    """Return the bytes of one weight in an exported model."""
    return precision.weight_bytes


def pinned_block_bytes(size: int) -> int:
    """Return what torch pins for ``size`` bytes: the next power of two, to use blocks again."""
    return 1 << (size - 1).bit_length() if size > 1 else size


def _updated_bytes(spec: ModelSpec, job: Job) -> int:
    masters = FP32_BYTES * spec.num_trained_params if job.precision.has_master_weights else 0
    return masters + shard_state_bytes(spec, job, 1)


def _offloaded(spec: ModelSpec, *, job: Job, plan: _Placement, data_parallel_size: int) -> _Offloaded:
    """Return what the rank that offloads most rests on the host and on NVMe."""
    match plan.strategy:
        case StrategyName.ZERO1 | StrategyName.ZERO2 if plan.offload_optimizer is not OffloadDevice.NONE:
            return _stage12(spec, job=job, plan=plan, data_parallel_size=data_parallel_size)
        case StrategyName.ZERO3:
            return _stage3(spec, job=job, plan=plan, data_parallel_size=data_parallel_size)
        case StrategyName.FSDP2 if plan.offload_param is not OffloadDevice.NONE:
            return _fsdp2(spec, job=job, data_parallel_size=data_parallel_size)
    return _Offloaded()


def _stage12(spec: ModelSpec, *, job: Job, plan: _Placement, data_parallel_size: int) -> _Offloaded:
    """Per group: masters, their 16-bit copy on its way to the device, fp32 gradients; states; one gradient's buffer."""
    weight, master = job.precision.weight_bytes, master_element_bytes(job.precision)
    groups = parameter_order(spec).groups
    shares = [partition_elements(group, data_parallel_size) for group in groups]
    pinned = [bytes_ * share for share in shares for bytes_ in (master, weight, master)]
    pinned.append(weight * largest_trained_params(spec))
    if plan.accumulates:
        # Whole gradients of the tensors that the partition touches (accumulated_grads_in_cpu).
        pinned.append(
            weight
            * max(
                sum(touched_elements(group, data_parallel_size, rank=rank) for group in groups)
                for rank in ranks_that_may_hold_most(spec, data_parallel_size)
            )
        )
    return _Offloaded(pinned=tuple(pinned), pageable=sum(flat_state_bytes(job, share) for share in shares))


def _stage3(spec: ModelSpec, *, job: Job, plan: _Placement, data_parallel_size: int) -> _Offloaded:
    """Masters, gradients in two formats and states with the optimizer; a copy of the partition with the weights."""
    weight, master = job.precision.weight_bytes, master_element_bytes(job.precision)
    parts = sub_groups(spec, data_parallel_size)
    share = sum(parts)
    states = sum(flat_state_bytes(job, part) for part in parts)
    pinned: list[int] = []
    pageable = nvme = locked = 0
    if plan.offload_optimizer is OffloadDevice.CPU:
        pinned += [master * part for part in parts] + [weight * share]
        pageable += master * share + states
    elif plan.offload_optimizer is OffloadDevice.NVME:
        # Masters, gradients and states pass through buffers as long as the largest part.
        swap_buffers = [master * max(parts)] * OPTIMIZER_SWAP_BUFFERS
        pinned += [weight * share, *swap_buffers]
        locked += sum(swap_buffers)
        nvme += 2 * master * share + states
    if plan.offload_param is OffloadDevice.CPU:
        pinned += [weight * part for part in parts]
        # Frozen weights are in no group: each one's partition is pinned by itself.
        pinned += [weight * ceil_div(size, data_parallel_size) for size in frozen_sizes(spec)]
    elif plan.offload_param is OffloadDevice.NVME:
        buffers = PARAMETER_SWAP_BUFFERS * weight * PARAMETER_SWAP_ELEMENTS
        pinned += [buffers]
        locked += buffers
        nvme += weight * (share + sum(ceil_div(size, data_parallel_size) for size in frozen_sizes(spec)))
    return _Offloaded(pinned=tuple(pinned), pageable=pageable, locked=locked, nvme=nvme)


def _fsdp2(spec: ModelSpec, *, job: Job, data_parallel_size: int) -> _Offloaded:
    """Shards and the gradients of trained ones, pinned tensor by tensor, and the states."""
    formats = formats_of(job.precision)
    pinned = [
        (formats.shard if tensor.is_trained else formats.frozen) * shard_elements(tensor, data_parallel_size)
        for group in spec.groups
        for tensor in group.tensors
        for _ in range(group.num_copies * (2 if tensor.is_trained else 1))
    ]
    return _Offloaded(pinned=tuple(pinned), pageable=shard_state_bytes(spec, job, data_parallel_size))
