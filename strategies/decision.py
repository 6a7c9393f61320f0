"""`Decision`: the chosen plan, what it was chosen against, and why each simpler plan was rejected."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from strategies.cluster import Cluster
from strategies.estimate import Estimate
from strategies.job import Job
from strategies.plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A plan with its estimate."""

    plan: Plan
    estimate: Estimate


class Resource(StrEnum):
    """What a plan can have too little of."""

    GPU_MEMORY = "GPU memory"
    HOST_MEMORY = "host memory"
    """Of one node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejection:
    """A plan that does not fit, with the number that rejected it."""

    plan: Plan
    estimate: Estimate
    over_by_bytes: int
    resource: Resource = Resource.GPU_MEMORY


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The contract between planning and training: ``train`` runs exactly ``plan`` or refuses."""

    model: str
    """What the user named: preset, folder, file or hub id."""
    num_params: int
    cluster: Cluster
    job: Job
    plan: Plan
    estimate: Estimate
    rejected: tuple[Rejection, ...] = ()
    """Simpler plans, in order of preference, each with the bytes it is over."""
