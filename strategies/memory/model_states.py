"""Model states: parameters, gradients and optimizer states, per GPU, by sharding degree."""

from __future__ import annotations

from dataclasses import dataclass

from strategies.errors import PlanError
from strategies.job import Precision
from strategies.units import ceil_div

FP32_BYTES = 4
ADAM_STATE_BYTES = 8
"""fp32 momentum and variance of one parameter (Kingma and Ba 2015, arXiv:1412.6980, algorithm 1)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharding:
    """GPUs that each model state is split over; 1 = replicated."""

    parameters: int
    gradients: int
    optimizer_states: int

    def __post_init__(self) -> None:
        degrees = {
            "parameters": self.parameters,
            "gradients": self.gradients,
            "optimizer_states": self.optimizer_states,
        }
        if bad := [f"{name}={value}" for name, value in degrees.items() if value <= 0]:
            raise PlanError(f"sharding degree {', '.join(bad)} must be above zero; give the number of ranks, or 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelStates:
    """Bytes per GPU of each model state, as the ZeRO paper counts them."""

    parameters: int
    gradients: int
    master_weights: int
    optimizer_states: int

    @property
    def total_bytes(self) -> int:
        return self.parameters + self.gradients + self.master_weights + self.optimizer_states


def model_states(num_params: int, *, sharding: Sharding, precision: Precision) -> ModelStates:
    """Return the bytes per GPU of each model state under Adam.

    16-bit precisions: 2 bytes a parameter for the weight, 2 for its gradient, 4 for the fp32 master, 8 for Adam's
    moments. fp32: 4, 4, none, 8. What an engine holds beyond this (buckets, padding, a separate fp32 copy) is in
    ``strategies.ddp`` and ``strategies.zero``.
    Source: Rajbhandari et al. 2020, arXiv:1910.02054, section 3.1 and figure 1.
    """
    weight = precision.weight_bytes
    master = FP32_BYTES if precision.has_master_weights else 0
    return ModelStates(
        parameters=ceil_div(weight * num_params, sharding.parameters),
        gradients=ceil_div(weight * num_params, sharding.gradients),
        master_weights=ceil_div(master * num_params, sharding.optimizer_states),
        optimizer_states=ceil_div(ADAM_STATE_BYTES * num_params, sharding.optimizer_states),
    )
