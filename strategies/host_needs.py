"""What a run holds in the RAM of one node at each moment, by cause: the plan's host ledger in words."""

from __future__ import annotations

from dataclasses import dataclass

from strategies.decision import Decision
from strategies.errors import PlanError
from strategies.memory.host import PROCESS_BYTES
from strategies.planner.safety import needed_bytes
from strategies.units import format_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class HostMoment:
    """One moment of a run on the node that holds most."""

    when: str
    """In words that follow a number: ``while every rank loads the model``."""
    processes: int
    """Python and its libraries, in bytes, as all that follow."""
    models: int = 0
    """Whole models, one a rank."""
    pinned: int = 0
    """Buffers of offloaded states, locked in RAM."""
    pageable: int = 0
    """Offloaded states, and what is made for the moment."""
    devices: int = 0
    """What CPU ranks hold as a GPU would."""

    @property
    def total_bytes(self) -> int:
        return self.processes + self.growth_bytes

    @property
    def growth_bytes(self) -> int:
        """What comes on top of processes that have begun."""
        return self.models + self.pinned + self.pageable + self.devices

    def by_cause(self) -> str:
        """Return the causes that hold any, largest first: ``8 models 120.00 GiB, …``."""
        causes = {
            "Python and libraries": self.processes,
            "a whole model on every rank": self.models,
            "pinned buffers of offloaded states": self.pinned,
            "offloaded states and copies": self.pageable,
            "weights, states and activations of CPU ranks": self.devices,
        }
        largest = sorted(causes.items(), key=lambda cause: -cause[1])
        return ", ".join(f"{name} {format_bytes(size)}" for name, size in largest if size)


def device_bytes(decision: Decision) -> int | None:
    """Return the memory of one rank's device, at the plan's safety; None where nothing was predicted."""
    estimate = decision.estimate
    if not estimate.memory.phases:
        return None
    try:
        return needed_bytes(estimate, cluster=decision.cluster, safety=decision.safety)
    except PlanError:  # no runs on record for such an interval, which may have been another user's
        return estimate.device_bytes


def host_moments(decision: Decision) -> tuple[HostMoment, ...]:
    """Return loading, initialising, training and saving; empty where the plan's estimate says nothing of the host."""
    host, cluster = decision.estimate.host, decision.cluster
    if host is None:
        return ()
    processes = cluster.ranks_per_node * PROCESS_BYTES
    devices = cluster.ranks_per_node * (device_bytes(decision) or 0) if cluster.gpu.is_cpu else 0
    later = {
        "while buffers are pinned": host.initialise,
        "in training": host.steady,
        "while a checkpoint or the model is written": host.save,
    }
    loading = HostMoment(
        when="while every rank loads the model", processes=processes, models=host.load.total_bytes - processes
    )
    others = [
        HostMoment(
            when=when,
            processes=processes,
            pinned=moment.pinned,
            pageable=moment.pageable - processes,
            devices=devices,
        )
        for when, moment in later.items()
    ]
    return (loading, *others)


def highest_moment(decision: Decision) -> HostMoment | None:
    """Return the moment at which one node holds most, None where nothing predicts it."""
    return max(host_moments(decision), key=lambda moment: moment.total_bytes, default=None)
