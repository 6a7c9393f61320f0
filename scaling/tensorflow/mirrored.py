"""Training under `tf.distribute.MirroredStrategy`: every replica holds all model states.

The order is: gradients of all micro batches, one sum over the replicas, one look at whether it is finite, one clipping,
one update. Keras 3.15 clips each replica's gradients before the sum, looks for overflow on the first replica only, and
cannot accumulate here at all; tests/scaling/tensorflow/test_plain_keras.py keeps watch over that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import keras
import tensorflow as tf

from scaling.engines.loss_scale import LossScaler, Outcome, UpdateState
from scaling.engines.optimizer import OptimizerSettings
from scaling.errors import EngineError
from scaling.tensorflow.decoder import build_decoder
from scaling.tensorflow.devices import mirrored_strategy
from scaling.tensorflow.gradients import ReplicaGradients, global_norm
from scaling.tensorflow.losses import NEXT_TOKENS, Objective
from scaling.tensorflow.step_batch import StepBatch
from scaling.tensorflow.update_rules import make_rule
from scaling.tensorflow.updates import Updates
from scaling.tensorflow.weights import parameters_by_name
from strategies.decision import Decision
from strategies.job import Job
from strategies.load_model import ResolvedModel
from strategies.mirrored_limits import as_run


@dataclass(frozen=True, slots=True, kw_only=True)
class MirroredStep:
    """Outcome of one optimizer step, equal on all replicas."""

    mean_loss: float
    """Nats per token over the whole global batch, before the update."""
    grad_norm: float
    """Global 2-norm of the unscaled gradient before clipping."""
    outcome: Outcome
    """Whether the weights were updated, and why not."""
    num_loss_units: int
    """Tokens the loss was taken over, all replicas."""
    scale: float
    """What the loss of this step was multiplied with."""

    @property
    def is_skipped(self) -> bool:
        return self.outcome is not Outcome.APPLIED


@dataclass(frozen=True, slots=True, kw_only=True)
class LossSums:
    """The loss of one evaluation batch over all replicas, to be added up over batches."""

    loss_sum: float
    num_loss_units: int


def build_mirrored_engine(
    resolved: ResolvedModel, *, decision: Decision, settings: OptimizerSettings, seed: int = 0
) -> MirroredEngine:
    """Return the engine of a plan on this machine's devices, with random weights: load others into its ``model``.

    Raises:
        EngineError: the devices are not there, or the engine does not run such a job.
        ModelError: the model cannot be built in TensorFlow here.
    """
    plan, strategy = decision.plan, mirrored_strategy(decision.cluster.gpus)
    job = as_run(decision.job, plan.strategy)
    with strategy.scope():
        model = build_decoder(
            resolved,
            precision=job.precision,
            activation_checkpointing=plan.activation_checkpointing,
            checkpoint_every=plan.checkpoint_every,
        )
    return MirroredEngine(
        model,
        strategy=strategy,
        job=job,
        settings=settings,
        gradient_accumulation_steps=plan.gradient_accumulation_steps,
        seed=seed,
        parameters=parameters_by_name(model),
    )


@final
class MirroredEngine:
    """A Keras model being trained. Mutable; the model must have been built in the strategy's scope.

    Weights, moments and `update_state` are everything that a run goes on from: dropout draws from the seed and the
    number of steps, and the learning rate is the caller's.
    """

    def __init__(
        self,
        model: keras.Model,
        *,
        strategy: tf.distribute.MirroredStrategy,
        job: Job,
        settings: OptimizerSettings,
        gradient_accumulation_steps: int,
        seed: int = 0,
        objective: Objective = NEXT_TOKENS,
        parameters: Mapping[str, keras.Variable] | None = None,
    ) -> None:
        """``parameters``: what is trained, by the names that decay and learning rates go by; None: all of the model."""
        self.model = model
        self.strategy = strategy
        self.num_replicas = strategy.num_replicas_in_sync
        self.gradient_accumulation_steps = gradient_accumulation_steps
        found = parameters or {variable.path: variable for variable in model.trainable_variables}
        self.weights: dict[str, tf.Variable] = {name: variable.value for name, variable in found.items()}
        """The trained parameters by name, mirrored on all replicas."""
        self._objective = objective
        self._scaler = LossScaler(is_dynamic=job.precision.is_fp16)
        self._max_norm = job.gradient_clipping
        self._seed = seed
        self._rule = make_rule(job.optimizer, settings)
        with strategy.scope():
            self._updates = Updates(self.weights, rule=self._rule, settings=settings, strategy=strategy)
            self._gradients = ReplicaGradients(
                model,
                weights=list(self.weights.values()),
                objective=objective,
                accumulates=gradient_accumulation_steps > 1,
            )
        self._step = tf.function(self._step_in_graph, autograph=False)
        self._loss_sums = tf.function(self._loss_sums_in_graph, autograph=False)

    @property
    def moments(self) -> dict[str, tf.Variable]:
        """The optimizer's states by "<state>/<parameter>", mirrored on all replicas."""
        return self._updates.moments

    @property
    def lr_scales(self) -> tuple[float, ...]:
        """The factor of the learning rate in each group of parameters, those with weight decay first."""
        return self._updates.lr_scales

    @property
    def update_state(self) -> UpdateState:
        """The loss scale and the counts of updates, for schedules and checkpoints; `load_update_state` restores it."""
        return self._scaler.state

    def load_update_state(self, state: UpdateState) -> None:
        """Go on from ``state``, as a checkpoint has kept it."""
        self._scaler.state = state

    def train_step(self, batch: StepBatch, *, learning_rate: float) -> MirroredStep:
        """Run one optimizer step: update where the gradients of all replicas are finite, and change nothing elsewhere.

        Raises:
            EngineError: the batch has another number of micro batches than the engine was made for.
        """
        self._check_shape(batch)
        state, scale = self.update_state, self._scaler.scale
        numbers = self._rule.numbers(learning_rate=learning_rate, num_updates=state.num_updates)
        loss_sum, num_units, norm, is_finite = self._step(
            batch.inputs,
            batch.labels,
            tf.constant(numbers, tf.float32),
            tf.constant(scale, tf.float32),
            # Not the count of updates: the step after a skipped one draws other masks.
            tf.constant([self._seed, state.num_updates + state.num_skipped], tf.int64),
        )
        outcome = self._scaler.update(is_finite=bool(is_finite))
        return MirroredStep(
            mean_loss=float(loss_sum) / max(int(num_units), 1),
            grad_norm=float(norm),
            outcome=outcome,
            num_loss_units=int(num_units),
            scale=scale,
        )

    def evaluate(self, batch: StepBatch) -> LossSums:
        """Return the summed loss of a batch of any number of micro batches, without dropout and without gradients."""
        loss_sum, num_units = self._loss_sums(batch.inputs, batch.labels)
        return LossSums(loss_sum=float(loss_sum), num_loss_units=int(num_units))

    def _step_in_graph(
        self, inputs: Any, labels: Any, numbers: tf.Tensor, scale: tf.Tensor, seed: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]:
        """Return loss sum, units, gradient norm and whether it is finite; runs once for all replicas."""
        num_units = self._count_units(labels)
        # At least one, so that a batch without a single label gives zero gradients, not NaN.
        weight = scale / tf.cast(tf.maximum(num_units, 1), tf.float32)
        loss_sums, gradients = self.strategy.run(self._gradients.compute, args=(inputs, labels, weight, seed))
        loss_sum = self.strategy.reduce(tf.distribute.ReduceOp.SUM, loss_sums, axis=None)
        total = self._sum_over_replicas(gradients)
        norm = global_norm([self.strategy.experimental_local_results(each)[0] for each in total]) / scale
        is_finite = tf.math.is_finite(norm)
        tf.cond(is_finite, lambda: self._updates.apply(total, self._factor(norm, scale), numbers), lambda: None)
        return loss_sum, num_units, norm, is_finite

    def _loss_sums_in_graph(self, inputs: Any, labels: Any) -> tuple[tf.Tensor, tf.Tensor]:
        loss_sums = self.strategy.run(self._gradients.loss_only, args=(inputs, labels))
        return self.strategy.reduce(tf.distribute.ReduceOp.SUM, loss_sums, axis=None), self._count_units(labels)

    def _count_units(self, labels: Any) -> tf.Tensor:
        counts = self.strategy.run(self._objective.num_units, args=(labels,))
        return self.strategy.reduce(tf.distribute.ReduceOp.SUM, counts, axis=None)

    def _sum_over_replicas(self, gradients: Sequence[Any]) -> list[Any]:
        """Return every gradient summed over the replicas, with a copy on each: the one all-reduce of a step."""
        pairs = list(zip(gradients, self.weights.values(), strict=True))
        total: list[Any] = self.strategy.extended.batch_reduce_to(tf.distribute.ReduceOp.SUM, pairs)
        return total

    def _factor(self, norm: tf.Tensor, scale: tf.Tensor) -> tf.Tensor:
        """Return what scaled gradients are multiplied with: unscaled, and clipped as the other engines do."""
        if not self._max_norm:
            return 1.0 / scale
        return 1.0 / tf.maximum((norm + 1e-6) / self._max_norm, 1.0) / scale

    def _check_shape(self, batch: StepBatch) -> None:
        for part in self.strategy.experimental_local_results(batch.inputs):
            if len(part) != self.gradient_accumulation_steps:
                raise EngineError(
                    f"the batch has {len(part)} micro batches for each replica, but gradient_accumulation_steps="
                    f"{self.gradient_accumulation_steps}; deal it as the plan says"
                )
