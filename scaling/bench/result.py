"""What a bench leaves behind: cells, each with its prediction and the runs that were made of it."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from strategies.emit.commands import LauncherName
from strategies.estimate import Interval, Level, MemoryProfile
from strategies.job import Precision
from strategies.plan import ActivationCheckpointing, OffloadDevice, StrategyName

VERSION = 1
"""Of the format of these files."""


class Outcome(StrEnum):
    """How a run ended. Each is a result."""

    DONE = "done"
    REFUSED = "refused"
    """Nothing was started: the plan is not possible, not run by our trainer, or does not fit by its prediction."""
    OUT_OF_MEMORY = "out of memory"
    FAILED = "failed"
    TIMED_OUT = "timed out"


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One place of the matrix: the settings that a bench varies."""

    strategy: StrategyName
    activation_checkpointing: ActivationCheckpointing
    micro_batch_size: int
    seq_len: int
    gradient_accumulation_steps: int
    offload_optimizer: OffloadDevice
    offload_param: OffloadDevice
    launcher: LauncherName
    plan_name: str = ""
    """Of the plan file that it comes from; none where it comes from flags."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """What was expected of a plan before it was run."""

    level: Level
    peak_allocated_bytes: int
    """Live tensors of the rank that holds most."""
    interval: Interval | None
    """Of the measured peak, 90 %."""
    step_s: float | None
    """None where the rates of the device are not known."""
    memory: MemoryProfile
    """By phase and cause."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One thing to run, with everything that decides what it does."""

    name: str
    """Of its file, without the ending."""
    key: str
    """Of what is trained and how, on any machine with any versions: cells of two results with one key are compared."""
    choice: Choice
    model: str
    """As it was named."""
    num_params: int
    precision: Precision
    gpus: int
    is_cpu: bool
    """Whether ranks run on the processor."""
    settings: tuple[str, ...]
    """Of training, as name=value."""
    warm_up_steps: int
    """Not timed; the memory meter of CPU ranks runs in them."""
    timed_steps: int
    prediction: Prediction | None
    """None where there can be no such plan."""
    plan: dict[str, Any] | None
    """All of plan.json, for people: nothing here reads it, so that results outlive its format."""

    @property
    def tokens_per_step(self) -> int:
        """Of all ranks."""
        choice = self.choice
        samples = choice.micro_batch_size * choice.gradient_accumulation_steps * self.gpus
        return samples * choice.seq_len


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One fresh group of processes, from its start to its end."""

    outcome: Outcome
    reason: str = ""
    """In one line, where it was not done."""
    started_at: str
    """UTC, ISO 8601."""
    wall_s: float = 0.0
    """With imports, data, and the export of the model."""
    load_before: float = 0.0
    """Of the machine, over the minute before (getloadavg)."""
    step_times_s: tuple[float, ...] = ()
    """Of every timed step, on the main rank."""
    cpu_s_per_step: float | None = None
    """Processor time of all ranks over the timed steps: what else the machine does changes it less than the time."""
    peak_allocated_bytes: int | None = None
    """Live tensors of the rank that holds most; over the metered steps on a CPU."""
    peak_reserved_bytes: int | None = None
    """Of the caching allocator; None on a CPU, which has none."""
    peak_resident_bytes: int | None = None
    """Highest resident set of a rank: libraries and data are in it."""
    measured: MemoryProfile | None = None
    """The highest moment of every phase, by cause."""

    @property
    def median_step_s(self) -> float:
        return statistics.median(self.step_times_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """What times depend on beside the cell."""

    versions: dict[str, str]
    device: str
    """Name of the GPUs, or of the processor."""
    num_cores: int
    omp_num_threads: str
    system: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CellResult:
    """The file of a cell. It is written with its prediction before the first run starts, and again after every run."""

    version: int
    cell: Cell
    environment: Environment
    predicted_at: str
    """UTC, ISO 8601."""
    runs: tuple[Run, ...] = ()

    @property
    def done(self) -> tuple[Run, ...]:
        """The runs that ended well."""
        return tuple(run for run in self.runs if run.outcome is Outcome.DONE)

    @property
    def outcome(self) -> Outcome | None:
        """That of the cell: done where any run is; None where nothing was run yet."""
        if self.done:
            return Outcome.DONE
        return self.runs[-1].outcome if self.runs else None

    @property
    def reason(self) -> str:
        """Why the last run that did not end well did not; empty where all did."""
        return next((run.reason for run in reversed(self.runs) if run.outcome is not Outcome.DONE), "")

    @property
    def step_times_s(self) -> tuple[float, ...]:
        """Of all runs."""
        return tuple(seconds for run in self.done for seconds in run.step_times_s)

    @property
    def median_step_s(self) -> float | None:
        """The median over the runs of each one's median, which no single slow step moves."""
        return statistics.median(run.median_step_s for run in self.done) if self.done else None

    @property
    def cpu_s_per_step(self) -> float | None:
        """Likewise of the processor time of all ranks."""
        known = [run.cpu_s_per_step for run in self.done if run.cpu_s_per_step is not None]
        return statistics.median(known) if known else None

    @property
    def tokens_per_s(self) -> float | None:
        """Of all ranks."""
        return self.cell.tokens_per_step / self.median_step_s if self.median_step_s else None

    @property
    def lowest_memory(self) -> Run | None:
        """The run with the lowest peak: tensors that gloo's thread lets go late lift it by chance, and never lower it
        (`Measurement.num_late_frees`).
        """
        known = [run for run in self.done if run.peak_allocated_bytes]
        return min(known, key=lambda run: run.peak_allocated_bytes or 0) if known else None

    @property
    def peak_bytes(self) -> int | None:
        """Measured, of the rank that holds most."""
        run = self.lowest_memory
        return run.peak_allocated_bytes if run else None

    @property
    def predicted_peak_bytes(self) -> int | None:
        return self.cell.prediction.peak_allocated_bytes if self.cell.prediction else None

    @property
    def predicted_step_s(self) -> float | None:
        """None where the rates of the device are not known."""
        return self.cell.prediction.step_s if self.cell.prediction else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """All cells of one result, in the order in which they were asked for."""

    version: int
    cells: tuple[CellResult, ...]
