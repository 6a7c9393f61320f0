"""Model states and activations put together moment by moment; a phase is its highest moment."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from math import log
from typing import NamedTuple

from strategies.base import BlockState, StateLayout
from strategies.estimate import CauseBytes, Phase, PhaseBytes
from strategies.job import Job, LossImplementation, Precision
from strategies.memory.activations import activation_levels
from strategies.memory.forms import STAGE3_AUTOCAST
from strategies.memory.keras_activations import KERAS_FP32, KERAS_MIXED
from strategies.memory.stretches import Affine, Bytes, Levels, Setting, Stretch
from strategies.model_spec import ModelSpec
from strategies.plan import Plan, StrategyName

TOKEN_BYTES = 16
"""Token ids and labels, int64, in the device's memory while a micro batch is."""
STAGE3 = "-stage3"
"""Ends the name of a number format whose linear layers are DeepSpeed's (zero/linear.py)."""
SMALL_GRADIENT = 8
"""A gradient so many times smaller than any of a moment's is that of no matrix."""


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
        number_format=_format_of(job, plan.strategy),
        attention=job.attention,
        activation_checkpointing=plan.activation_checkpointing,
        checkpoint_every=plan.checkpoint_every,
        loss=job.loss,
        on_cpu=on_cpu,
    )


def number_format(precision: Precision, strategy: StrategyName) -> str:
    """Return the forms that a precision needs: FSDP2 gathers weights in 16 bits and needs no autocast."""
    if strategy is StrategyName.MIRRORED:
        return KERAS_FP32 if precision is Precision.FP32 else KERAS_MIXED
    if precision is Precision.FP32:
        return "fp32"
    if not precision.is_autocast or strategy is StrategyName.FSDP2:
        return "16bit"
    return STAGE3_AUTOCAST if strategy is StrategyName.ZERO3 else "autocast"


def _format_of(job: Job, strategy: StrategyName) -> str:
    """Return the forms that a job needs: under stage 3 frozen linear layers keep their input like trained ones."""
    found = number_format(job.precision, strategy)
    is_like_others = job.lora is None or strategy is not StrategyName.ZERO3 or found.endswith(STAGE3)
    return found if is_like_others else found + STAGE3


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
    micro_batch_size: int,
) -> _Moments:
    levels = activation_levels(spec, setting, micro_batch_size=micro_batch_size)
    of_layout = _OfLayout(layout, levels, spec.num_trained_layers)
    backward = [
        *of_layout.moments(layout.backward_start, Stretch.BEFORE_FIRST_GRADIENT),
        *of_layout.moments(layout.first_gradient, Stretch.AFTER_FIRST_GRADIENT),
        *of_layout.moments(layout.after_head, Stretch.AFTER_HEAD),
        *(moment for state in layout.in_blocks for moment in of_layout.of_block(state)),
        *of_layout.moments(layout.embedding_backward, Stretch.EMBEDDING),
    ]
    return _Moments(
        forward=_that_may_be_highest(
            *of_layout.moments(layout.forward, Stretch.FORWARD),
            *of_layout.moments(layout.forward_start, Stretch.FIRST_BLOCK_IN_FORWARD),
            *of_layout.moments(layout.forward_gather, Stretch.BESIDE_BLOCKS_IN_FORWARD),
            *of_layout.moments(layout.last_gather, Stretch.BESIDE_LAST_BLOCK_IN_FORWARD),
        ),
        backward=_that_may_be_highest(*backward),
        evaluation=_that_may_be_highest(
            *of_layout.moments(layout.evaluation, Stretch.EVALUATION),
            *of_layout.moments(layout.evaluation_start, Stretch.BLOCK_IN_EVALUATION),
            *of_layout.moments(layout.evaluation_gather, Stretch.BESIDE_BLOCKS_IN_EVALUATION),
        ),
        optimizer_step=PhaseBytes(phase=Phase.OPTIMIZER_STEP, causes=layout.resident + layout.optimizer_step),
        save=PhaseBytes(phase=Phase.SAVE, causes=layout.resident + layout.save),
    )


def _that_may_be_highest(*moments: _Moment) -> list[_Moment]:
    """Return the moments that are the highest for some number of samples, those that grow least first."""
    found: list[_Moment] = []
    for moment in sorted(moments, key=lambda each: (each.total_per_sample, each.total)):
        while found and (
            found[-1].total <= moment.total
            or (len(found) > 1 and _samples_to_overtake(found[-2], moment) <= _samples_to_overtake(*found[-2:]))
        ):
            found.pop()
        found.append(moment)
    return found


def _samples_to_overtake(one: _Moment, steeper: _Moment) -> float:
    return (one.total - steeper.total) / (steeper.total_per_sample - one.total_per_sample)


class _OfLayout:
    """Puts the moments of activations beside the states of a layout; ``num_layers``: those that backward reaches."""

    def __init__(self, layout: StateLayout, levels: Levels, num_layers: int) -> None:
        self.resident, self.levels, self.num_layers = layout.resident, levels, num_layers
        (self.kept,) = levels[Stretch.KEPT]

    def moments(self, state: CauseBytes, stretch: Stretch) -> Iterator[_Moment]:
        """Yield the moments of a stretch."""
        return self._on(
            state,
            (
                (level.parts._replace(gradients=0), level.parts_per_sample._replace(gradients=0))
                for level in self.levels[stretch]
            ),
        )

    def of_block(self, state: BlockState) -> Iterator[_Moment]:
        """Yield the moments of one block's backward, when those done have given back what they kept."""
        is_first = state.num_done == self.num_layers - 1
        stretch = Stretch.FIRST_BLOCK if is_first and self.num_layers > 1 else Stretch.LAST_BLOCK
        # Without any trained block the only states are those of the head's gradient.
        gone = 0.0 if is_first or not self.num_layers else state.num_done / self.num_layers
        levels = _beside_gradient(self.levels[stretch], state.new_gradient)
        keeps = not state.counts_new_gradient
        return self._on(
            state.causes,
            (
                (
                    _left(level.parts, self.kept.parts, gone=gone, keeps_gradients=keeps),
                    _left(level.parts_per_sample, self.kept.parts_per_sample, gone=gone, keeps_gradients=keeps),
                )
                for level in levels
            ),
        )

    def _on(self, state: CauseBytes, levels: Iterable[tuple[Bytes, Bytes]]) -> Iterator[_Moment]:
        states = self.resident + state
        total, causes = states.total_bytes, states.by_cause()
        for beside, per_sample in levels:
            yield _Moment(
                total + beside.total + beside.gradients,
                per_sample.total + per_sample.gradients,
                causes,
                beside,
                per_sample,
            )


def _beside_gradient(levels: Sequence[Affine], new_gradient: int | None) -> Sequence[Affine]:
    """Return the moments of a block at which a gradient of so many bytes has just been made.

    Small ones, of norms and biases, have no moment of their own: they come between those of matrices.
    """
    between = [level for level in levels if not level.gradients]
    with_one = [level for level in levels if level.gradients]
    if new_gradient is None or not with_one or not between:
        return levels
    if new_gradient * SMALL_GRADIENT < min(level.gradients for level in with_one):
        return between
    nearest = min(with_one, key=lambda level: abs(log(level.gradients / new_gradient)))
    return [level for level in with_one if level.gradients == nearest.gradients]


def _left(bytes_then: Bytes, kept: Bytes, *, gone: float, keeps_gradients: bool) -> Bytes:
    """Return what lives beside the states when a share of what all blocks keep is gone."""
    left = bytes_then.plus(Bytes(*(round(gone * part) for part in kept)), times=-1)
    return left if keeps_gradients else left._replace(gradients=0)
