"""The files of one run, each with its kind, and the files that they name."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from scaling.explain.key_table import shipped_table
from scaling.explain.reading import ReadFile, read_file
from scaling.explain.tree import Tree, get
from strategies.errors import ScalingError


class FileKind(StrEnum):
    """Which program reads a file."""

    DEEPSPEED = "deepspeed"
    ACCELERATE = "accelerate"
    TRAINING_ARGS = "training-args"


class Launcher(StrEnum):
    """What starts the run, and so fills in and adds."""

    DEEPSPEED = "deepspeed"
    """``deepspeed.initialize`` with the file as it is; nobody fills in "auto"."""
    ACCELERATE = "accelerate"
    TRAINER = "trainer"
    """``transformers.Trainer``, which goes through accelerate as well."""


class Target(StrEnum):
    """Into what files are translated."""

    PLAN = "plan"
    ACCELERATE = "accelerate"
    DEEPSPEED = "deepspeed"
    TRAINING_ARGS = "training-args"


PACKAGES = {
    FileKind.DEEPSPEED: "deepspeed",
    FileKind.ACCELERATE: "accelerate",
    FileKind.TRAINING_ARGS: "transformers",
}
TELLING = {
    FileKind.DEEPSPEED: (
        "zero_optimization",
        "train_batch_size",
        "train_micro_batch_size_per_gpu",
        "zero_allow_untested_optimizer",
    ),
    FileKind.ACCELERATE: (
        "distributed_type",
        "compute_environment",
        "deepspeed_config",
        "num_machines",
        "num_processes",
    ),
    FileKind.TRAINING_ARGS: (
        "output_dir",
        "per_device_train_batch_size",
        "num_train_epochs",
        "learning_rate",
        "deepspeed",
    ),
}
"""Keys that only one kind has: each counts three."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One file of a run."""

    file: ReadFile
    kind: FileKind | None
    """None where nothing tells."""
    named_by: str | None = None
    """The file and key that named it; None where it was given."""

    @property
    def name(self) -> str:
        return self.file.name

    @property
    def tree(self) -> Tree:
        """The content; empty where it could not be read."""
        return self.file.tree or {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Missing:
    """A file that another one names and that is not there."""

    named_by: str
    key: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """All files of one run: at most one of each kind."""

    all: tuple[Source, ...]
    missing: tuple[Missing, ...] = ()

    def of(self, kind: FileKind) -> Source | None:
        return next((each for each in self.all if each.kind is kind), None)


def load_sources(names: list[str], *, kind: FileKind | None = None) -> Sources:
    """Return the files at ``names``, and the DeepSpeed file that they name where it is found.

    Raises:
        ScalingError: a file cannot be read, or two are of one kind.
    """
    found = [Source(file=file, kind=kind or kind_of(file)) for file in map(read_file, dict.fromkeys(names))]
    for each in FileKind:
        same = [source.name for source in found if source.kind is each]
        if len(same) > 1:
            raise ScalingError(f"{' and '.join(same)} are both {each} files; give those of one run at a time")
    return _with_named(found)


def kind_of(file: ReadFile) -> FileKind | None:
    """Return which kind of file this is by its keys, None where it has none that is known."""
    scores = {kind: _score(file.tree or {}, kind) for kind in FileKind}
    best = max(FileKind, key=lambda kind: scores[kind])
    return best if scores[best] else None


def _score(tree: Tree, kind: FileKind) -> int:
    known = shipped_table(PACKAGES[kind]).by_block[""]
    score = sum((key in known) + 3 * (key in TELLING[kind]) for key in tree)
    if kind is FileKind.DEEPSPEED:  # TrainingArguments has numbers and switches where DeepSpeed has blocks
        score += sum(2 * isinstance(tree.get(key), dict) for key in ("fp16", "bf16", "optimizer", "scheduler"))
    return score


NAMING = {FileKind.ACCELERATE: "deepspeed_config.deepspeed_config_file", FileKind.TRAINING_ARGS: "deepspeed"}
"""Where a file may name a DeepSpeed file."""


def _with_named(found: list[Source]) -> Sources:
    missing = []
    for source in list(found):
        key = NAMING.get(source.kind) if source.kind else None
        name = get(source.tree, key, None) if key else None
        if not key or not _names_file(name) or any(each.kind is FileKind.DEEPSPEED for each in found):
            continue
        path = _path_of(str(name), source)
        if path is None:
            missing.append(Missing(named_by=source.name, key=key, name=str(name)))
        else:
            found.append(Source(file=read_file(str(path)), kind=FileKind.DEEPSPEED, named_by=f"{source.name}: {key}"))
    return Sources(all=tuple(found), missing=tuple(missing))


def _names_file(name: Any) -> bool:
    return isinstance(name, str) and name.strip() not in ("", "none") and not name.lstrip().startswith("{")


def _path_of(name: str, source: Source) -> Path | None:
    """Return where the named file is: from here, as launchers look for it, else beside the file that names it."""
    try:
        places = (Path(name).expanduser(), source.file.path.parent / name)
        return next((place for place in places if place.is_file()), None)
    except (OSError, ValueError, RuntimeError):
        return None
