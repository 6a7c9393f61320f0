"""Free space where a run writes: its folder, temporary files, and the caches of models, data and operators."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from scaling.data.cache import default_cache_dir
from scaling.doctor.asked import Asked, Needs
from scaling.doctor.findings import Area, Examined, Finding, error, error_if, examined, warning
from scaling.doctor.space import NO_SPACE, Space, existing, read_space, why_not_writable
from strategies.hub_config import hub_cache
from strategies.units import MIB, format_bytes

TEMPORARY = "temporary files"
LITTLE_BYTES = 128 * MIB
"""Logs, compiled operators and token stores of small data fit; below it anything fails."""
CHECKPOINTS_AT_ONCE = 3
"""Two are kept (--keep-last), and a new one is whole before the oldest goes (scaling/checkpoint/retention.py)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Folder:
    """A place that is written to."""

    what: str
    path: Path
    space: Space | None
    """None where it cannot be told."""
    problem: str
    """Why nothing can be written; empty where it can."""
    elsewhere: str
    """How to have another folder taken."""

    @property
    def fix(self) -> str:
        """What to do where there is too little room."""
        return f"free space, or {self.elsewhere}"


Look = Callable[[Path], tuple[Space | None, str]]
"""Returns the room where a folder lies, and why it cannot be written."""


def look(path: Path) -> tuple[Space | None, str]:
    """Return the room where ``path`` is, or would be made, and why nothing can be written there."""
    folder = existing(path)
    return read_space(folder), why_not_writable(folder) if folder.is_dir() else "is a file, not a folder"


def examine(asked: Asked) -> Examined:
    folders = read(asked, look)
    free = {f"{each.what.replace(' ', '_')}_free_bytes": each.space.free_bytes for each in folders if each.space}
    return examined(Area.DISK, findings(folders, asked.plan), **free)


def read(asked: Asked, look: Look) -> tuple[Folder, ...]:
    """Return the places that a run writes to: the run's folder first."""
    found = []
    for what, path, elsewhere in _places(asked.out, asked.environ):
        space, problem = look(path)
        found.append(Folder(what=what, path=path, space=space, problem=problem, elsewhere=elsewhere))
    return tuple(found)


def _places(out: Path, environ: Mapping[str, str]) -> Iterator[tuple[str, Path, str]]:
    yield "run folder", out.absolute(), "train with --out on another disk"
    yield TEMPORARY, _temporary(environ), "set TMPDIR to a folder on another disk"
    yield "models of the hub", hub_cache(environ), "set HF_HOME to a folder on another disk"
    yield "token stores", default_cache_dir(), "train with --cache-dir on another disk"


def _temporary(environ: Mapping[str, str]) -> Path:
    named = (environ.get(name) for name in ("TMPDIR", "TEMP", "TMP"))
    return Path(next((each for each in named if each), "/tmp"))


def findings(folders: tuple[Folder, ...], plan: Needs | None) -> Iterator[Finding]:
    """Yield where too little is free, or nothing can be written; an error where every run writes."""
    for index, folder in enumerate(folders):
        if folder.what == TEMPORARY and not folder.path.exists():
            yield warning(
                f"the folder for temporary files, {folder.path}, does not exist: programs take others, each its own",
                f"mkdir -p {folder.path}, or unset TMPDIR",
            )
        is_run = index == 0
        free = folder.space.free_bytes if folder.space else None
        told = f" ({format_bytes(free)} free)" if free is not None else ""
        where = f"{folder.what}, {folder.path}"
        if folder.space and not folder.space.has_free_files:
            yield error_if(is_run, f"{where}: no file can be made, all of the disk's are in use (df -i)", folder.fix)
        elif folder.problem:
            fix = folder.fix if folder.problem in NO_SPACE else f"chown or chmod it, or {folder.elsewhere}"
            yield error_if(is_run, f"{where}: cannot be written{told}: {folder.problem}", fix)
        elif free is not None and free < LITTLE_BYTES:
            yield error_if(is_run, f"{where}: the disk is full, {format_bytes(free)} are free", folder.fix)
        elif is_run and plan is not None and free is not None:
            yield from _checkpoints(folder, free, plan)


def _checkpoints(folder: Folder, free: int, plan: Needs) -> Iterator[Finding]:
    model, training = plan.checkpoint_bytes
    where = f"{folder.what}, {folder.path}: {format_bytes(free)} are free"
    if model > free:
        yield error(f"{where}, and the trained model takes {format_bytes(model)}", folder.fix)
    elif model + CHECKPOINTS_AT_ONCE * training > free:
        yield warning(
            f"{where}; the trained model takes {format_bytes(model)}, and a checkpoint to go on from (--save-every) "
            f"{format_bytes(training)}, of which {CHECKPOINTS_AT_ONCE} are there for a moment",
            f"{folder.fix}; --keep-last 1 keeps one less",
        )
