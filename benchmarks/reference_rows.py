"""Earlier measurements of the same setups, and what we make of them."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.small_llama import Setup
from scaling.meter import Measurement, Span
from scaling.ownership import Cause
from strategies.estimate import Phase

FOLDER = Path(__file__).parent / "reference"
DECIMALS = 4
ROUNDING = 0.6e-4
PEAKS = {
    "init_peak": Phase.INITIALISE,
    "forward_peak": Phase.FORWARD,
    "backward_peak": Phase.BACKWARD,
    "step_peak": Phase.OPTIMIZER_STEP,
}
ENDS = {"after_init": Phase.INITIALISE, "after_backward": Phase.BACKWARD, "after_step": Phase.OPTIMIZER_STEP}
MOMENTS = {"cats_init": Phase.INITIALISE, "cats_bwd": Phase.BACKWARD, "cats_end": Phase.OPTIMIZER_STEP}
CAUSE_OF_OWNER = {
    "bit16_groups_flat": Cause.PARAMETERS,
    "fp16_partitioned_groups_flat": Cause.PARAMETERS,
    "param.data": Cause.PARAMETERS,
    "single_partition_of_fp32_groups": Cause.MASTER_WEIGHTS,
    "fp32_partitioned_groups_flat": Cause.MASTER_WEIGHTS,
    "fp32_groups": Cause.MASTER_WEIGHTS,
    "averaged_gradients": Cause.GRADIENTS,
    "opt.grad_partitions_flat_buffer": Cause.GRADIENTS,
    "param.grad": Cause.GRADIENTS,
    "state.step": Cause.OPTIMIZER_STATES,
    "state.exp_avg": Cause.OPTIMIZER_STATES,
    "state.exp_avg_sq": Cause.OPTIMIZER_STATES,
}
"""Owners that hold more than a few numbers; at stage 3 ``param.data`` is a gathered weight and ``other`` the bucket."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One value beside its reference, in bytes per parameter."""

    setup: str
    world_size: int
    step: int
    column: str
    measured: float
    reference: float

    @property
    def equal(self) -> bool:
        return abs(self.measured - self.reference) < ROUNDING


def compare(setup: Setup, measurement: Measurement, *, num_parameters: int) -> Iterator[Difference]:
    """Yield every value of the references that this measurement also has."""
    for row in _rows():
        if _is_row_of(row, setup, measurement):
            yield from _differences(row, setup, measurement, num_parameters)
    for owners in _owner_rows():
        if _is_owner_row_of(owners["config"], setup, measurement):
            yield from _cause_differences(owners, setup, measurement, num_parameters)


def _cause_differences(
    owners: dict[str, Any], setup: Setup, measurement: Measurement, num_parameters: int
) -> Iterator[Difference]:
    for moment, phase in MOMENTS.items():
        span = [span for span in measurement.spans if span.phase is phase][-1]
        expected = dict.fromkeys(Cause, 0)
        for owner, held in owners[moment].items():
            expected[_cause(owner, setup)] += held
        for cause in {*CAUSE_OF_OWNER.values(), Cause.GATHERED_PARAMETERS, Cause.COMMUNICATION_BUCKETS}:
            yield Difference(
                setup=str(setup),
                world_size=measurement.world_size,
                step=span.step,
                column=f"after {phase.value}: {cause.value}",
                measured=round(getattr(span.device_end, cause.value) / num_parameters, DECIMALS),
                reference=round(expected[cause] / num_parameters, DECIMALS),
            )


def _cause(owner: str, setup: Setup) -> Cause:
    name, _, dtype = owner.rpartition(":")
    if setup.zero_stage == 3 and name == "param.data":
        return Cause.GATHERED_PARAMETERS
    if setup.zero_stage == 3 and (name, dtype) == ("other", "bfloat16"):
        return Cause.COMMUNICATION_BUCKETS
    return CAUSE_OF_OWNER.get(name, Cause.OTHER)


def _is_owner_row_of(config: dict[str, Any], setup: Setup, measurement: Measurement) -> bool:
    return (
        setup.framework == "deepspeed"
        and setup.fused is None
        and not setup.offload_optimizer
        and (setup.zero_stage, setup.gradient_accumulation_steps, setup.precision)
        == (config["stage"], config["gas"], config["dtype"])
        and (measurement.world_size, setup.bucket_size) == (config["N"], int(config["bucket"]))
    )


def _differences(
    row: dict[str, str], setup: Setup, measurement: Measurement, num_parameters: int
) -> Iterator[Difference]:
    step = int(row["step"]) - 1
    columns = ENDS if setup.offload_optimizer else {**PEAKS, **ENDS}  # device and host peak at different moments
    for column, phase in columns.items():
        if phase is Phase.INITIALISE and step:
            continue
        spans = [span for span in measurement.spans if span.phase is phase and span.step == step]
        num_bytes = max(_total(span, at_end=column in ENDS) for span in spans)
        yield Difference(
            setup=str(setup),
            world_size=measurement.world_size,
            step=step,
            column=column,
            measured=round(num_bytes / num_parameters, DECIMALS),
            reference=float(row[column]),
        )


def _total(span: Span, *, at_end: bool) -> int:
    device, host = (span.device_end, span.host_end) if at_end else (span.device, span.host)
    return device.total_bytes + host.total_bytes


def _is_row_of(row: dict[str, str], setup: Setup, measurement: Measurement) -> bool:
    if setup.fused is not None or setup.offload_param:
        return False
    engine = {"deepspeed": "ds", "ddp": "ddp"}.get(setup.framework)
    numbers = (
        int(row[name]) for name in ("zero_stage", "world_size", "gradient_accumulation_steps", "reduce_bucket_size")
    )
    ours = (setup.zero_stage, measurement.world_size, setup.gradient_accumulation_steps, setup.bucket_size)
    names = (row["engine"], row["precision"], row["variant"] == "offload_opt")
    return tuple(numbers) == ours and names == (engine, setup.precision, setup.offload_optimizer)


@cache
def _rows() -> tuple[dict[str, str], ...]:
    with (FOLDER / "ds_cpu_measured.csv").open(newline="") as lines:
        return tuple(csv.DictReader(lines))


@cache
def _owner_rows() -> tuple[dict[str, Any], ...]:
    return tuple(json.loads(line) for line in (FOLDER / "ds_cpu_causes.jsonl").read_text().splitlines())
