"""The run over optimizer steps in TensorFlow: data, step, evaluation, records."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from typing import final

from scaling.errors import TrainingError
from scaling.interrupt import RunStatus
from scaling.nonfinite import StepFacts, goes_on, why_stopped
from scaling.recovery.stopped import Stopped
from scaling.run_folder import METRICS_FILE
from scaling.schedule import LearningRate
from scaling.tensorflow.data import evaluation_steps, training_steps
from scaling.tensorflow.memory import peak_bytes
from scaling.tensorflow.mirrored import MirroredEngine, MirroredStep
from scaling.tensorflow.saving import Saving
from scaling.tensorflow.step_batch import StepBatch
from scaling.train_config import TrainConfig
from scaling.training_data import TrainingData
from scaling.watching.earlier import keep_until
from scaling.watching.loggers import open_loggers
from scaling.watching.records import EvaluationRecord, Record, StepRecord
from scaling.watching.reporter import Reporter
from scaling.watching.run_watch import clipped_norm
from scaling.watching.utilisation import Utilisation
from strategies.decision import Decision


@final
class Trainer:
    """Takes an engine from its first step, or a checkpoint's, to the last one."""

    def __init__(
        self,
        engine: MirroredEngine,
        data: TrainingData,
        config: TrainConfig,
        *,
        decision: Decision,
        utilisation: Utilisation | None,
        status: RunStatus,
    ) -> None:
        self._engine, self._data, self._config, self._status = engine, data, config, status
        self._decision, self._utilisation = decision, utilisation
        self._rate = LearningRate(config)
        self._saving = Saving(engine, config, decision, data)

    def train(self) -> list[Record] | Stopped:
        """Return the records of all steps; or, where a signal asked to stop, what was saved."""
        config = self._config
        first_step = self._saving.start(self._rate)
        records = keep_until(config.out / METRICS_FILE, first_step)
        reporter = Reporter(
            config.out / METRICS_FILE, num_steps=config.steps, first_step=first_step, loggers=open_loggers(config)
        )
        self._status.is_training = True
        try:
            with reporter:
                for record in self._records(first_step):
                    records.append(record)
                    reporter.add(record)
                    self._status.reached = f"after step {record.step} of {config.steps}; {self._saving.kept}"
        finally:
            self._status.is_training = False
        if records[-1].step == config.steps:
            return records
        return Stopped(
            step=records[-1].step,
            num_steps=config.steps,
            checkpoint=str(self._saving.last),
            reason=self._status.asked_by,
        )

    def _records(self, first_step: int) -> Iterator[Record]:
        config, engine = self._config, self._engine
        batches = training_steps(
            self._data,
            strategy=engine.strategy,
            accumulation=self._decision.plan.gradient_accumulation_steps,
            first_step=first_step,
            num_parallel=config.num_workers,
        )
        for step in range(first_step, config.steps):
            yield self._step(batches, step=step)
            is_last = step + 1 == config.steps
            if self._status.asked_by and not is_last:
                self._saving.save(self._rate, step=step + 1)
                return
            if config.eval_every and (is_last or (step + 1) % config.eval_every == 0):
                evaluation = self._evaluation(step=step + 1)
                self._rate.observe(evaluation.eval_loss)
                yield evaluation
            if self._saving.is_due(step + 1):
                self._saving.save(self._rate, step=step + 1)

    def _step(self, batches: Iterator[StepBatch], *, step: int) -> StepRecord:
        start = time.perf_counter()
        batch = next(batches)
        data_s = time.perf_counter() - start
        learning_rate = self._rate.at(self._engine.update_state.num_updates)
        result = self._engine.train_step(batch, learning_rate=learning_rate)
        total_s = time.perf_counter() - start
        self._settle(result, step=step + 1, learning_rate=learning_rate)
        tokens_per_s = self._data.order.global_batch_size * self._data.seq_len / total_s
        return StepRecord(
            step=step + 1,
            loss=result.mean_loss,
            grad_norm=result.grad_norm,
            grad_norm_clipped=clipped_norm(result.grad_norm, max_norm=self._decision.job.gradient_clipping),
            lr=learning_rate,
            lr_groups=tuple(learning_rate * scale for scale in self._engine.lr_scales),
            skipped=result.is_skipped,
            loss_scale=result.scale if result.scale != 1.0 else None,
            tokens_per_s=tokens_per_s,
            mfu=self._utilisation.mfu(tokens_per_s) if self._utilisation else None,
            step_time_s=total_s,
            data_time_s=data_s,
            forward_time_s=None,
            backward_time_s=None,
            optimizer_time_s=None,
            other_time_s=total_s - data_s,
            slowest_data_time_s=data_s,
            epoch=self._data.order.epoch(step + 1),
            peak_allocated_bytes=peak_bytes(self._engine.strategy),
            peak_reserved_bytes=None,
        )

    def _settle(self, result: MirroredStep, *, step: int, learning_rate: float) -> None:
        """Refuse a step that learns from nothing, or one that is not finite where the run must not go on.

        Raises:
            TrainingError: says which and why.
        """
        if not result.num_loss_units:
            raise TrainingError(f"step {step}: nothing in the global batch has a label; check the data")
        facts = StepFacts(
            step=step,
            loss=result.mean_loss,
            grad_norm=result.grad_norm,
            learning_rate=learning_rate,
            outcome=result.outcome,
        )
        policy = self._config.nonfinite
        if not facts.is_finite and not goes_on(facts, self._engine.update_state, policy=policy):
            raise TrainingError(f"{facts}; {why_stopped(facts, policy, can_name=False)}")

    def _evaluation(self, *, step: int) -> EvaluationRecord:
        start = time.perf_counter()
        loss_sum, num_units = 0.0, 0
        for batch in evaluation_steps(self._data, strategy=self._engine.strategy):
            found = self._engine.evaluate(batch)
            loss_sum, num_units = loss_sum + found.loss_sum, num_units + found.num_loss_units
        if not num_units:  # the loss of nothing would be zero, the best there is
            raise TrainingError(f"step {step}: nothing that is held out has a label; check the data, or hold out more")
        eval_loss = loss_sum / num_units
        if not math.isfinite(eval_loss):
            raise TrainingError(f"step {step}: eval_loss={eval_loss}; lower the learning rate, or check the data")
        return EvaluationRecord(
            step=step, eval_loss=eval_loss, eval_tokens=num_units, eval_time_s=time.perf_counter() - start
        )
