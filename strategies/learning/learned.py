"""`Learned`: what `scaling calibrate --from-records` found in the user's runs, as plans read it."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path

from strategies.errors import CalibrationError, ScalingError
from strategies.learning.run_kind import RunKind
from strategies.plan import ActivationCheckpointing, StrategyName
from strategies.serialize import from_json, to_json
from strategies.user_data import data_folder, write_whole
from strategies.versions import package_version

FORMAT = 1
FILE = "learned.json"
AGAIN = "make it again with `scaling calibrate --from-records`"
LEAST_RATIO, MOST_RATIO = 1e-3, 1e3
"""Of measured / predicted: beyond these a record is of something else."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class PeakErrors:
    """How peaks of one kind of run came out: measured / predicted of the newest run of each setup, ascending."""

    kind: RunKind
    num_runs: int
    """With repetitions."""
    newest: str
    """ISO 8601, UTC."""
    largest_bytes: int
    """The highest predicted peak among them: errors of small runs say little about large ones."""
    allocated: tuple[float, ...]
    reserved: tuple[float, ...]
    """Of the caching allocator; none on a CPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeErrors:
    """How step times of one kind of run on one device came out: measured / predicted of the newest of each setup."""

    device: str
    """A GPU's name; ``cpu``."""
    machine: str
    """Of CPU ranks; empty on a GPU."""
    calibration: str
    """When the rates behind the predictions were measured; empty: a data sheet's. Of no use with others."""
    model: str
    """By its shape: see `strategies.learning.run_kind.model_of`."""
    strategy: StrategyName
    activation_checkpointing: ActivationCheckpointing
    num_runs: int
    newest: str
    ratios: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Learned:
    """The errors of the user's runs, by kind of run."""

    format: int
    version: str
    """Of this package: another one predicts otherwise."""
    made_at: str
    """ISO 8601, UTC."""
    peaks: tuple[PeakErrors, ...]
    times: tuple[TimeErrors, ...]

    def __hash__(self) -> int:
        """Of a few fields: intervals of thousands of plans are looked up by it."""
        return hash((self.made_at, len(self.peaks), len(self.times)))


NOTHING = Learned(format=FORMAT, version="", made_at="", peaks=(), times=())


def learned_path() -> Path:
    """Return the file in the user's data folder, beside the calibrations."""
    return data_folder() / FILE


def write_learned(learned: Learned, path: Path) -> None:
    """Write the file; a reader never sees half of one.

    Raises:
        CalibrationError: the operating system refuses.
    """
    write_whole(to_json(learned), path)
    _usable.cache_clear()


def learned() -> Learned:
    """Return what the user's runs taught; nothing where there is no (valid) file, of which one warning says why."""
    return _usable(os.environ.get("XDG_DATA_HOME"))


@lru_cache(maxsize=64)
def _usable(data_home: str | None) -> Learned:
    """Return what is in the user's data folder, read once a process; ``data_home`` is part of its path."""
    path = learned_path()
    if not path.exists():
        return NOTHING
    try:
        return _read(path)
    except (ScalingError, OSError, ValueError) as error:
        _warn_once(f"what your runs taught is not used: {error}")
        return NOTHING


def _read(path: Path) -> Learned:
    version = package_version("memory-scaling")
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text"
        raise CalibrationError(f"cannot read {path}: {why}; {AGAIN}") from error
    found = from_json(Learned, text, source=str(path), advice=AGAIN)
    if (found.format, found.version) != (FORMAT, version):
        raise CalibrationError(
            f"{path} has format={found.format}, version={found.version}, and this is format={FORMAT}, "
            f"version={version}; {AGAIN}"
        )
    ratios = [ratio for each in found.peaks for ratio in (*each.allocated, *each.reserved)]
    ratios += [ratio for each in found.times for ratio in each.ratios]
    if bad := [ratio for ratio in ratios if not LEAST_RATIO <= ratio <= MOST_RATIO]:
        raise CalibrationError(f"{path} has measured / predicted = {bad[0]:g}; {AGAIN}")
    return found


@cache
def _warn_once(message: str) -> None:
    logger.warning(message)
