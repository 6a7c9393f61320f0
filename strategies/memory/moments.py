"""Model states and activations put together moment by moment; a phase is its highest moment."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import lru_cache
from typing import NamedTuple

from strategies.base import StateLayout
from strategies.estimate import CauseBytes, Phase, PhaseBytes
from strategies.job import Job, LossImplementation, Precision
from strategies.memory.activations import Bytes, Levels, Setting, Stretch, activation_levels
from strategies.model_spec import GroupRole, ModelSpec
from strategies.plan import Plan, StrategyName

TOKEN_BYTES = 16
"""Token ids and labels, int64, in the device's memory while a micro batch is."""


def step_phases(
    spec: ModelSpec, layout: StateLayout, *, job: Job, plan: Plan, on_cpu: bool = False
) -> tuple[PhaseBytes, ...]:
    """Return every phase but the first, each at its highest moment, on one rank.

    Raises:
        SpecError: there are no forms for the model's activations.
    """
    size = plan.micro_batch_size
    moments = _moments(
        spec,
        setting_of(job, plan, on_cpu=on_cpu),
        layout,
        plan.strategy,
        plan.buckets.reduce_bucket_size,
        size if job.loss is LossImplementation.FUSED else 1,
    )
    tokens = TOKEN_BYTES * size * job.seq_len
    return (
        _highest(Phase.FORWARD, moments.forward, size, tokens),
        _highest(Phase.BACKWARD, moments.backward, size, tokens),
        moments.optimizer_step,
        _highest(Phase.EVALUATION, moments.evaluation, size, tokens),
        moments.save,
    )


def setting_of(job: Job, plan: Plan, *, on_cpu: bool) -> Setting:
    """Return what the activations of a job depend on under a plan."""
    return Setting(
        seq_len=job.seq_len,
        number_format=number_format(job.precision, plan.strategy),
        attention=job.attention,
        activation_checkpointing=plan.activation_checkpointing,
        checkpoint_every=plan.checkpoint_every,
        loss=job.loss,
        on_cpu=on_cpu,
    )


def number_format(precision: Precision, strategy: StrategyName) -> str:
    """Return the forms that a precision needs: FSDP2 gathers weights in 16 bits and needs no autocast."""
    if precision is Precision.FP32:
        return "fp32"
    return "autocast" if precision.is_autocast and strategy is not StrategyName.FSDP2 else "16bit"


class _Moment(NamedTuple):
    """What lives at one moment, for any number of samples."""

    total: int
    """Bytes with one sample, model states included."""
    total_per_sample: int
    states: Mapping[str, int]
    """Bytes of the model states by cause."""
    beside: Bytes
    """Everything else, with one sample."""
    beside_per_sample: Bytes


class _Moments(NamedTuple):
    """Everything about one job and layout but the number of samples."""

    forward: Sequence[_Moment]
    backward: Sequence[_Moment]
    evaluation: Sequence[_Moment]
    optimizer_step: PhaseBytes
    save: PhaseBytes


def _highest(phase: Phase, moments: Sequence[_Moment], micro_batch_size: int, tokens: int) -> PhaseBytes:
    times, most, best = micro_batch_size - 1, -1, moments[0]
    for moment in moments:
        total = moment.total + times * moment.total_per_sample
        if total > most:
            most, best = total, moment
    beside = best.beside.plus(best.beside_per_sample, times=times)
    causes = dict(best.states)
    # A part may be lower at its moment than the others make up for: nothing is shown below zero.
    recomputed, logits = max(0, beside.recomputed_block), max(0, beside.logits)
    causes["activations"] += max(0, beside.total - recomputed - logits)
    causes["recomputed_block"] += recomputed
    causes["logits"] += logits
    causes["gradients"] += beside.gradients
    causes["other"] += tokens
    return PhaseBytes(phase=phase, causes=CauseBytes(**causes))


@lru_cache(maxsize=1024)
def _moments(
    spec: ModelSpec,
    setting: Setting,
    layout: StateLayout,
    strategy: StrategyName,
    reduce_bucket_size: int,
    micro_batch_size: int,
) -> _Moments:
    levels = activation_levels(spec, setting, micro_batch_size=micro_batch_size)
    have_place = (layout.resident + layout.backward_start).gradients > 0
    of_layout = _OfLayout(layout, levels, is_ddp=strategy is StrategyName.DDP and have_place)
    first_gradient = layout.first_gradient
    backward = [
        *of_layout.moments(layout.backward_start, Stretch.BEFORE_FIRST_GRADIENT),
        *of_layout.moments(first_gradient, Stretch.AFTER_FIRST_GRADIENT),
        *of_layout.moments(first_gradient, Stretch.LAST_BLOCK),
        *of_layout.moments(layout.backward_end, Stretch.FIRST_BLOCK),
        *of_layout.moments(layout.embedding_backward, Stretch.EMBEDDING),
        *of_layout.moments(layout.first_reduction, Stretch.FIRST_BLOCK),
    ]
    # FSDP2 reduces block by block: its layout means the last block itself.
    done = 0 if strategy is StrategyName.FSDP2 else _blocks_in_bucket(spec, reduce_bucket_size)
    backward += of_layout.moments(layout.first_reduction, Stretch.LAST_BLOCK, done=done / spec.num_layers)
    return _Moments(
        forward=[
            *of_layout.moments(layout.forward, Stretch.FORWARD),
            *of_layout.moments(layout.forward_start, Stretch.FIRST_BLOCK_IN_FORWARD),
        ],
        backward=backward,
        evaluation=[
            *of_layout.moments(layout.evaluation, Stretch.EVALUATION),
            *of_layout.moments(layout.evaluation_start, Stretch.BLOCK_IN_EVALUATION),
        ],
        optimizer_step=PhaseBytes(phase=Phase.OPTIMIZER_STEP, causes=layout.resident + layout.optimizer_step),
        save=PhaseBytes(phase=Phase.SAVE, causes=layout.resident + layout.save),
    )


class _OfLayout:
    """Puts the moments of activations beside the states of a layout."""

    def __init__(self, layout: StateLayout, levels: Levels, *, is_ddp: bool) -> None:
        self.layout, self.levels, self.is_ddp = layout, levels, is_ddp
        self.in_backward = (layout.first_gradient, layout.first_reduction, layout.backward_end)
        (self.kept,) = levels[Stretch.KEPT]

    def moments(self, state: CauseBytes, stretch: Stretch, *, done: float = 0.0) -> Iterator[_Moment]:
        """Yield the moments of a stretch; ``done``: share of the blocks whose activations are gone by then."""
        states = self.layout.resident + self._without_new_gradients(state)
        total, causes = states.total_bytes, asdict(states)
        for level in self.levels[stretch]:
            beside = self._beside(level.parts, self.kept.parts, done)
            per_sample = self._beside(level.parts_per_sample, self.kept.parts_per_sample, done)
            yield _Moment(
                total + beside.total + beside.gradients,
                per_sample.total + per_sample.gradients,
                causes,
                beside,
                per_sample,
            )

    def _without_new_gradients(self, state: CauseBytes) -> CauseBytes:
        """Return DDP's states as backward starts: gradients have their place in buckets from the first step on."""
        return self.layout.backward_start if self.is_ddp and state in self.in_backward else state

    def _beside(self, bytes_then: Bytes, kept: Bytes, done: float) -> Bytes:
        """Return what lives beside the states. Under DDP a new gradient lives beside the bucket that it is added to;
        the other layouts count it themselves."""
        left = bytes_then.plus(Bytes(*(round(min(done, 1.0) * part) for part in kept)), times=-1)
        return left if self.is_ddp else Bytes(left.activations, left.recomputed_block, left.logits)


@lru_cache(maxsize=1024)
def _blocks_in_bucket(spec: ModelSpec, bucket_elements: int) -> int:
    """Return how many blocks' gradients fill a bucket, rounded down."""
    blocks = [group for group in spec.groups if group.role is GroupRole.BLOCK]
    num_params, number = sum(group.num_params for group in blocks), sum(group.num_copies for group in blocks)
    return bucket_elements * number // num_params if num_params else 0
