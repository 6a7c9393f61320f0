"""The certificate: how far each variant was from plain PyTorch, the limits, and the verdict."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scaling.parity.plain import Trajectory
from scaling.parity.ranks import Outcome
from scaling.parity.variants import LeftOut
from strategies.job import Job, OptimizerName, Precision


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The largest differences from plain PyTorch in fp32 that count as alike; None: shown, not judged."""

    loss: float
    """Relative, of any step."""
    norm: float | None
    """Of the gradient; relative, of any step."""
    parameter: float | None
    """Absolute, after the last step."""


FP32_LOSS = FP32_NORM = SGD_PARAMETER = 1e-6
"""A few roundings of fp32 (6e-8 each): strategies differ in the order of their sums."""
ADAM_PARAMETER = 2e-4
"""Adam divides a gradient by its own size: where it is near zero, the order of a sum decides the update's sign."""
LOSS_IN_16_BITS = 1e-2
"""bf16 rounds to 2**-8 = 0.4 %; the loss is a mean over many tokens."""


def limits_for(job: Job) -> Limits:
    """Return the limits that a job's precision and optimizer allow."""
    if job.precision is not Precision.FP32:
        return Limits(loss=LOSS_IN_16_BITS, norm=None, parameter=None)
    is_sgd = job.optimizer is OptimizerName.SGD
    return Limits(loss=FP32_LOSS, norm=FP32_NORM, parameter=SGD_PARAMETER if is_sgd else ADAM_PARAMETER)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One variant beside plain PyTorch."""

    name: str
    accumulation: int
    loss: float
    """Largest relative difference of any step; infinite where either side is not finite."""
    norm: float
    parameter: float
    """Largest absolute difference after the last step."""
    same_bits_as: str
    """The first variant that ends at the same bits; its own name where no earlier one does."""
    seconds: float
    alike: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """The answer to one question: do these strategies train the same model?"""

    model: str
    ranks: int
    job: Job
    steps: int
    first_loss: float
    """Of plain PyTorch."""
    last_loss: float
    limits: Limits
    rows: tuple[Row, ...]
    left_out: tuple[LeftOut, ...]
    """Cannot be trained here, with why."""
    failed: tuple[LeftOut, ...]
    """Started and did not end."""
    versions: dict[str, str]

    @property
    def alike(self) -> bool:
        """Whether every variant that was started ended within the limits."""
        return not self.failed and all(row.alike for row in self.rows)


def rows_of(
    outcomes: Mapping[str, Outcome], plain: Trajectory, *, limits: Limits, accumulations: Mapping[str, int]
) -> tuple[Row, ...]:
    """Return a row for every outcome, by name."""
    firsts: dict[str, str] = {}
    return tuple(
        judged(
            name,
            outcome,
            plain,
            limits=limits,
            accumulation=accumulations[name],
            same_bits_as=firsts.setdefault(outcome.fingerprint, name),
        )
        for name, outcome in outcomes.items()
    )


def judged(
    name: str, outcome: Outcome, plain: Trajectory, *, limits: Limits, accumulation: int, same_bits_as: str
) -> Row:
    """Return the row of one outcome."""
    loss = largest_relative_difference(outcome.losses, plain.losses)
    norm = largest_relative_difference(outcome.norms, plain.norms)
    parameter = _finite_or_inf(outcome.parameter_difference)
    pairs = ((loss, limits.loss), (norm, limits.norm), (parameter, limits.parameter))
    return Row(
        name=name,
        accumulation=accumulation,
        loss=loss,
        norm=norm,
        parameter=parameter,
        same_bits_as=same_bits_as,
        seconds=outcome.seconds,
        alike=all(limit is None or value <= limit for value, limit in pairs),
    )


def largest_relative_difference(values: Sequence[float], expected: Sequence[float]) -> float:
    """Return the largest |value - expected| / |expected|; infinite where one is not finite or only one is zero."""
    differences = (
        0.0 if value == right else (abs(value - right) / abs(right) if right else math.inf)
        for value, right in zip(values, expected, strict=True)
    )
    return max(map(_finite_or_inf, differences), default=0.0)


def _finite_or_inf(value: float) -> float:
    """Return the value; infinity in place of NaN, which is smaller than no limit and larger than none."""
    return math.inf if math.isnan(value) else value
