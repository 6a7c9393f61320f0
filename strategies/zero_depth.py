"""Stage 3 over a deep model, told from a shallow one: what it gathers repeats from block to block."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from strategies.model_spec import GroupRole, ModelSpec
from strategies.parameter_order import tensor_sizes
from strategies.plan import Buckets
from strategies.units import ceil_div, round_up
from strategies.zero_gathered import GatheredElements, Stage3Offload
from strategies.zero_gathers import walk
from strategies.zero_modules import STACKED_DIMENSIONS

FEWEST_BLOCKS = 8


@cache
def gathered_elements(
    spec: ModelSpec,
    data_parallel_size: int,
    buckets: Buckets,
    *,
    checkpoint_every: int,
    offload: Stage3Offload,
) -> GatheredElements:
    """Return what `strategies.zero_gathers.walk` does, from a model with fewer blocks where those tell everything."""
    twin = shallow_twin(spec, _blocks_that_tell(spec, buckets)) if checkpoint_every <= 1 else None
    if twin is None or not _starts_afresh(twin, buckets):
        return walk(spec, data_parallel_size, buckets, checkpoint_every=checkpoint_every, offload=offload)
    found = gathered_elements(twin, data_parallel_size, buckets, checkpoint_every=checkpoint_every, offload=offload)
    limit = buckets.stage3_param_persistence_threshold
    whole = [round_up(size, data_parallel_size) for size in tensor_sizes(spec) if size <= limit]
    return replace(
        found,
        persistent=sum(whole) if data_parallel_size > 1 else 0,
        in_blocks=tuple(
            replace(each, num_done=_depth(each.num_done, shallow=twin.num_layers, deep=spec.num_layers))
            for each in found.in_blocks
        ),
    )


@cache
def shallow_twin(spec: ModelSpec, num_blocks: int) -> ModelSpec | None:
    """Return the model cut to ``num_blocks``; None where its blocks differ or it has no more than that."""
    blocks = [group for group in spec.groups if group.role is GroupRole.BLOCK]
    are_alike = len(blocks) == 1 and blocks[0].num_copies == spec.num_layers and not spec.num_frozen_layers
    if not are_alike or spec.num_layers <= num_blocks:
        return None
    groups = tuple(
        replace(group, layers=group.layers[:num_blocks]) if group.role is GroupRole.BLOCK else group
        for group in spec.groups
    )
    return replace(spec, num_layers=num_blocks, num_sliding_layers=0, groups=groups)


def _depth(num_done: int, *, shallow: int, deep: int) -> int:
    """Return the same place in the deep model: counted from its start in the first half, else from its end."""
    return num_done if num_done < shallow // 2 else num_done + deep - shallow


def _blocks_that_tell(spec: ModelSpec, buckets: Buckets) -> int:
    """Return how many blocks show everything that more would: several times what is fetched ahead."""
    window = 2 * buckets.stage3_max_live_parameters + buckets.stage3_prefetch_bucket_size
    return FEWEST_BLOCKS + ceil_div(window, max(spec.largest_block_params(), 1))


def _starts_afresh(spec: ModelSpec, buckets: Buckets) -> bool:
    """Whether a tensor of every block overflows the reduce bucket, so that no block meets another one's rest.

    And whether nothing adds up over the blocks, as stacked experts do.
    """
    blocks = [tensor for group in spec.groups if group.role is GroupRole.BLOCK for tensor in group.tensors]
    are_stacked = (len(tensor.shape) == STACKED_DIMENSIONS for group in spec.groups for tensor in group.tensors)
    return not any(are_stacked) and any(
        tensor.is_trained and tensor.num_params > buckets.reduce_bucket_size for tensor in blocks
    )
