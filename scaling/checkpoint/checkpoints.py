"""`Checkpoints`: the checkpoints of one run, from saving to going on from the latest that is whole."""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from scaling.checkpoint.errors import CheckpointError
from scaling.checkpoint.manifest import TrainingState, read_manifest
from scaling.checkpoint.meeting import Meeting
from scaling.checkpoint.names import find_checkpoints, remove_leftovers
from scaling.checkpoint.reader import CheckpointReader
from scaling.checkpoint.restore import require_identity, restore, restore_random
from scaling.checkpoint.retention import prune
from scaling.checkpoint.save import open_partial, write
from scaling.checkpoint.snapshot import RunFacts, Snapshot, has_room_for_copies, take_snapshot
from scaling.checkpoint.verify import verify
from scaling.engines.base import Engine

logger = logging.getLogger(__name__)


class Checkpoints:
    """Saves to and restores from one folder. Every rank must make one and call each method: all are collectives."""

    def __init__(
        self,
        parent: Path,
        facts: RunFacts,
        *,
        meeting: Meeting,
        keep_last: int = 2,
        keep_best: int = 0,
        before_write: Callable[[int], None] = lambda copied_bytes: None,
    ) -> None:
        """``keep_best``: those of the lowest evaluation loss are kept besides; 0 for ``keep_last`` keeps all.

        ``before_write``: raises SaveFailed where the host lacks the bytes that writing copies there at a time.
        """
        self._parent, self._facts = parent, facts
        self._keep_last, self._keep_best = keep_last, keep_best
        self._meeting, self._before_write = meeting, before_write
        self._saved: tuple[int, Path] | None = None
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        self._writing: Future[Path] | None = None
        self._said_no_room = False

    def save(self, engine: Engine, state: TrainingState, *, in_background: bool = False) -> Path | None:
        """Return the folder of a complete checkpoint; a second call for one step returns the first one's.

        ``in_background``: return None as soon as the state is copied to the host, where every node has room for that,
        and write while training goes on. One is written at a time: the next call waits for it, as `finish` does.

        Raises:
            SaveFailed: this one, or the one in the background, could not be written; on every rank. Earlier checkpoints
                are untouched, and the engine can train on.
            CheckpointError: not every rank has called, or the state cannot be saved at all.
        """
        self.finish()
        if self._saved is not None and self._saved[0] == state.step:
            return self._saved[1]
        self._meeting.arrive("save a checkpoint")
        # What one rank alone cannot save would leave the others waiting for it.
        snapshot = self._meeting.together(lambda: self._take_snapshot(engine, state))
        partial = open_partial(snapshot, self._parent, self._meeting)
        if in_background and self._has_room(snapshot):
            copied = snapshot.copied()
            self._writing = self._writer.submit(lambda: self._write(copied, partial))
            return None
        return self._write(snapshot, partial)

    def finish(self) -> Path | None:
        """Wait for a save in the background; return its folder, None where there was none.

        Raises:
            SaveFailed: it could not be written; on every rank.
        """
        writing, self._writing = self._writing, None
        return None if writing is None else writing.result()

    @property
    def latest(self) -> Path | None:
        """The last checkpoint that was completed or loaded, None where there is none."""
        return self._saved[1] if self._saved else None

    def load_latest(self, engine: Engine) -> TrainingState | None:
        """Put the latest whole checkpoint into the engine; None, with the engine as it was, where there is none.

        Damaged ones are skipped with a warning that names the file.

        Raises:
            CheckpointError: the latest whole one is of another run, model or optimizer; or there are some, and all are
                damaged: to start anew must be the user's choice.
        """
        self._meeting.arrive("look for a checkpoint")
        self._meeting.on_main(lambda: remove_leftovers(self._parent))
        damaged: CheckpointError | None = None
        for folder in self._meeting.on_main(lambda: find_checkpoints(self._parent)):
            try:
                self._verify(folder)
            except CheckpointError as error:
                logger.warning("skipped a checkpoint: %s", error)
                damaged = damaged or error
                continue
            return self._load(engine, folder)
        if damaged is not None:
            raise CheckpointError(
                f"no checkpoint in {self._parent} is whole, the latest because {damaged}; "
                f"or start anew with --resume none"
            )
        return None

    def load(self, engine: Engine, folder: Path) -> TrainingState:
        """Put one checkpoint into the engine.

        Raises:
            CheckpointError: it is damaged, or of another run, model or optimizer.
        """
        self._meeting.arrive("load a checkpoint")
        self._verify(folder)
        return self._load(engine, folder)

    def _take_snapshot(self, engine: Engine, state: TrainingState) -> Snapshot:
        snapshot = take_snapshot(engine, state, self._facts)
        self._before_write(snapshot.copied_bytes)
        return snapshot

    def _write(self, snapshot: Snapshot, partial: Path) -> Path:
        folder = write(snapshot, partial, self._meeting, self._facts.documents)
        self._saved = snapshot.manifest.state.step, folder
        self._meeting.on_main(self._prune)
        return folder

    def _prune(self) -> None:
        try:
            prune(self._parent, keep_last=self._keep_last, keep_best=self._keep_best)
        except CheckpointError as error:  # the new one is whole, and what is not removed only takes space
            logger.warning("older checkpoints stay: %s", error)

    def _has_room(self, snapshot: Snapshot) -> bool:
        has_room = has_room_for_copies(snapshot, self._meeting)
        if not has_room and not self._said_no_room:
            logger.warning("the host has no memory for a copy of the state: training waits for each checkpoint")
            self._said_no_room = True
        return has_room

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
