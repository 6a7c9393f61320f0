"""Step times corrected by the user's own runs on the same device.

How much a prediction is off depends on the model more than on anything else. The correction is a sum of four parts, on
a logarithmic scale:

1. what the device's models say, the median of their medians;
2. by how much those with the plan's activation checkpointing differ from that;
3. by how much the plan's own model differs from 1 and 2 together, the median of its setups;
4. by how much its runs under the plan's strategy differ from all of the model's.

Each part counts for n / (n + 5), n being the models (1 and 2, from three on) or setups (3 and 4) behind it: many
decide, few hardly count. A plan like none on record gets what the broader parts say: a device that is slower than
predicted is so for every strategy, whichever of them was run. With fewer than five setups of a device nothing is
corrected. Repetitions of a setup count once, with the newest.

Unlike a predicted peak, a step time is moved: a wrong one costs speed and cannot make a plan fail. Runs count for the
rates that they were predicted from: after another `scaling calibrate` they are of no use.

The range in which nine in ten times lie comes from ranks of measured / predicted, as a peak's does: of the model's runs
under the strategy where there are 19 setups, else of all runs of the model; else none is told.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache

from strategies.adapt import as_trained
from strategies.cluster import Cluster
from strategies.conformal import RatioRange, conformal_range
from strategies.errors import ClusterError
from strategies.job import Job
from strategies.learning.learned import Learned, TimeErrors, learned
from strategies.learning.run_kind import model_of
from strategies.model_spec import ModelSpec
from strategies.plan import ActivationCheckpointing, Plan, StrategyName
from strategies.time.calibration import calibration_for, this_machine
from strategies.time.correction import StepCorrection
from strategies.time.step_time import StepTime, step_time, times_known

FEWEST_SETUPS = 5
"""On a device, for any correction: a choice."""
FEWEST_MODELS = 3
"""For a correction of models that are not on record: the median of two is either's."""
HALF_WAY = 5
"""Models or setups with which a step moves the correction half of the way: a choice, not fitted."""


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
    correction = step_correction(plan, cluster=cluster, model=model_of(as_trained(spec, job)))
    return time if correction is None else corrected(time, correction)


def step_correction(plan: Plan, *, cluster: Cluster, model: str) -> StepCorrection | None:
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
        model=model,
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
    errors: tuple[TimeErrors, ...],
    *,
    model: str,
    strategy: StrategyName,
    activation_checkpointing: ActivationCheckpointing,
) -> StepCorrection | None:
    """Return the correction by the rule above; ``errors``: of one device."""
    count = len(_ratios(errors))
    if count < FEWEST_SETUPS:
        return None
    alike = [each for each in errors if each.activation_checkpointing is activation_checkpointing]
    of_model = [each for each in errors if each.model == model]
    of_strategy = [each for each in of_model if each.strategy is strategy]
    moved = _by_models(errors, alike)
    if of_model:
        ratios = _ratios(of_model)
        moved += _part(ratios, beyond=moved)
        moved += _part(_ratios(of_strategy), beyond=_center(ratios))
    factor = math.exp(moved)
    source = f"your {count} records on {errors[0].device}, {len(_ratios(of_model)) or 'none'} of them of this model"
    return StepCorrection(factor=factor, measured=_range((of_strategy, of_model), factor), source=source)


def _by_models(errors: Sequence[TimeErrors], alike: Sequence[TimeErrors]) -> float:
    """Return what the models of a device say of one that need not be among them."""
    all_models, models_alike = _medians(errors), _medians(alike)
    if len(all_models) < FEWEST_MODELS:
        return 0.0
    moved = _part(all_models, beyond=0.0)
    return moved + (_part(models_alike, beyond=_center(all_models)) if len(models_alike) >= FEWEST_MODELS else 0.0)


def _part(ratios: Sequence[float], *, beyond: float) -> float:
    """Return by how much ratios differ from ``beyond``, as far as their number makes it believable; 0 for none."""
    return len(ratios) / (len(ratios) + HALF_WAY) * (_center(ratios) - beyond) if ratios else 0.0


def _center(ratios: Sequence[float]) -> float:
    return math.log(statistics.median(ratios))


def _medians(errors: Iterable[TimeErrors]) -> list[float]:
    """Return the median ratio of each model."""
    by_model: dict[str, list[float]] = {}
    for each in errors:
        by_model.setdefault(each.model, []).extend(each.ratios)
    return [statistics.median(ratios) for ratios in by_model.values()]


def _ratios(errors: Iterable[TimeErrors]) -> list[float]:
    return [ratio for each in errors for ratio in each.ratios]


def _range(groups: Iterable[Iterable[TimeErrors]], factor: float) -> RatioRange | None:
    """Return the ends of measured / corrected, from the first group that tells them."""
    for group in groups:
        if (found := conformal_range(_ratios(group))) is not None:
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
