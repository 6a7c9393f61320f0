"""Where DeepSpeed keeps weights and moments on this rank: which ranges of which parameters its flat partitions hold.

Written against deepspeed 0.19.8: ``_hp_mapping`` of stages 1 and 2 (utils/tensor_fragment.py), ``grad_position`` of
stage 3 (runtime/zero/stage3.py). Its own checkpoints keep flat partitions of one world size instead.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from scaling.engines.state import (
    WEIGHT,
    Holder,
    StateSlice,
    create_moments,
    create_moments_of,
    flat,
    number_slice,
    tensor_states,
    whole_slice,
)


def partitioned_optimizer_slices(model: nn.Module, wrapper: Any) -> Iterator[StateSlice]:
    """Yield the slices under stages 1 and 2, where ``wrapper`` is DeepSpeed's optimizer."""
    flats = {
        id(parameter): wrapper.single_partition_of_fp32_groups[index]
        for index, members in enumerate(wrapper.bit16_groups)
        for parameter in members
    }
    for name, parameter in model.named_parameters():
        if id(parameter) not in flats:  # frozen: whole on every rank
            yield whole_slice(WEIGHT, name, parameter, Holder.ALL_RANKS)
            continue
        mapping: Any = getattr(parameter, "_hp_mapping", None)
        start = mapping.lp_fragment_address.start if mapping else 0
        offset = mapping.hp_fragment_address.start if mapping else 0
        count = mapping.hp_fragment_address.numel if mapping else 0
        place = _Place(name=name, shape=tuple(parameter.shape), start=start, offset=offset, count=count)
        yield from place.slices(flats[id(parameter)], wrapper.optimizer)


def partitioned_parameter_slices(model: nn.Module, wrapper: Any, *, rank: int) -> Iterator[StateSlice]:
    """Yield the slices under stage 3: every rank has an equal part of each parameter, the last ones less or nothing."""
    for name, parameter in model.named_parameters():
        each: Any = parameter
        shape, total, per_rank = tuple(each.ds_shape), int(each.ds_numel), int(each.partition_numel())
        start = min(rank * per_rank, total)
        count = min(per_rank, total - start)
        if not each.requires_grad:
            place = _Place(name=name, shape=shape, start=start, offset=0, count=count)
            yield place.slice_of(WEIGHT, each.ds_tensor)
            continue
        index, offset, _ = wrapper.grad_position[wrapper.get_param_id(each)]
        place = _Place(name=name, shape=shape, start=start, offset=offset, count=count)
        yield from place.slices(wrapper.fp32_partitioned_groups_flat[index], wrapper.optimizer)


def create_partitioned_moments(wrapper: Any) -> None:
    """Let the optimizer inside ``wrapper`` make its states, under any stage."""
    if not hasattr(wrapper, "fp32_partitioned_groups_flat"):
        create_moments(wrapper.optimizer)
        return
    # Stage 3 puts a flat partition into its group for the moment of its step.
    of_partition = wrapper.sub_group_to_group_id
    members = [
        (wrapper.optimizer.param_groups[of_partition[index]], partition)
        for index, partition in enumerate(wrapper.fp32_partitioned_groups_flat)
    ]
    create_moments_of(wrapper.optimizer, members)


@torch.no_grad()
def weights_from_masters(wrapper: Any) -> None:
    """Make the weights that the model computes with from the masters that were written to; a collective."""
    if not hasattr(wrapper, "fp32_partitioned_groups_flat"):
        wrapper.update_lp_params()
        return
    wrapper.checkpoint_event_prologue()
    for index in range(len(wrapper.fp32_partitioned_groups_flat)):
        wrapper._reassign_or_swap_out_partitioned_parameters(index)
    wrapper.checkpoint_event_epilogue()


class _Place:
    """Which range of a parameter a flat partition holds, and where in it."""

    def __init__(self, *, name: str, shape: tuple[int, ...], start: int, offset: int, count: int) -> None:
        self._name, self._shape, self._start = name, shape, start
        self._offset, self._count = offset, count

    def slices(self, partition: torch.Tensor, optimizer: Any) -> Iterator[StateSlice]:
        """Yield the weight and the moments; a number for the whole partition counts for every parameter in it."""
        yield self.slice_of(WEIGHT, partition)
        for kind, state in tensor_states(optimizer, partition).items():
            if state.shape == partition.shape:
                yield self.slice_of(kind, state)
            else:
                yield number_slice(kind, self._name, state)

    def slice_of(self, kind: str, partition: torch.Tensor) -> StateSlice:
        return StateSlice(
            kind=kind,
            name=self._name,
            shape=self._shape,
            start=self._start,
            tensor=flat(partition).narrow(0, self._offset, self._count),
            holder=Holder.THIS_RANK,
        )
