"""Who holds which storage, and for what cause: a module, an optimizer, a DeepSpeed engine, an FSDP2 model.

An engine gives one of these to the meter as a callable; the meter asks it again at every phase boundary, because owners
replace their tensors. Where two owners share a storage, the one that comes first names it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import StrEnum
from typing import Any, NamedTuple

import torch


class Cause(StrEnum):
    """Name of each field of `strategies.estimate.CauseBytes`, in its order."""

    PARAMETERS = "parameters"
    GATHERED_PARAMETERS = "gathered_parameters"
    GRADIENTS = "gradients"
    GRADIENT_ACCUMULATION = "gradient_accumulation"
    MASTER_WEIGHTS = "master_weights"
    OPTIMIZER_STATES = "optimizer_states"
    ACTIVATIONS = "activations"
    RECOMPUTED_BLOCK = "recomputed_block"
    LOGITS = "logits"
    COMMUNICATION_BUCKETS = "communication_buckets"
    STEP_TEMPORARIES = "step_temporaries"
    FRAMEWORK_CONTEXT = "framework_context"
    ALLOCATOR_SLACK = "allocator_slack"
    OTHER = "other"


class Place(StrEnum):
    """Which memory a storage counts against. On a CPU run only its owner can tell."""

    DEVICE = "device"
    HOST = "host"


class Owned(NamedTuple):
    """One tensor that somebody holds."""

    cause: Cause
    tensor: torch.Tensor
    place: Place = Place.DEVICE


Owners = Callable[[], Iterable[Owned]]

# Attributes of DeepSpeed's optimizers that hold memory (deepspeed 0.19.8: zero/stage_1_and_2.py, zero/stage3.py,
# bf16_optimizer.py, fp16/fused_optimizer.py, fp16/unfused_optimizer.py), outermost owner first.
_DEEPSPEED_ATTRIBUTES: Mapping[str, Cause] = {
    "bit16_groups_flat": Cause.PARAMETERS,
    "bf16_groups_flat": Cause.PARAMETERS,
    "fp16_groups_flat": Cause.PARAMETERS,
    "lp_param_buffer": Cause.PARAMETERS,
    "fp16_partitioned_groups_flat": Cause.PARAMETERS,
    "param_groups_fp16_flat_cpu_memory": Cause.PARAMETERS,
    "single_partition_of_fp32_groups": Cause.MASTER_WEIGHTS,
    "fp32_partitioned_groups_flat": Cause.MASTER_WEIGHTS,
    "fp32_groups_flat_partition": Cause.MASTER_WEIGHTS,
    "fp32_groups_flat": Cause.MASTER_WEIGHTS,
    "fp32_groups": Cause.MASTER_WEIGHTS,
    "grad_partitions_flat_buffer": Cause.GRADIENTS,
    "averaged_gradients": Cause.GRADIENTS,
    "all_grad_tensors": Cause.GRADIENTS,
    "grads_in_partition": Cause.GRADIENTS,
    "fp32_groups_gradients_flat": Cause.GRADIENTS,
    "fp32_groups_gradient_flat_partition": Cause.GRADIENTS,
    "accumulated_grads_in_cpu": Cause.GRADIENTS,
    "ipg_buckets": Cause.COMMUNICATION_BUCKETS,
    "temp_grad_buffer_for_gpu_offload": Cause.COMMUNICATION_BUCKETS,
    "temp_grad_buffer_for_cpu_offload": Cause.COMMUNICATION_BUCKETS,
    "param_buffer_of_bit16_for_cpu_offload_groups": Cause.COMMUNICATION_BUCKETS,
}
_HOST_WITH_OPTIMIZER = frozenset(
    {
        "single_partition_of_fp32_groups",
        "fp32_partitioned_groups_flat",
        "grad_partitions_flat_buffer",
        "accumulated_grads_in_cpu",
        "temp_grad_buffer_for_cpu_offload",
        "param_buffer_of_bit16_for_cpu_offload_groups",
    }
)
_HOST_WITH_PARAMETERS = frozenset(
    {"lp_param_buffer", "fp16_partitioned_groups_flat", "param_groups_fp16_flat_cpu_memory"}
)


def module_owners(
    module: torch.nn.Module, optimizer: torch.optim.Optimizer | None = None, *, place: Place = Place.DEVICE
) -> Iterator[Owned]:
    """Yield what a plain or DDP-wrapped module holds: weights, gradients, buffers; and its optimizer's states."""
    for parameter in module.parameters():
        yield Owned(Cause.PARAMETERS, parameter, place)
        if parameter.grad is not None:
            yield Owned(Cause.GRADIENTS, parameter.grad, place)
    yield from (Owned(Cause.OTHER, buffer, place) for buffer in module.buffers())
    if optimizer is not None:
        yield from optimizer_owners(optimizer, place=place)


def optimizer_owners(optimizer: torch.optim.Optimizer, *, place: Place = Place.DEVICE) -> Iterator[Owned]:
    """Yield the state tensors of a torch optimizer."""
    for tensor in _tensors(list(optimizer.state.values())):
        yield Owned(Cause.OPTIMIZER_STATES, tensor, place)


def deepspeed_owners(engine: Any) -> Iterator[Owned]:
    """Yield what a DeepSpeed engine of any ZeRO stage holds, with what is offloaded on the host.

    What an offloading engine copies with ``.to(device)`` does not exist twice on a CPU run: there the call returns the
    host tensor itself.
    """
    wrapper = engine.optimizer
    optimizer_place = _place(getattr(wrapper, "cpu_offload", False) or getattr(wrapper, "offload_optimizer", False))
    parameter_place = _place(getattr(wrapper, "offload_param", False))
    for name, cause in _DEEPSPEED_ATTRIBUTES.items():
        place = Place.DEVICE
        if name in _HOST_WITH_OPTIMIZER:
            place = optimizer_place
        elif name in _HOST_WITH_PARAMETERS:
            place = parameter_place
        for tensor in _tensors(getattr(wrapper, name, None)):
            yield Owned(_wide(cause, tensor, engine), tensor, place)
            if cause is Cause.MASTER_WEIGHTS and tensor.grad is not None:
                # On the host it stays; on the device it is made for the step.
                kept = place is Place.HOST
                yield Owned(Cause.GRADIENT_ACCUMULATION if kept else Cause.STEP_TEMPORARIES, tensor.grad, place)
    inner = getattr(wrapper, "optimizer", wrapper)
    yield from (Owned(Cause.OPTIMIZER_STATES, tensor, optimizer_place) for tensor in _tensors(_states(inner)))
    for parameter in engine.module.parameters():
        yield from _deepspeed_parameter(parameter, engine, parameter_place)
    yield from (Owned(Cause.OTHER, buffer) for buffer in engine.module.buffers())


def _deepspeed_parameter(parameter: Any, engine: Any, place: Place) -> Iterator[Owned]:
    partition = getattr(parameter, "ds_tensor", None)
    if partition is not None:
        yield Owned(Cause.PARAMETERS, partition, place)
    yield Owned(Cause.PARAMETERS if partition is None else Cause.GATHERED_PARAMETERS, parameter)
    for name in ("grad", "grad_accum"):
        gradient = getattr(parameter, name, None)
        if gradient is not None:
            yield Owned(_wide(Cause.GRADIENTS, gradient, engine), gradient)


def _wide(cause: Cause, tensor: torch.Tensor, engine: Any) -> Cause:
    """Return GRADIENT_ACCUMULATION for gradients kept wider than the weights, else the cause itself."""
    if cause is not Cause.GRADIENTS:
        return cause
    weight = next(engine.module.parameters()).dtype
    return Cause.GRADIENT_ACCUMULATION if tensor.dtype.itemsize > weight.itemsize else cause


def fsdp2_owners(module: torch.nn.Module, optimizer: torch.optim.Optimizer | None = None) -> Iterator[Owned]:
    """Yield what a module under `fully_shard` holds: shards, gathered weights, both kinds of gradient, states.

    Reads private attributes of torch 2.13 (fsdp/_fully_shard/_fsdp_param.py). Offloaded shards are on the host.
    """
    place = Place.DEVICE
    for parameter in fsdp_parameters(module):
        place = _place(parameter.offload_to_cpu)
        yield Owned(Cause.PARAMETERS, parameter._sharded_param_data, place)
        yield Owned(Cause.PARAMETERS, parameter.sharded_param, place)
        if parameter.sharded_param.grad is not None:
            yield Owned(Cause.GRADIENTS, parameter.sharded_param.grad, place)
        yield from (Owned(Cause.GATHERED_PARAMETERS, tensor) for tensor in parameter.all_gather_outputs)
        unsharded = getattr(parameter, "_unsharded_param", None)
        if unsharded is not None:
            yield Owned(Cause.GATHERED_PARAMETERS, unsharded)
        gradients = (parameter.unsharded_accumulated_grad, None if unsharded is None else unsharded.grad)
        yield from (Owned(Cause.GRADIENTS, tensor) for tensor in gradients if tensor is not None)
    yield from module_owners(module, optimizer, place=place)


def fsdp_parameters(module: torch.nn.Module) -> Iterator[Any]:
    """Yield torch's FSDPParam of every parameter under `fully_shard`."""
    from torch.distributed.fsdp import FSDPModule

    for child in module.modules():
        if isinstance(child, FSDPModule):
            for group in child._get_fsdp_state()._fsdp_param_groups:
                yield from group.fsdp_params


def _place(offloaded: object) -> Place:
    return Place.HOST if offloaded else Place.DEVICE


def _states(optimizer: Any) -> Any:
    return list(getattr(optimizer, "state", {}).values())


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors in nested lists, tuples, dicts and DeepSpeed's bucket objects."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        yield from _tensors(list(value.values()))
    elif isinstance(value, (list, tuple, set)):
        for item in value:
            yield from _tensors(item)
    elif type(value).__name__ in ("IPGBucket", "IPGBucketZ3"):
        yield from _tensors(value.buffer)
