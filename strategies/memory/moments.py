"""Model states and activations put together moment by moment; a phase is its highest moment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import NamedTuple

from strategies.base import StateLayout
from strategies.estimate import CauseBytes, Phase, PhaseBytes
from strategies.job import Job, Precision
from strategies.memory.activations import Bytes, Setting, Stretch, activation_levels, highest
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
    states = _states(layout)
    moments = _Moments(spec, job=job, plan=plan, on_cpu=on_cpu, states=states)
    tokens = TOKEN_BYTES * plan.micro_batch_size * job.seq_len
    return (
        states.phase(Phase.FORWARD, moments.forward(), tokens),
        states.phase(Phase.BACKWARD, moments.backward(), tokens),
        states.optimizer_step,
        states.phase(Phase.EVALUATION, moments.evaluation(), tokens),
        states.save,
    )


class _Moment(NamedTuple):
    """A moment of the layout and what lives beside the model states then."""

    total: int
    state: str
    beside: Bytes


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


class _Moments:
    """Looks for the highest moment of each phase."""

    def __init__(self, spec: ModelSpec, *, job: Job, plan: Plan, on_cpu: bool, states: _States) -> None:
        self.spec, self.plan, self.states = spec, plan, states
        self.levels = activation_levels(
            spec, setting_of(job, plan, on_cpu=on_cpu), micro_batch_size=plan.micro_batch_size
        )
        self.is_ddp = plan.strategy is StrategyName.DDP
        """A new gradient lives beside the bucket that it is added to; the other layouts count it themselves."""

    def forward(self) -> _Moment:
        return max(
            self._moment("forward", Stretch.FORWARD), self._moment("forward_start", Stretch.FIRST_BLOCK_IN_FORWARD)
        )

    def backward(self) -> _Moment:
        first_gradient = "backward_start" if self.is_ddp else "first_gradient"
        moments = [
            self._moment("backward_start", Stretch.BEFORE_FIRST_GRADIENT),
            self._moment(first_gradient, Stretch.AFTER_FIRST_GRADIENT),
            self._moment(first_gradient, Stretch.LAST_BLOCK),
        ]
        if self.is_ddp:  # its gradients have their place from the start
            moments.append(self._moment("backward_start", Stretch.FIRST_BLOCK))
            moments.append(self._moment("backward_start", Stretch.EMBEDDING))
        else:
            moments.append(self._total("first_reduction", self._at_first_reduction()))
            moments.append(self._moment("backward_end", Stretch.FIRST_BLOCK))
            moments.append(self._moment("embedding_backward", Stretch.EMBEDDING))
        return max(moments)

    def evaluation(self) -> _Moment:
        return max(
            self._moment("evaluation", Stretch.EVALUATION),
            self._moment("evaluation_start", Stretch.BLOCK_IN_EVALUATION),
        )

    def _at_first_reduction(self) -> Bytes:
        """Return what is left when the blocks done have filled one reduce bucket with gradients."""
        last_block = self._highest(Stretch.LAST_BLOCK)
        if self.plan.strategy is StrategyName.FSDP2:
            return last_block  # it reduces block by block: its layout means the last block itself
        done = _blocks_in_bucket(self.spec, self.plan.buckets.reduce_bucket_size)
        kept = self._highest(Stretch.KEPT)
        share = Bytes(*(min(done, self.spec.num_layers) * each // self.spec.num_layers for each in kept))
        return max(last_block.plus(share, times=-1), self._highest(Stretch.FIRST_BLOCK), key=lambda each: each.total)

    def _moment(self, state: str, stretch: Stretch) -> _Moment:
        return self._total(state, self._highest(stretch))

    def _highest(self, stretch: Stretch) -> Bytes:
        return highest(self.levels[stretch], self.plan.micro_batch_size, with_gradients=self.is_ddp)

    def _total(self, state: str, beside: Bytes) -> _Moment:
        if not self.is_ddp:
            beside = beside._replace(gradients=0)
        return _Moment(self.states.totals[state] + beside.total + beside.gradients, state, beside)


_NAMES = (
    *("forward", "forward_start", "backward_start", "first_gradient", "first_reduction", "backward_end"),
    *("embedding_backward", "evaluation", "evaluation_start"),
)


@dataclass(frozen=True, slots=True)
class _States:
    """A layout's moments with what is resident added."""

    totals: Mapping[str, int]
    causes: Mapping[str, Mapping[str, int]]
    optimizer_step: PhaseBytes
    save: PhaseBytes

    def phase(self, phase: Phase, moment: _Moment, tokens: int) -> PhaseBytes:
        """Return a phase at its highest moment."""
        causes, beside = dict(self.causes[moment.state]), moment.beside
        # A part may be lower at its moment than the whole would tell: nothing is shown below zero.
        recomputed, logits = max(0, beside.recomputed_block), max(0, beside.logits)
        causes["activations"] += max(0, beside.total - recomputed - logits)
        causes["recomputed_block"] += recomputed
        causes["logits"] += logits
        causes["gradients"] += beside.gradients
        causes["other"] += tokens
        return PhaseBytes(phase=phase, causes=CauseBytes(**causes))


@lru_cache(maxsize=1024)
def _states(layout: StateLayout) -> _States:
    resident = layout.resident
    moments = {name: resident + getattr(layout, name) for name in _NAMES}
    return _States(
        {name: causes.total_bytes for name, causes in moments.items()},
        {name: asdict(causes) for name, causes in moments.items()},
        PhaseBytes(phase=Phase.OPTIMIZER_STEP, causes=resident + layout.optimizer_step),
        PhaseBytes(phase=Phase.SAVE, causes=resident + layout.save),
    )


@lru_cache(maxsize=1024)
def _blocks_in_bucket(spec: ModelSpec, bucket_elements: int) -> int:
    """Return how many blocks' gradients fill a bucket, rounded down."""
    blocks = [group for group in spec.groups if group.role is GroupRole.BLOCK]
    num_params, number = sum(group.num_params for group in blocks), sum(group.num_copies for group in blocks)
    return bucket_elements * number // num_params if num_params else 0
