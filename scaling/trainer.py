"""The run over optimizer steps: learning rate, step, evaluation, records. No strategy is named here."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator

from scaling.engines.base import Engine
from scaling.engines.loss_scale import Outcome
from scaling.errors import TrainingError
from scaling.loop import evaluate, train_step
from scaling.nonfinite import Repeatable, StepFacts, settle
from scaling.recovery.guard import RunGuard
from scaling.saving import Saving
from scaling.schedule import LearningRate
from scaling.train_config import TrainConfig
from scaling.training_data import TrainingData
from scaling.watching.records import EvaluationRecord, Record, StepRecord
from scaling.watching.run_watch import RunWatch


def train(
    engine: Engine,
    data: TrainingData,
    config: TrainConfig,
    *,
    watch: RunWatch,
    saving: Saving,
    guard: RunGuard,
    first_step: int,
) -> Iterator[Record]:
    """Yield a record after every optimizer step and every evaluation, the same on all ranks; save when that is due.

    Where a rank was asked to stop, all save and end after that step. ``first_step``: how many are done already.

    Raises:
        CheckpointError: a checkpoint could not be written, and the run is configured to stop then.
        TrainingError: loss or gradient norm is not finite, or a global batch has nothing to learn from.
    """
    rate = saving.rate
    try:
        for step in range(first_step, config.steps):
            yield _step(engine, data, config, rate=rate, watch=watch, guard=guard, step=step)
            yield from watch.layers()
            is_last, eval_loss = step + 1 == config.steps, None
            if guard.agreement.stops and not is_last:  # before an evaluation: who asked may not wait for long
                saving.save(engine, step=step + 1)
                yield from saving.failures(may_continue=False)
                return
            if config.eval_every and (is_last or (step + 1) % config.eval_every == 0):
                evaluation = _evaluation(engine, data, guard=guard, step=step + 1)
                eval_loss = evaluation.eval_loss
                rate.observe(eval_loss)
                yield evaluation
            if saving.is_due(step + 1):  # after the records of the step are written, since a resumed run keeps those
                saving.save(engine, step=step + 1, eval_loss=eval_loss, wait=False)
                yield from saving.failures()
        saving.finish()
        yield from saving.failures()
    finally:
        data.feed.close()  # workers that still make batches would keep the process from ending
        saving.close()


def _step(
    engine: Engine,
    data: TrainingData,
    config: TrainConfig,
    *,
    rate: LearningRate,
    watch: RunWatch,
    guard: RunGuard,
    step: int,
) -> StepRecord:
    watch.begin_step(step + 1)
    guard.progress.begin_step(step + 1)
    # Not of the step: one that is skipped does not advance the schedule.
    learning_rate = rate.at(engine.update_state.num_updates)
    engine.set_learning_rate(learning_rate)
    scale = engine.update_state.scale
    with watch.clock.waiting_for_data():
        planned = data.micro_batches(step, rank=engine.rank, world_size=engine.data_parallel_size)
        micro_batches = list(guard.ladder.cut(planned, engine.task))
    repeatable = Repeatable.of(micro_batches, engine, policy=config.nonfinite)
    result = train_step(engine, micro_batches, observer=watch, gradients=guard.ladder.add_gradients)
    numbers = result.read()  # waits for the device, so the time is right
    sight = watch.see(numbers, num_tokens=data.order.global_batch_size * data.seq_len)
    watch.end_step()
    if not numbers.num_loss_units:
        raise TrainingError(f"step {step + 1}: nothing in the global batch has a label; check the data")
    facts = StepFacts(
        step=step + 1,
        loss=numbers.mean_loss,
        grad_norm=numbers.grad_norm,
        learning_rate=learning_rate,
        outcome=result.outcome,
    )
    if not facts.is_finite:
        settle(facts, engine, policy=config.nonfinite, repeatable=repeatable)
    times = sight.times
    return StepRecord(
        step=step + 1,
        loss=numbers.mean_loss,
        grad_norm=numbers.grad_norm,
        grad_norm_clipped=sight.grad_norm_clipped,
        lr=learning_rate,
        lr_groups=engine.learning_rates,
        skipped=result.outcome is not Outcome.APPLIED,
        loss_scale=scale if scale != 1.0 else None,
        tokens_per_s=sight.tokens_per_s,
        mfu=sight.mfu,
        step_time_s=times.total_s,
        data_time_s=times.data_s,
        forward_time_s=times.forward_s,
        backward_time_s=times.backward_s,
        optimizer_time_s=times.optimizer_s,
        other_time_s=times.other_s,
        slowest_data_time_s=sight.slowest_data_s,
        epoch=data.order.epoch(step + 1),
        peak_allocated_bytes=sight.peak_allocated_bytes,
        peak_reserved_bytes=sight.peak_reserved_bytes,
    )


def _evaluation(engine: Engine, data: TrainingData, *, guard: RunGuard, step: int) -> EvaluationRecord:
    start = time.perf_counter()
    batches = data.evaluation_batches(rank=engine.rank, world_size=engine.data_parallel_size)
    in_passes = guard.ladder.cut(batches, engine.task)
    result = evaluate(engine, guard.progress.through(in_passes, "evaluation, batch"))
    if not result.num_loss_units:  # the loss of nothing is zero, the best there is
        raise TrainingError(f"step {step}: nothing that is held out has a label; check the data, or hold out more")
    if not math.isfinite(result.mean_loss):
        raise TrainingError(f"step {step}: eval_loss={result.mean_loss}; lower the learning rate, or check the data")
    return EvaluationRecord(
        step=step,
        eval_loss=result.mean_loss,
        eval_tokens=result.num_loss_units,
        eval_time_s=time.perf_counter() - start,
        eval_metrics=result.metrics,
    )
