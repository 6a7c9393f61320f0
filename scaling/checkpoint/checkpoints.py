"""`Checkpoints`: the checkpoints of one run, from saving to going on from the latest that is whole."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from scaling.checkpoint.errors import CheckpointError
from scaling.checkpoint.manifest import TrainingState, read_manifest
from scaling.checkpoint.meeting import Meeting
from scaling.checkpoint.names import find_checkpoints, remove_leftovers
from scaling.checkpoint.reader import CheckpointReader
from scaling.checkpoint.restore import require_identity, restore, restore_random
from scaling.checkpoint.retention import prune
from scaling.checkpoint.save import save
from scaling.checkpoint.verify import verify
from scaling.engines.base import Engine

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """What a checkpoint says about the run it is of."""

    strategy: str
    seed: int
    """Of the run; ranks that start their random numbers anew make theirs of it."""
    identity: Mapping[str, str]
    """What must be the same for the run that goes on: data, order, optimizer."""
    documents: Mapping[str, str] = field(default_factory=dict)
    """File name to text: the plan and the configuration, kept beside the tensors to be read by people."""


class Checkpoints:
    """Saves to and restores from one folder. Every rank must make one and call each method: all are collectives."""

    def __init__(
        self, parent: Path, facts: RunFacts, *, meeting: Meeting, keep_last: int = 2, keep_best: int = 0
    ) -> None:
        """``keep_best``: those of the lowest evaluation loss are kept besides; 0 for ``keep_last`` keeps all."""
        self._parent, self._facts = parent, facts
        self._keep_last, self._keep_best = keep_last, keep_best
        self._meeting = meeting
        self._saved: tuple[int, Path] | None = None

    def save(self, engine: Engine, state: TrainingState) -> Path:
        """Return the folder of a complete checkpoint; a second call for one step returns the first one's.

        Raises:
            CheckpointError: on every rank; earlier checkpoints are untouched, and the engine can train on.
        """
        if self._saved is not None and self._saved[0] == state.step:
            return self._saved[1]
        folder = save(
            engine,
            state,
            parent=self._parent,
            meeting=self._meeting,
            strategy=self._facts.strategy,
            identity=self._facts.identity,
            documents=self._facts.documents,
        )
        self._saved = state.step, folder
        self._meeting.on_main(lambda: prune(self._parent, keep_last=self._keep_last, keep_best=self._keep_best))
        return folder

    def load_latest(self, engine: Engine) -> TrainingState | None:
        """Put the latest whole checkpoint into the engine; None, with the engine as it was, where there is none.

        Damaged ones are skipped with a warning that names the file.

        Raises:
            CheckpointError: the latest whole one is of another run, model or optimizer.
        """
        self._meeting.arrive("look for a checkpoint")
        self._meeting.on_main(lambda: remove_leftovers(self._parent))
        for folder in self._meeting.on_main(lambda: find_checkpoints(self._parent)):
            try:
                self._verify(folder)
            except CheckpointError as error:
                logger.warning("skipped a checkpoint: %s", error)
                continue
            return self._load(engine, folder)
        return None

    def load(self, engine: Engine, folder: Path) -> TrainingState:
        """Put one checkpoint into the engine.

        Raises:
            CheckpointError: it is damaged, or of another run, model or optimizer.
        """
        self._meeting.arrive("load a checkpoint")
        self._verify(folder)
        return self._load(engine, folder)

    def _verify(self, folder: Path) -> None:
        """Let each rank read a part of the bytes; raise on all what one has found."""
        meeting = self._meeting
        meeting.together(lambda: verify(folder, share=meeting.rank, num_shares=meeting.world_size))

    def _load(self, engine: Engine, folder: Path) -> TrainingState:
        manifest = read_manifest(folder)
        require_identity(self._facts.identity, manifest.identity, folder)
        with self._meeting.together(lambda: CheckpointReader(folder)) as reader:
            restore(engine, reader)
            restore_random(engine, reader, seed=self._seed_of(engine, manifest.state.step))
        self._saved = manifest.state.step, folder
        logger.info("going on after step %d from %s", manifest.state.step, folder)
        return manifest.state

    def _seed_of(self, engine: Engine, step: int) -> int:
        """Return another seed for every rank and step, up to a million ranks."""
        return (self._facts.seed + 1 + engine.rank + (step << 20)) % 2**63
