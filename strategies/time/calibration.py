"""`Calibration`: what this machine reached when ``scaling calibrate`` measured it. Standard library but for reading."""

from __future__ import annotations

import logging
import os
import re
from dataclasses import dataclass
from enum import StrEnum
from functools import cache, lru_cache
from pathlib import Path

from strategies.cluster import Cluster
from strategies.errors import CalibrationError, ScalingError
from strategies.job import Precision
from strategies.plan import ActivationCheckpointing, StrategyName
from strategies.serialize import from_json, numbers, short, to_json
from strategies.user_data import data_folder, write_whole
from strategies.versions import package_version

FORMAT = 2
"""Raised whenever a field changes its meaning: older files are then measured again, not converted."""
PLAUSIBLE = (
    ("_per_s$", 1.0, 1e18),
    ("^seconds$", 1e-9, 1e5),
    ("(^|_)s(_per_|$)", 0.0, 1e5),
    ("", 1.0, 1e18),
)
"""Names of numbers, the first that fits, with the least and the most that any machine gives: rates; whole times; times
of a part, which may be a difference of almost nothing; counts. Else a broken file ends in endless times, or in none."""
AGAIN = "measure again with `scaling calibrate`"

logger = logging.getLogger(__name__)


class CollectiveKind(StrEnum):
    """A collective that strategies use."""

    ALL_REDUCE = "all-reduce"
    REDUCE_SCATTER = "reduce-scatter"
    ALL_GATHER = "all-gather"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProductRate:
    """FLOP/s of one matrix product, while all ranks of the machine compute."""

    precision: Precision
    flops: float
    """Of the whole product: how large it is."""
    flops_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryRate:
    """What elementwise operators move a second on tensors of one size."""

    precision: Precision
    num_bytes: float
    """Of one tensor (batch, seq, hidden)."""
    bytes_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveTime:
    """Seconds of one collective over all ranks."""

    kind: CollectiveKind
    num_bytes: int
    """Of the whole tensor, not of a rank's part."""
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCost:
    """What a micro batch of a decoder costs however few tokens it has, without any engine."""

    activation_checkpointing: ActivationCheckpointing
    s_per_block: float
    """Operators of one block, forward and backward: Python, autograd, launches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineCost:
    """What an engine adds to the bare model."""

    strategy: StrategyName
    reshard_after_forward: bool
    """True but for FSDP2 that keeps its weights."""
    sync_each_batch: bool
    """True but for FSDP2 that reduces gradients once a step."""
    activation_checkpointing: ActivationCheckpointing
    micro_batch_s: float
    """However small the model is: the engine's own code around forward and backward."""
    micro_batch_s_per_unit: float
    """Hooks, and messages of no size, for each unit (`strategies.time.calibrated.num_units`) and micro batch."""
    micro_batch_s_per_param: float
    """Collectives and copies, for each parameter and micro batch."""
    step_s: float
    """However small the model is: small collectives, and ranks that wait for each other."""
    step_s_per_tensor: float
    step_s_per_param: float
    """Collectives, copies, norm and update at the end of a step, for each parameter of the whole model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Rates of one machine, measured with all its ranks at work. Zero where there was nothing to measure."""

    format: int
    device: str
    """The name of the `Gpu` it was measured on; ``cpu`` for CPU ranks."""
    machine: str
    """Of `this_machine`, for CPU ranks; the device's name alone says which GPU it is."""
    torch: str
    ranks: int
    measured_at: str
    """ISO 8601, UTC."""
    seconds: float
    """How long measuring took."""
    products: tuple[ProductRate, ...]
    elementwise: tuple[MemoryRate, ...]
    """As the blocks of a decoder reach them; on a GPU a plain copy."""
    copy_bytes_per_s: float
    """Large copies on the device, read and written bytes together, per rank."""
    operator_s: float
    """Of the CPU for one operator on a tensor of no size, autograd included."""
    weight_s_per_param: float
    """Per parameter and micro batch: weights are read, gradients written and added up."""
    collectives: tuple[CollectiveTime, ...]
    model: tuple[ModelCost, ...]
    engines: tuple[EngineCost, ...]
    adam_elements_per_s: float
    """torch's fused AdamW with the device's states, per rank."""
    norm_elements_per_s: float
    """Global norm and clipping of gradients, per rank."""
    host_adam_elements_per_s: float
    """fp32 AdamW on the CPUs of the node, all ranks together."""
    pcie_bytes_per_s: float
    """Pinned host memory to and from the device, the slower direction; 0 on CPU ranks."""
    disk_write_bytes_per_s: float
    """Until fsync returns."""
    disk_read_bytes_per_s: float
    """Often from the operating system's cache: no more than an upper end."""

    def __post_init__(self) -> None:
        impossible = [f"{name}={short(value)}" for name, value in numbers(self) if not _is_plausible(name, value)]
        required = [
            name for name in ("products", "elementwise", "copy_bytes_per_s", "adam_elements_per_s", "ranks")
            if not getattr(self, name)
        ]  # fmt: skip
        if impossible or required:
            wrong = ", ".join([*impossible, *(f"no {name}" for name in required)])
            raise CalibrationError(f"calibration of {self.device}: {wrong}; {AGAIN}")
        if not all(rate > 0 for rate in (*self._product_rates(), *self._memory_rates())):
            raise CalibrationError(f"calibration of {self.device}: a rate of products or memory is zero; {AGAIN}")

    def __hash__(self) -> int:
        """Of a few fields: step times of thousands of plans are looked up by it."""
        return hash((self.device, self.ranks, self.measured_at))

    def _product_rates(self) -> list[float]:
        return [value for each in self.products for value in (each.flops, each.flops_per_s)]

    def _memory_rates(self) -> list[float]:
        return [value for each in self.elementwise for value in (each.num_bytes, each.bytes_per_s)]


def _is_plausible(name: str, value: float) -> bool:
    """Return whether a number with that dotted name can have been measured; zero says that nothing was."""
    last = name.rpartition(".")[2]
    least, most = next((least, most) for pattern, least, most in PLAUSIBLE if re.search(pattern, last))
    return value == 0 or least <= value <= most


def calibration_path(device: str) -> Path:
    """Return the file of ``device`` in the user's data folder, beside the records of predictions."""
    return data_folder() / f"calibration-{re.sub(r'[^a-z0-9]+', '-', device.casefold()).strip('-')}.json"


def prepared(folder: Path) -> Path:
    """Return the folder, made where it was missing: before a minute is spent on what could not be written.

    Raises:
        CalibrationError: it cannot be made or written to.
    """
    import tempfile

    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except OSError as error:
        raise CalibrationError(
            f"cannot write in {folder}: {error.strerror}; give a writable file with --out"
        ) from error


def write_calibration(calibration: Calibration, path: Path) -> None:
    """Write the file; a reader never sees half of one.

    Raises:
        CalibrationError: the operating system refuses.
    """
    write_whole(to_json(calibration), path)
    _usable.cache_clear()


def read_calibration(path: Path) -> Calibration:
    """Return the calibration in ``path``.

    Raises:
        ScalingError: no such file, or it does not hold a calibration of this version.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CalibrationError(f"cannot read {path}: {error}; {AGAIN}") from error
    calibration = from_json(Calibration, text, source=str(path), advice=AGAIN)
    if calibration.format != FORMAT:
        raise CalibrationError(f"{path} has format={calibration.format}, this version reads format={FORMAT}; {AGAIN}")
    return calibration


def calibration_for(cluster: Cluster) -> Calibration | None:
    """Return what was measured on this machine's device, if it is the cluster's; None where nothing (valid) was.

    A file that is broken or of another machine, torch or number of ranks is ignored with one warning.
    """
    calibration = calibration_of(cluster.gpu.name)
    if calibration is None or not cluster.gpu.is_cpu or calibration.ranks > 1 or cluster.gpus == 1:
        return calibration
    path = calibration_path(cluster.gpu.name)
    _warn_once(f"{path} was measured with one rank and says nothing about {cluster.gpus}; {AGAIN} --ranks")
    return None


def calibration_of(device: str) -> Calibration | None:
    """Return what was measured on this machine's ``device``, whatever cluster it is to stand for."""
    return _usable(os.environ.get("XDG_DATA_HOME"), device)


@lru_cache(maxsize=64)
def _usable(data_home: str | None, device: str) -> Calibration | None:
    """Return the calibration in the user's data folder, read once a process; ``data_home`` is part of its path."""
    path = calibration_path(device)
    if not path.exists():
        return None
    try:
        calibration = read_calibration(path)
    except ScalingError as error:
        _warn_once(f"the calibration is not used: {error}")
        return None
    if reason := mismatch(calibration, device=device):
        _warn_once(f"{path} is not used: {reason}; {AGAIN}")
        return None
    return calibration


@cache
def _warn_once(message: str) -> None:
    logger.warning(message)


def mismatch(calibration: Calibration, *, device: str) -> str | None:
    """Return why a calibration is not about ``device`` on this machine as it is now; None where it is."""
    machine, torch = this_machine(), torch_version()
    if calibration.device != device:
        return f"it was measured on device={calibration.device}, not on {device}"
    if calibration.device == "cpu" and calibration.machine != machine:
        return f"it was measured on machine={calibration.machine!r}, this is {machine!r}"
    if calibration.torch != torch:
        return f"it was measured with torch={calibration.torch}, installed is {torch}"
    return None


@cache
def this_machine() -> str:
    """Return the processor's name and its cores, as far as this process may use them."""
    import platform  # here and below: planning with a data sheet must not pay for it

    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        text = ""
    names = re.findall(r"^model name\s*:\s*(.+)$", text, flags=re.MULTILINE)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{names[0].strip() if names else platform.machine()}, {cores} cores"


def torch_version() -> str:
    """Return the installed torch's version, without importing it."""
    return package_version("torch")
