"""When a TensorFlow run saves, and after which step it goes on: the flags of `TrainConfig` made true."""

from __future__ import annotations

from pathlib import Path
from typing import final

from scaling.checkpoint.errors import CheckpointError
from scaling.run_folder import CHECKPOINTS_FOLDER
from scaling.saving import identity_of
from scaling.schedule import LearningRate
from scaling.tensorflow.checkpoint import PREFIX, Checkpoints, RunState, require_checkpoint
from scaling.tensorflow.mirrored import MirroredEngine
from scaling.train_config import AUTO, NONE, TrainConfig
from scaling.training_data import TrainingData
from strategies.decision import Decision


def continues(config: TrainConfig) -> bool:
    """Return whether the run goes on with the one in its out folder, whose files then stay."""
    folder = config.out / CHECKPOINTS_FOLDER
    if config.resume == AUTO:
        return any(folder.glob(f"{PREFIX}-*.index"))
    return config.resume != NONE and folder.resolve() == Path(config.resume).resolve().parent


def check_resume(config: TrainConfig) -> None:
    """Refuse to go on from a path that is no checkpoint of TensorFlow.

    Raises:
        CheckpointError: says what a path must be.
    """
    if config.resume not in (AUTO, NONE):
        require_checkpoint(Path(config.resume))


@final
class Saving:
    """The checkpoints of one run."""

    def __init__(self, engine: MirroredEngine, config: TrainConfig, decision: Decision, data: TrainingData) -> None:
        self._engine, self._config, self._order = engine, config, data.order
        self.last: Path | None = None
        """The last checkpoint that this run has saved or gone on from."""
        self._checkpoints = Checkpoints(
            engine,
            config.out / CHECKPOINTS_FOLDER,
            keep_last=config.keep_last,
            identity=identity_of(config, decision, data),
        )

    @property
    def kept(self) -> str:
        """What a run that ends now leaves, in words."""
        return f"the last checkpoint is {self.last}" if self.last else "no model was saved"

    def start(self, rate: LearningRate) -> int:
        """Put the engine and the learning rate where the run goes on; return the optimizer steps that are done.

        Raises:
            CheckpointError: the checkpoint is damaged, of another run, model or optimizer, or beyond the last step.
        """
        match self._config.resume:
            case "none":
                return 0
            case "auto":
                state = self._checkpoints.restore_latest()
            case path:
                state, self.last = self._checkpoints.restore(Path(path)), Path(path)
        if state is None:
            return 0
        self._require_steps(state.step)
        rate.restore(state.schedule)
        self.last = self.last or self._checkpoints.path_of(state.step)
        return state.step

    def _require_steps(self, done: int) -> None:
        """Refuse to go on where nothing is left to do; in its own folder the model may still have to be exported."""
        steps = self._config.steps
        if done > steps:
            raise CheckpointError(
                f"the checkpoint to go on from has done step {done}, which is beyond steps={steps}; give more --steps"
            )
        if done == steps and not continues(self._config):
            raise CheckpointError(f"{self.last} has done step {done} of steps={steps}; give more --steps")

    def is_due(self, step: int) -> bool:
        """Return whether the run saves after so many optimizer steps."""
        every = self._config.save_every
        return bool(every) and (step % every == 0 or step == self._config.steps)

    def save(self, rate: LearningRate, *, step: int) -> None:
        """Save a checkpoint after so many optimizer steps.

        Raises:
            CheckpointError: it cannot be written; earlier ones are untouched.
        """
        self.last = self._checkpoints.save(
            RunState(
                step=step,
                num_samples_seen=step * self._order.global_batch_size,
                update_state=self._engine.update_state,
                schedule=rate.state(),
            )
        )
