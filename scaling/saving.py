"""When a training run saves a checkpoint, and after which step it goes on: the flags of `TrainConfig` made true."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import final

from scaling.checkpoint.checkpoints import Checkpoints
from scaling.checkpoint.errors import CheckpointError
from scaling.checkpoint.manifest import TrainingState, read_manifest
from scaling.checkpoint.meeting import Meeting
from scaling.checkpoint.names import find_checkpoints
from scaling.checkpoint.snapshot import RunFacts
from scaling.engines.base import Engine
from scaling.run_folder import CHECKPOINTS_FOLDER, CONFIG_FILE
from scaling.schedule import LearningRate
from scaling.train_config import TrainConfig
from scaling.training_data import TrainingData
from strategies.decision import Decision
from strategies.emit.files import PLAN_FILE
from strategies.serialize import to_json

AUTO, NONE = "auto", "none"
"""What ``resume`` may be besides a path."""


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


def continues(config: TrainConfig) -> bool:
    """Return whether the run goes on with the one in its out folder, whose files then stay."""
    if config.resume == AUTO:
        return bool(find_checkpoints(config.out / CHECKPOINTS_FOLDER))
    return config.resume != NONE and config.out.resolve() in Path(config.resume).resolve().parents


def moves_aside(config: TrainConfig) -> bool:
    """Return whether an earlier run in the out folder may be moved: auto may find one that never saved."""
    return config.overwrite or config.resume == AUTO


@final
class Saving:
    """The checkpoints of one run. Every rank must make one and call each method: all but `is_due` are collectives."""

    def __init__(self, config: TrainConfig, decision: Decision, data: TrainingData) -> None:
        self._config, self._order = config, data.order
        self.rate = LearningRate(config)
        """Of the run; a plateau's goes into checkpoints."""
        self.last_step: int | None = None
        """Of the last checkpoint that this run has saved or gone on from."""
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
        )

    def start(self, engine: Engine) -> int:
        """Put the engine where the run goes on, as configured; return the optimizer steps that are done.

        Raises:
            CheckpointError: the checkpoint is damaged, or of another run, model or optimizer.
        """
        match self._config.resume:
            case "none":
                return 0
            case "auto":
                state = self._checkpoints.load_latest(engine)
            case path:
                state = self._checkpoints.load(engine, Path(path))
        if state:
            _require_not_beyond(state.step, self._config)
            self.rate.restore(state.schedule)
        self.last_step = state.step if state else None
        return state.step if state else 0

    def is_due(self, step: int) -> bool:
        """Return whether the run saves after so many optimizer steps."""
        every = self._config.save_every
        return bool(every) and (step % every == 0 or step == self._config.steps)

    def save(self, engine: Engine, *, step: int, eval_loss: float | None = None, wait: bool = True) -> None:
        """Save a checkpoint after so many optimizer steps; once a step is enough.

        ``wait``: until it is complete; else, with ``save_async``, only until the state is copied.

        Raises:
            CheckpointError: it, or the one before it, could not be written, on any rank; earlier ones are untouched.
        """
        state = TrainingState(
            step=step,
            num_samples_seen=step * self._order.global_batch_size,
            eval_loss=eval_loss,
            schedule=self.rate.state(),
        )
        self._checkpoints.save(engine, state, in_background=self._config.save_async and not wait)
        self.last_step = step

    def finish(self) -> Path | None:
        """Wait until the last checkpoint is complete, and return its folder; None where the run has not saved.

        Raises:
            CheckpointError: it could not be written, on any rank; earlier ones are untouched.
        """
        return self._checkpoints.finish()


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
