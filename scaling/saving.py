"""When a training run saves a checkpoint, and after which step it goes on: the flags of `TrainConfig` made true."""

from __future__ import annotations

import dataclasses
import json
import logging
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import final

from scaling.checkpoint.checkpoints import Checkpoints
from scaling.checkpoint.errors import CheckpointError, SaveFailed
from scaling.checkpoint.manifest import TrainingState, read_manifest
from scaling.checkpoint.meeting import Meeting
from scaling.checkpoint.names import find_checkpoints
from scaling.checkpoint.snapshot import RunFacts
from scaling.engines.base import Engine
from scaling.run_folder import CHECKPOINTS_FOLDER, CONFIG_FILE
from scaling.schedule import LearningRate
from scaling.train_config import AUTO, NONE, OnSaveFailure, TrainConfig
from scaling.training_data import TrainingData
from scaling.watching.records import SaveFailureRecord
from strategies.decision import Decision
from strategies.emit.deepspeed import STAGES
from strategies.emit.files import PLAN_FILE
from strategies.job import OptimizerName
from strategies.serialize import to_json
from strategies.units import format_bytes

logger = logging.getLogger(__name__)


def check_resume(config: TrainConfig) -> None:
    """Refuse a path that is no checkpoint, or one after which there is nothing left to do.

    Raises:
        CheckpointError: there is no readable manifest, or it is that of the last step.
    """
    if config.resume in (AUTO, NONE):
        return
    step = read_manifest(Path(config.resume)).state.step
    if step == config.steps and not continues(config):  # in its own folder the model may still have to be exported
        raise CheckpointError(f"{config.resume} has done step {step} of steps={config.steps}; give more --steps")
    _require_not_beyond(step, config)


def check_savable(config: TrainConfig, decision: Decision) -> None:
    """Refuse to save what cannot be cut by parameters, before the first step instead of at the first save.

    Raises:
        CheckpointError: ZeRO's partitions hold 8-bit states, whose blocks are others than those of the parameters.
    """
    job, strategy = decision.job, decision.plan.strategy
    if job.optimizer is not OptimizerName.ADAMW_8BIT or strategy not in STAGES:
        return
    if config.save_every:
        raise CheckpointError(
            f"save_every={config.save_every}, but the states of optimizer={job.optimizer} cannot be saved under "
            f"{strategy}, which cuts their blocks; leave it out, or plan with --strategy ddp or another --optimizer"
        )
    logger.warning("optimizer=%s cannot be saved under %s: a signal ends this run for good", job.optimizer, strategy)


def continues(config: TrainConfig) -> bool:
    """Return whether the run goes on with the one in its out folder, whose files then stay."""
    if config.resume == AUTO:
        return bool(find_checkpoints(config.out / CHECKPOINTS_FOLDER))
    return config.resume != NONE and config.out.resolve() in Path(config.resume).resolve().parents


def resumes(config: TrainConfig) -> bool:
    """Return whether the run begins from a checkpoint, of its out folder or of another."""
    return config.resume not in (AUTO, NONE) or continues(config)


def moves_aside(config: TrainConfig) -> bool:
    """Return whether an earlier run in the out folder may be moved: auto may find one that never saved."""
    return config.overwrite or config.resume == AUTO


@final
class Saving:
    """The checkpoints of one run. Every rank must make one and call each method: all but `is_due` are collectives."""

    def __init__(
        self,
        config: TrainConfig,
        decision: Decision,
        data: TrainingData,
        *,
        before_write: Callable[[int], None] = lambda copied_bytes: None,
    ) -> None:
        """``before_write``: as that of `Checkpoints`."""
        self._config, self._order = config, data.order
        self._checkpoint_bytes = _checkpoint_bytes(decision)
        self.rate = LearningRate(config)
        """Of the run; a plateau's goes into checkpoints."""
        self.last_step: int | None = None
        """Of the last complete checkpoint that this run has saved or gone on from."""
        self._begun_step = 0
        """Of the last checkpoint that was begun."""
        self._failures: list[tuple[SaveFailureRecord, SaveFailed]] = []
        self.meeting = Meeting(timeout_s=config.timeout_s)
        self._checkpoints = Checkpoints(
            config.out / CHECKPOINTS_FOLDER,
            RunFacts(
                strategy=decision.plan.strategy.value,
                seed=config.seed,
                identity=identity_of(config, decision, data),
                documents={
                    PLAN_FILE: to_json(decision),
                    CONFIG_FILE: json.dumps(dataclasses.asdict(config), indent=2, default=str),
                },
            ),
            keep_last=config.keep_last,
            keep_best=config.keep_best,
            meeting=self.meeting,
            before_write=before_write,
        )

    def start(self, engine: Engine) -> int:
        """Put the engine where the run goes on, as configured; return the optimizer steps that are done.

        Raises:
            CheckpointError: the checkpoint is damaged, or of another run, model or optimizer; or there is no room for
                the next one.
        """
        match self._config.resume:
            case "none":
                state = None
            case "auto":
                state = self._checkpoints.load_latest(engine)
            case path:
                state = self._checkpoints.load(engine, Path(path))
        if state:
            _require_not_beyond(state.step, self._config)
            self.rate.restore(state.schedule)
            self.last_step = state.step
        first_step = state.step if state else 0
        if self._config.save_every and first_step < self._config.steps:
            self.meeting.on_main(self._require_room)
        return first_step

    def is_due(self, step: int) -> bool:
        """Return whether the run saves after so many optimizer steps."""
        every = self._config.save_every
        return bool(every) and (step % every == 0 or step == self._config.steps)

    def save(self, engine: Engine, *, step: int, eval_loss: float | None = None, wait: bool = True) -> None:
        """Save a checkpoint after so many optimizer steps; once a step is enough. What fails is told by `failures`.

        ``wait``: until it is complete; else, with ``save_async``, only until the state is copied.

        Raises:
            CheckpointError: nothing that this run could save would be complete; on every rank.
        """
        self.finish()
        state = TrainingState(
            step=step,
            num_samples_seen=step * self._order.global_batch_size,
            eval_loss=eval_loss,
            schedule=self.rate.state(),
        )
        in_background = self._config.save_async and not wait
        self._begun_step = step
        self._noting(lambda: self._checkpoints.save(engine, state, in_background=in_background))

    def finish(self) -> Path | None:
        """Wait until the last checkpoint is complete; return its folder, or that of the last one that could be written.

        None where the run has saved nothing.

        Raises:
            CheckpointError: as with `save`.
        """
        self._noting(self._checkpoints.finish)
        return self._checkpoints.latest

    def close(self) -> None:
        """Wait for the last checkpoint, and tell of failed ones what nothing has told yet: the run ends another way."""
        self.finish()
        if self._config.on_save_failure is OnSaveFailure.STOP:
            for record, _ in self._failures:
                logger.warning("step %d has no checkpoint: %s", record.step, record.save_error)

    def failures(self, *, may_continue: bool = True) -> Iterator[SaveFailureRecord]:
        """Yield what has failed since the last call, the same on all ranks.

        Raises:
            SaveFailed: something has, and the run is configured to stop then, or what follows needs the checkpoint.
        """
        failures, self._failures = self._failures, []
        for record, _ in failures:
            yield record
        stops = self._config.on_save_failure is OnSaveFailure.STOP
        if failures and (stops or (not may_continue and failures[-1][0].step == self._begun_step)):
            raise failures[-1][1]

    def _noting(self, action: Callable[[], Path | None]) -> None:
        """Do what completes or begins the checkpoint of `_begun_step`, and keep how it has failed."""
        try:
            if action() is not None and self._begun_step:
                self.last_step = self._begun_step
        except SaveFailed as error:
            self._failures.append((SaveFailureRecord(step=self._begun_step, save_error=str(error)), error))
            if self._config.on_save_failure is OnSaveFailure.CONTINUE:
                logger.warning("step %d has no checkpoint: %s; %s", self._begun_step, error, self._kept())

    def _kept(self) -> str:
        if self.last_step is None:
            return "none was saved before; training goes on"
        return f"that of step {self.last_step} stays; training goes on"

    def _require_room(self) -> None:
        """Refuse, or warn, where the disk has no room for even one checkpoint: better now than after hours."""
        out = self._config.out.absolute()
        place = next(folder for folder in (out, *out.parents) if folder.is_dir())
        free = shutil.disk_usage(place).free
        if free >= self._checkpoint_bytes:
            return
        problem = (
            f"a checkpoint needs {format_bytes(self._checkpoint_bytes)}, but {place} has {format_bytes(free)} free; "
            f"free space, give another --out, or train with --save-every 0"
        )
        if self._config.on_save_failure is OnSaveFailure.STOP:
            raise SaveFailed(problem)
        logger.warning("%s", problem)


def _checkpoint_bytes(decision: Decision) -> int:
    """Return the least that a checkpoint takes by the plan: masters and states, not the 16-bit weights beside them."""
    host = decision.estimate.host
    if host is None:
        return 0
    return host.training_checkpoint_bytes - (
        host.model_checkpoint_bytes if decision.job.precision.has_master_weights else 0
    )


def _require_not_beyond(step: int, config: TrainConfig) -> None:
    if step > config.steps:
        raise CheckpointError(
            f"the checkpoint to go on from has done step {step}, which is beyond steps={config.steps}; "
            f"give more --steps"
        )


def identity_of(config: TrainConfig, decision: Decision, data: TrainingData) -> dict[str, str]:
    """Return what must stay the same: with any of it changed, the same step would not see the same samples."""
    job = decision.job
    facts = {
        "data_hash": data.content_hash,
        "num_samples": data.order.num_samples,
        "seed": config.seed,
        "global_batch_size": job.global_batch_size,
        "seq_len": job.seq_len,
        "optimizer": job.optimizer.value,
    }
    return {name: str(value) for name, value in facts.items()}
