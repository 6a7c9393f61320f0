"""The interval of a prediction, from the errors of earlier ones."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache

from strategies.cluster import Cluster
from strategies.errors import PlanError
from strategies.estimate import Interval
from strategies.plan import Framework
from strategies.records import Device, own_records, shipped_records

COVERAGE = 0.9
FEWEST_RECORDS = 19
"""With fewer, the rank below would lie beyond the largest error seen: (n + 1) * 0.95 <= n needs n >= 19."""


def peak_interval(
    *, allocated_bytes: int, reserved_bytes: int, cluster: Cluster, framework: Framework = Framework.PYTORCH
) -> Interval | None:
    """Return where a measured peak lies nine times in ten; None where too few errors are on record.

    From the allocated peak's lower end to the reserved peak's upper end, since tools report either. The ends are ranks
    of measured / predicted among the records (split conformal prediction: Lei et al. 2018, arXiv:1604.04173), which
    hold for runs like the recorded ones. There are none of TensorFlow: the errors of other people's code stand for
    those on every device.
    """
    is_ours = cluster.gpu.is_cpu and framework is Framework.PYTORCH
    ratios = ratio_range(Device.CPU if is_ours else Device.GPU)
    if ratios is None:
        return None
    return Interval(low_bytes=round(allocated_bytes * ratios[0]), high_bytes=round(reserved_bytes * ratios[1]))


@cache
def ratio_range(device: Device) -> tuple[float, float] | None:
    """Return the range of measured / predicted that covers nine in ten records, each of its own kind of peak."""
    return conformal_range(_ratios(device))


@cache
def _ratios(device: Device) -> tuple[float, ...]:
    records = [*shipped_records(), *own_records()]
    return tuple(record.measured_over_predicted for record in records if record.device is device)


def upper_ratio(cluster: Cluster, *, coverage: float) -> float:
    """Return the upper end of measured / predicted in an interval of ``coverage``; 1 where nothing is on record for it.

    Raises:
        PlanError: there are records, but too few for so wide an interval.
    """
    ratios = _ratios(Device.CPU if cluster.gpu.is_cpu else Device.GPU)
    found = conformal_range(ratios, coverage=coverage)
    if found is None and len(ratios) >= FEWEST_RECORDS:
        raise PlanError(
            f"safety={coverage} needs more than the {len(ratios)} predictions on record for such a device; "
            f"give {COVERAGE} or less"
        )
    return 1.0 if found is None else found[1]


def conformal_range(ratios: Sequence[float], *, coverage: float = COVERAGE) -> tuple[float, float] | None:
    """Return the ends between which a further ratio lies with a probability of ``coverage``; None for too few."""
    ordered = sorted(ratios)
    rank = math.ceil((len(ordered) + 1) * (1 - (1 - coverage) / 2))
    if len(ratios) < FEWEST_RECORDS or rank > len(ordered):
        return None
    return ordered[len(ordered) - rank], ordered[rank - 1]
