"""`TokenWork`: what one token costs whatever the plan, computed once for a model, a length and an implementation."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from strategies.job import Attention, Job
from strategies.model_spec import GroupRole, ModelSpec
from strategies.plan import ActivationCheckpointing, Plan
from strategies.time.elementwise import token_bytes
from strategies.time.flops import (
    active_params,
    backward_product_flops,
    forward_flops,
    hardware_flops,
    model_flops,
    reached_share,
)
from strategies.units import ceil_div

SCORE_BIAS = frozenset({"mpt", "bloom", "t5"})
"""Families that add a bias to every score (ALiBi, relative positions): their kernels compute all pairs of tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenWork:
    """FLOPs and bytes of one token in forward, where not said otherwise."""

    block_flops: float
    attention_flops: float
    """As executed: without the pairs that a causal kernel leaves out."""
    head_flops: float
    block_bytes: float
    """Elementwise kernels."""
    loss_bytes: float
    """Forward and backward together."""
    backward_flops: float
    """Products of a token's backward."""
    reached_share: float
    """Part of the blocks that backward runs through."""
    model_flops: float
    """Training, by the definition of `MfuDefinition.PALM`."""
    recomputed_flops: float
    """On top of that where all blocks are computed twice, attention in full as in the definition."""
    second_products_flops: float
    """Of every second linear layer of the blocks: what selective activation checkpointing computes again."""
    num_params: int
    trained_params: int
    active_params: float

    @property
    def trained_share(self) -> float:
        """Part of the weights whose gradients are made: 1, or little with adapters."""
        return self.trained_params / self.num_params


def token_work(spec: ModelSpec, job: Job, *, compiled: bool) -> TokenWork:
    """Return the work of one token of ``job``."""
    return _token_work(spec, job, compiled)


@lru_cache(maxsize=1024)
def _token_work(spec: ModelSpec, job: Job, compiled: bool) -> TokenWork:
    skips_pairs = job.attention is Attention.FLASH and spec.family not in SCORE_BIAS
    flops = forward_flops(spec, seq_len=job.seq_len, causal=skips_pairs)
    num_bytes = token_bytes(spec, job, compiled=compiled)
    useful = model_flops(spec, seq_len=job.seq_len)
    full = ActivationCheckpointing.FULL
    return TokenWork(
        block_flops=flops.blocks,
        attention_flops=flops.attention,
        head_flops=flops.head,
        block_bytes=num_bytes.blocks,
        loss_bytes=num_bytes.loss,
        backward_flops=backward_product_flops(spec),
        reached_share=reached_share(spec),
        model_flops=useful,
        recomputed_flops=hardware_flops(spec, seq_len=job.seq_len, activation_checkpointing=full) - useful,
        second_products_flops=_second_products_flops(spec),
        num_params=spec.num_params,
        trained_params=spec.num_trained_params,
        active_params=active_params(spec),
    )


def _second_products_flops(spec: ModelSpec) -> float:
    """Return the FLOPs of a token in the second, fourth, ... linear layer of every block, in the order of the weights.

    As scaling/recompute.py counts them; the products of experts are not linear layers there.
    """
    blocks = [group for group in spec.groups if group.role is GroupRole.BLOCK]
    return sum(
        2.0 * group.num_copies * tensor.num_params
        for group in blocks
        for tensor in [each for each in group.tensors if len(each.shape) == 2][1::2]
    )


def checkpointed_share(spec: ModelSpec, plan: Plan) -> float:
    """Return the share of blocks that are checkpointed, in full or selectively."""
    if plan.activation_checkpointing is ActivationCheckpointing.NONE:
        return 0.0
    return ceil_div(spec.num_layers, plan.checkpoint_every) / spec.num_layers
