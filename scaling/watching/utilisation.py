"""Model FLOPs utilisation of a run, by the same definition and peak as the planner's."""

from __future__ import annotations

from dataclasses import dataclass

from strategies.decision import Decision
from strategies.learning.step_correction import known_step_time
from strategies.model_spec import ModelSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Utilisation:
    """What turns tokens per second into a share of the peak."""

    flops_per_token: float
    """6 N + 12 L H Q T, see `strategies.time.flops.MfuDefinition.PALM`."""
    peak_flops_per_s: float
    """Of all devices together."""
    predicted_step_s: float

    def mfu(self, tokens_per_s: float) -> float:
        """Return the share of the peak; ``tokens_per_s`` is that of all ranks."""
        return self.flops_per_token * tokens_per_s / self.peak_flops_per_s


def utilisation_of(decision: Decision, spec: ModelSpec) -> Utilisation | None:
    """Return it for a plan, None where the device's peak is not known: a CPU's without a calibration."""
    time = known_step_time(spec, cluster=decision.cluster, job=decision.job, plan=decision.plan)
    if time is None:
        return None
    return Utilisation(
        flops_per_token=time.model_flops_per_token,
        peak_flops_per_s=time.peak_flops_per_s * decision.cluster.gpus,
        predicted_step_s=time.total_s,
    )
