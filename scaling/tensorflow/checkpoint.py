"""Checkpoints of a TensorFlow run: `tf.train.Checkpoint` under a `CheckpointManager`.

Weights and moments are kept by parameter name, once for all replicas, so that a run goes on with another number of
them. A checkpoint is named in the manager's file when all of it is on disk, so that a run that is killed while it saves
leaves the one before. TensorFlow compares the checksum of every tensor that it reads (tensor_bundle.cc).
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, final

import tensorflow as tf

from scaling.checkpoint.errors import CheckpointError
from scaling.engines.loss_scale import UpdateState
from scaling.errors import one_line
from scaling.tensorflow.mirrored import MirroredEngine

PREFIX = "ckpt"

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunState:
    """What a run goes on from beside weights and moments."""

    step: int
    """Optimizer steps done, skipped ones included."""
    num_samples_seen: int
    """The cursor: samples taken from the order, over all replicas."""
    update_state: UpdateState
    schedule: Mapping[str, float] = field(default_factory=dict)
    """What a plateau's learning rate has come to."""


@final
class _HostState(tf.train.experimental.PythonState):
    """What is kept beside tensors, as JSON."""

    def __init__(self) -> None:
        self.content: dict[str, Any] = {}

    def serialize(self) -> str:
        return json.dumps(self.content)

    def deserialize(self, string_value: bytes) -> None:
        self.content = json.loads(string_value)


@final
class Checkpoints:
    """The checkpoints in one folder, and what of an engine goes into them."""

    def __init__(
        self, engine: MirroredEngine, folder: Path, *, keep_last: int, identity: Mapping[str, str] | None = None
    ) -> None:
        """``keep_last``: 0 keeps all. ``identity``: what must stay the same for a run to go on."""
        self._engine = engine
        self._identity = dict(identity or {})
        self._host = _HostState()
        self._whole = tf.train.Checkpoint(weights=engine.weights, moments=engine.moments, host=self._host)
        self._manager = tf.train.CheckpointManager(
            self._whole, str(folder), max_to_keep=keep_last or None, checkpoint_name=PREFIX
        )

    def path_of(self, step: int) -> Path:
        """Return the path of the checkpoint of a step, as `restore` takes it."""
        return Path(self._manager.directory) / f"{PREFIX}-{step}"

    def save(self, state: RunState) -> Path:
        """Write a checkpoint and return its path, which `restore` takes; it is complete on disk then.

        Raises:
            CheckpointError: it cannot be written; earlier ones are untouched.
        """
        self._host.content = {**asdict(state), "identity": self._identity}
        try:
            return Path(self._manager.save(checkpoint_number=state.step))
        except (tf.errors.OpError, OSError) as error:
            raise CheckpointError(
                f"cannot write the checkpoint of step {state.step} to {self._manager.directory}: {one_line(error)}; "
                f"free space or give another --out"
            ) from error

    def restore_latest(self) -> RunState | None:
        """Put the engine where the latest whole checkpoint is; None where there is none at all.

        Raises:
            CheckpointError: all are damaged, or the latest whole one is of another run.
        """
        found = self._found()
        for path in found:
            try:
                return self.restore(path)
            except _DamagedError as error:
                logger.warning("%s; the one before it is tried", error)
        if found:
            raise CheckpointError(
                f"all checkpoints in {self._manager.directory} are damaged ({', '.join(path.name for path in found)}); "
                f"move them away to begin anew"
            )
        return None

    def _found(self) -> list[Path]:
        """Return the checkpoints that are there, the latest first; without the manager's file, by their steps."""
        managed = [Path(each) for each in reversed(self._manager.checkpoints)]
        if present := [path for path in managed if _is_there(path)]:
            return present
        indices = Path(self._manager.directory).glob(f"{PREFIX}-*.index")
        steps = [number for path in indices if (number := path.stem.removeprefix(f"{PREFIX}-")).isdecimal()]
        return [self.path_of(step) for step in sorted(map(int, steps), reverse=True)]

    def restore(self, path: Path) -> RunState:
        """Put the engine where the checkpoint is.

        Raises:
            CheckpointError: there is none, it is damaged, or of another run, model or optimizer.
        """
        require_checkpoint(path)
        try:
            self._host.content = {}
            # First what it is, and only then the weights: those of another run would be read into this one's.
            tf.train.Checkpoint(host=self._host).read(str(path)).expect_partial()
            state = self._state(path)
            self._whole.restore(str(path)).assert_consumed()
        except (AssertionError, ValueError) as error:
            raise CheckpointError(f"{path} is of another model or optimizer: {one_line(error)}") from error
        except (tf.errors.OpError, OSError, IndexError, RuntimeError) as error:  # short files end in an IndexError
            raise _DamagedError(f"{path} is damaged: {one_line(error)}") from error
        self._engine.load_update_state(state.update_state)
        return state

    def _state(self, path: Path) -> RunState:
        content = dict(self._host.content)
        if not content:
            raise CheckpointError(f"{path} holds no run of this trainer; give one of its checkpoints")
        identity = content.pop("identity", {})
        if changed := [
            f"{name} was {identity[name]} and is {value}"
            for name, value in self._identity.items()
            if identity.get(name, value) != value
        ]:
            raise CheckpointError(f"{path} is of another run: {', '.join(changed)}; change it back, or begin anew")
        update_state = UpdateState(**content.pop("update_state"))
        return RunState(**content, update_state=update_state)


def require_checkpoint(path: Path) -> None:
    """Refuse a path under which TensorFlow has saved nothing.

    Raises:
        CheckpointError: says what a path must be.
    """
    if not _is_there(path):
        raise CheckpointError(f"{path} is no checkpoint of TensorFlow; give its path without the ending .index")


def _is_there(path: Path) -> bool:
    return path.with_name(f"{path.name}.index").is_file()


class _DamagedError(CheckpointError):
    """A checkpoint that is there cannot be read whole."""
