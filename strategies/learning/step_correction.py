"""Step times corrected by the user's own runs on the same device.

The correction is the median of measured / predicted, found in three steps from the broad to the special: all runs on
the device, those of the strategy, those of the strategy with the plan's activation checkpointing. Each moves the
correction from the one before by n / (n + 5) of what its n setups say, on a logarithmic scale: many decide, few hardly
count, and a strategy without any run gets what the device as a whole says, so that strategies stay comparable. With
fewer than five setups of a device nothing is corrected. Repetitions of a setup count once, with the newest.

Unlike a predicted peak, a step time is moved: a wrong one costs speed and cannot make a plan fail. Runs count for the
rates that they were predicted from: after another `scaling calibrate` they are of no use.

The range in which nine in ten times lie comes from ranks of measured / predicted, as a peak's does, of the narrowest of
the three groups that has 19 setups.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from strategies.cluster import Cluster
from strategies.conformal import RatioRange, conformal_range
from strategies.errors import ClusterError
from strategies.job import Job
from strategies.learning.learned import Learned, TimeErrors, learned
from strategies.model_spec import ModelSpec
from strategies.plan import ActivationCheckpointing, Plan, StrategyName
from strategies.time.calibration import calibration_for, this_machine
from strategies.time.correction import StepCorrection
from strategies.time.step_time import StepTime, step_time, times_known

FEWEST_SETUPS = 5
"""On a device, for any correction: a choice (docs/planning.md)."""
HALF_WAY = 5
"""Setups with which a group moves the correction half of the way: a choice, see benchmarks/learned_records.py."""


def known_step_time(spec: ModelSpec, *, cluster: Cluster, job: Job, plan: Plan) -> StepTime | None:
    """Return the seconds of a step, with what the user's own runs taught about them; None where no rates are known.

    A CPU's are not without a calibration.
    """
    if not times_known(cluster):
        return None
    try:
        time = step_time(spec, cluster=cluster, job=job, plan=plan)
    except ClusterError:
        return None
    correction = step_correction(plan, cluster=cluster)
    return time if correction is None else corrected(time, correction)


def step_correction(plan: Plan, *, cluster: Cluster) -> StepCorrection | None:
    """Return what the user's runs on the cluster's device say about step times; None where too few are known."""
    known = learned()
    if not known.times:
        return None
    calibration = calibration_for(cluster)
    return correction_from(
        errors_of(
            known,
            device=cluster.gpu.name,
            machine=this_machine() if cluster.gpu.is_cpu else "",
            calibration=calibration.measured_at if calibration else "",
        ),
        strategy=plan.strategy,
        activation_checkpointing=plan.activation_checkpointing,
    )


@lru_cache(maxsize=64)
def errors_of(known: Learned, *, device: str, machine: str, calibration: str) -> tuple[TimeErrors, ...]:
    """Return what was learned about a device with the rates that predictions are made from now."""
    wanted = (device, machine, calibration)
    return tuple(each for each in known.times if (each.device, each.machine, each.calibration) == wanted)


@lru_cache(maxsize=1024)
def correction_from(
    errors: tuple[TimeErrors, ...], *, strategy: StrategyName, activation_checkpointing: ActivationCheckpointing
) -> StepCorrection | None:
    """Return the correction by the rule above; ``errors``: of one device."""
    of_strategy = [each for each in errors if each.strategy is strategy]
    alike = [each for each in of_strategy if each.activation_checkpointing is activation_checkpointing]
    groups = [[ratio for each in group for ratio in each.ratios] for group in (errors, of_strategy, alike)]
    if len(groups[0]) < FEWEST_SETUPS:
        return None
    moved = 0.0
    for ratios in groups:
        if ratios:
            moved += len(ratios) / (len(ratios) + HALF_WAY) * (math.log(statistics.median(ratios)) - moved)
    factor = math.exp(moved)
    count = len(groups[0])
    source = f"your {count} records on {errors[0].device}" + (
        f", {len(groups[1])} of them of {strategy}" if groups[1] else f", none of them of {strategy}"
    )
    return StepCorrection(factor=factor, measured=_range(groups, factor), source=source)


def _range(groups: Sequence[Sequence[float]], factor: float) -> RatioRange | None:
    """Return the ends of measured / corrected, from the narrowest group that tells them."""
    for ratios in reversed(groups):
        if (found := conformal_range(ratios)) is not None:
            return RatioRange(low=found[0] / factor, high=found[1] / factor)
    return None


def corrected(time: StepTime, correction: StepCorrection) -> StepTime:
    """Return the step time with every cause multiplied alike, so that they still add up to it."""
    factor = correction.factor
    return replace(
        time,
        matrix_s=factor * time.matrix_s,
        attention_s=factor * time.attention_s,
        memory_bound_s=factor * time.memory_bound_s,
        recompute_s=factor * time.recompute_s,
        communication_s=factor * time.communication_s,
        optimizer_s=factor * time.optimizer_s,
        launch_s=factor * time.launch_s,
        correction=correction,
    )
