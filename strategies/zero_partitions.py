"""How ZeRO stages 1 and 2 cut the parameters of a group into equal partitions, and who holds most.

Source: deepspeed 0.19.8, runtime/zero/stage_1_and_2.py; a name in parentheses is the function followed.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from functools import cache

from strategies.model_spec import ModelSpec
from strategies.parameter_order import OptimizerGroup, parameter_order
from strategies.units import round_up

ALIGNMENT = 2
"""Elements that a rank's partition is a multiple of (nccl_start_alignment_factor)."""


def partition_elements(group: OptimizerGroup, data_parallel_size: int) -> int:
    """Return the elements of one rank's equal share of a group, padding included (flatten_dense_tensors_aligned)."""
    return round_up(group.num_params, ALIGNMENT * data_parallel_size) // data_parallel_size


def touched_elements(group: OptimizerGroup, data_parallel_size: int, *, rank: int) -> int:
    """Return the elements of all tensors that a rank's partition has a part of (get_partition_info)."""
    share = partition_elements(group, data_parallel_size)
    first = bisect_right(group.offsets, share * rank) - 1
    last = bisect_left(group.offsets, share * (rank + 1))
    return group.offsets[min(last, len(group.sizes))] - group.offsets[min(first, len(group.sizes))]


@cache
def ranks_that_may_hold_most(spec: ModelSpec, data_parallel_size: int) -> tuple[int, ...]:
    """Return the first rank, the last one, and the one whose partition touches most elements."""
    groups = parameter_order(spec).groups
    main = groups[0]
    share = partition_elements(main, data_parallel_size)
    candidates = {0, data_parallel_size - 1}
    for offset in main.offsets:
        candidates |= {min(offset // share, data_parallel_size - 1), max(offset - 1, 0) // share}
    most = max(
        sorted(candidates),
        key=lambda rank: sum(touched_elements(group, data_parallel_size, rank=rank) for group in groups),
    )
    return tuple(sorted({0, data_parallel_size - 1, most}))
