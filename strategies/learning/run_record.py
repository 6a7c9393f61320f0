"""`RunRecord`: one finished run, predicted beside measured. A line of JSON in the user's records."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime

from strategies.adapt import as_trained
from strategies.cluster import CPU_NAME, Cluster
from strategies.decision import Decision
from strategies.estimate import Level
from strategies.job import LossImplementation, OptimizerName, Precision
from strategies.learning.run_kind import RunKind, kind_of, model_name
from strategies.learning.step_correction import known_step_time
from strategies.model_spec import ModelSpec
from strategies.plan import ActivationCheckpointing, OffloadDevice, StrategyName
from strategies.records import MAX_BYTES
from strategies.serialize import numbers
from strategies.time.calibration import calibration_for, this_machine
from strategies.versions import package_version

FORMAT = 1
"""Raised whenever a field changes its meaning: older lines do not count then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """What is kept of a run: no names, no paths, no data. Predictions are the formulas', before what runs taught."""

    format: int
    version: str
    """Of this package: another version predicts otherwise."""
    at: str
    """ISO 8601, UTC."""
    source: str
    """The command, with how it measured."""
    device: str
    """As ``configs/gpus.csv`` or the driver names it; ``cpu`` for CPU ranks."""
    machine: str
    """The processor's name and its cores, for CPU ranks; empty on a GPU, whose name says it."""
    torch: str
    deepspeed: str
    family: str
    """Hugging Face ``model_type``."""
    num_params: int
    num_trained_params: int
    num_layers: int
    hidden_size: int
    strategy: StrategyName
    activation_checkpointing: ActivationCheckpointing
    checkpoint_every: int
    offload_optimizer: OffloadDevice
    offload_param: OffloadDevice
    loss: LossImplementation
    precision: Precision
    optimizer: OptimizerName
    seq_len: int
    micro_batch_size: int
    gradient_accumulation_steps: int
    ranks: int
    level: Level
    """How the bytes were predicted."""
    predicted_allocated_bytes: int
    predicted_reserved_bytes: int
    interval_low_bytes: int | None
    """The interval that was told, ends as they were then: whether it kept what it promised can be looked up."""
    interval_high_bytes: int | None
    measured_allocated_bytes: int | None = None
    """Of the rank with the highest peak; None where it was not measured, or not in the phase that is said to peak."""
    measured_reserved_bytes: int | None = None
    """Of the caching allocator; None on a CPU."""
    calibration: str = ""
    """When ``scaling calibrate`` measured the rates that the step time is made from; empty: a data sheet's."""
    predicted_step_s: float | None = None
    """By the formulas; None where no rates are known."""
    corrected_step_s: float | None = None
    """What was told: with the correction from earlier runs, if there was one."""
    measured_step_s: float | None = None
    """Median over the steps that were timed and not metered."""
    num_timed_steps: int = 0
    resumed: bool = False
    """Whether it began from a checkpoint, whose reading is in the measured peak and not in the predicted one."""

    @property
    def kind(self) -> RunKind:
        """The kind of run it is."""
        return kind_of(self, on_cpu=self.device == CPU_NAME, model=self.model)

    @property
    def model(self) -> str:
        """Which model it was, by its shape."""
        return model_name(self.family, num_params=self.num_params, num_trained_params=self.num_trained_params)

    @property
    def setup(self) -> tuple[object, ...]:
        """What was run: equal for repetitions, which say how much a measurement varies and nothing about others."""
        where = (self.device, self.machine, self.ranks)
        model = (self.num_layers, self.hidden_size)
        job = (self.loss, self.precision, self.optimizer, self.seq_len, self.micro_batch_size)
        plan = (self.kind, self.checkpoint_every, self.offload_optimizer, self.offload_param)
        return (*where, *model, *job, *plan, self.gradient_accumulation_steps)


def record_of(decision: Decision, spec: ModelSpec, *, source: str, resumed: bool = False) -> RunRecord:
    """Return the record of a run of the plan before anything is measured."""
    cluster, job, plan, estimate = decision.cluster, decision.job, decision.plan, decision.estimate
    trained = as_trained(spec, job)
    interval = estimate.interval
    record = RunRecord(
        format=FORMAT,
        version=package_version("memory-scaling"),
        at=datetime.now(UTC).isoformat(timespec="seconds"),
        source=source,
        device=cluster.gpu.name,
        machine=this_machine() if cluster.gpu.is_cpu else "",
        torch=package_version("torch"),
        deepspeed=package_version("deepspeed"),
        family=spec.family,
        num_params=trained.num_params,
        num_trained_params=trained.num_trained_params,
        num_layers=spec.num_layers,
        hidden_size=spec.hidden_size,
        strategy=plan.strategy,
        activation_checkpointing=plan.activation_checkpointing,
        checkpoint_every=plan.checkpoint_every,
        offload_optimizer=plan.offload_optimizer,
        offload_param=plan.offload_param,
        loss=job.loss,
        precision=job.precision,
        optimizer=job.optimizer,
        seq_len=job.seq_len,
        micro_batch_size=plan.micro_batch_size,
        gradient_accumulation_steps=plan.gradient_accumulation_steps,
        ranks=cluster.gpus,
        level=estimate.level,
        predicted_allocated_bytes=estimate.peak_allocated_bytes,
        predicted_reserved_bytes=estimate.peak_reserved_bytes,
        interval_low_bytes=interval.low_bytes if interval else None,
        interval_high_bytes=interval.high_bytes if interval else None,
        resumed=resumed,
    )
    return _with_step_time(record, decision, spec, cluster=cluster)


def _with_step_time(record: RunRecord, decision: Decision, spec: ModelSpec, *, cluster: Cluster) -> RunRecord:
    time = known_step_time(spec, cluster=cluster, job=decision.job, plan=decision.plan)
    if time is None:
        return record
    calibration = calibration_for(cluster)
    return replace(
        record,
        calibration=calibration.measured_at if calibration else "",
        predicted_step_s=time.total_s / (time.correction.factor if time.correction else 1.0),
        corrected_step_s=time.total_s,
    )


def is_plausible(record: RunRecord) -> bool:
    """Whether a record that was read can be true: of this format, and with numbers that some computer reaches."""
    is_possible = all(0 <= value <= MAX_BYTES for _, value in numbers(record))
    return is_possible and record.format == FORMAT and record.predicted_allocated_bytes > 0
