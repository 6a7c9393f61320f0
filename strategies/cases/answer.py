"""The answer to one case, as a line of JSON."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from strategies.cases.case import Case, read_case
from strategies.cluster import Cluster
from strategies.decision import Candidate
from strategies.errors import NoPlanFitsError, ScalingError
from strategies.estimate import Estimate
from strategies.job import Job
from strategies.learning.step_correction import known_step_time
from strategies.memory.predict import predict
from strategies.model_spec import ModelSpec
from strategies.planner.safety import shortage
from strategies.select import decide
from strategies.serialize import plain
from strategies.units import gib

logger = logging.getLogger(__name__)
LONGEST_MESSAGE = 2000
"""Of an error, in characters: a line may hold anything, and some of it is repeated."""
DECIMALS = 4
"""Of a number of GiB: 0.1 MiB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One line of output. Field names are part of the format; sizes in GiB (2**30)."""

    id: Any
    level: str
    fits: bool
    plan: dict[str, Any]
    peak_allocated_gib: float
    peak_reserved_gib: float
    context_gib: float
    peak_phase: str
    interval_gib: tuple[float, float] | None
    breakdown_gib: dict[str, float]
    phases_gib: dict[str, float]
    host_gib_per_node: float | None
    step_time_s: float | None
    tokens_per_s_per_gpu: float | None
    mfu: float | None
    warnings: tuple[str, ...]


def answer_line(line: str, *, number: int) -> str:
    """Return the JSON that answers line ``number`` of a file of cases: an estimate, or what is wrong with the case."""
    try:
        case = read_case(line, number=number)
        found = answer(_chosen(case), case.spec, cluster=case.cluster, job=case.job, id=case.id)
        return json.dumps(plain(found))
    except ScalingError as error:
        return json.dumps({"id": _id_of(line), "error": str(error)[:LONGEST_MESSAGE]})
    except RecursionError:
        return json.dumps(
            {"id": None, "error": f"line {number} is nested beyond reason; the format is in docs/cases.md"}
        )
    except Exception as error:  # a defect of ours must not cost the other lines
        logger.exception("line %d", number)
        return json.dumps(
            {"id": _id_of(line), "error": f"line {number} cannot be estimated: {error!r}; please report it"}
        )


def answer(candidate: Candidate, spec: ModelSpec, *, cluster: Cluster, job: Job, id: str | int) -> Answer:
    """Return what is told about a plan with its estimate."""
    estimate, peak = candidate.estimate, candidate.estimate.memory.peak
    time = known_step_time(spec, cluster=cluster, job=job, plan=candidate.plan)
    return Answer(
        id=id,
        level=estimate.level,
        fits=shortage(estimate, cluster=cluster) is None,
        plan=plain(candidate.plan),
        peak_allocated_gib=_gib(estimate.peak_allocated_bytes),
        peak_reserved_gib=_gib(estimate.peak_reserved_bytes),
        context_gib=_gib(estimate.context_bytes),
        peak_phase=peak.phase,
        interval_gib=_interval(estimate),
        breakdown_gib={cause: _gib(num_bytes) for cause, num_bytes in peak.causes.items()},
        phases_gib={phase.phase: _gib(phase.total_bytes) for phase in estimate.memory.phases},
        host_gib_per_node=None if estimate.host is None else _gib(estimate.host.peak.total_bytes),
        step_time_s=None if time is None else _digits(time.total_s),
        tokens_per_s_per_gpu=None if time is None else _digits(time.tokens_per_s_per_gpu),
        mfu=None if time is None else _digits(time.mfu),
        warnings=estimate.warnings,
    )


def _digits(number: float) -> float:
    return float(f"{number:.6g}")


def _chosen(case: Case) -> Candidate:
    if case.plan is None:
        return _planned(case)
    return Candidate(plan=case.plan, estimate=predict(case.spec, cluster=case.cluster, job=case.job, plan=case.plan))


def _planned(case: Case) -> Candidate:
    """Return the planner's choice; where none is sure to fit, that by the point estimate, with a warning."""
    choose = partial(decide, case.spec, cluster=case.cluster, job=case.job, model=case.model)
    try:
        decision = choose()
        return Candidate(plan=decision.plan, estimate=decision.estimate)
    except NoPlanFitsError:
        decision = choose(safety=0.0)
    warning = "fits by the point estimate only: the upper end of its interval is more than the GPU has"
    warned = replace(decision.estimate, warnings=(*decision.estimate.warnings, warning))
    return Candidate(plan=decision.plan, estimate=warned)


def _interval(estimate: Estimate) -> tuple[float, float] | None:
    if estimate.interval is None:
        return None
    return _gib(estimate.interval.low_bytes), _gib(estimate.interval.high_bytes)


def _gib(num_bytes: int) -> float:
    return round(gib(num_bytes), DECIMALS)


def _id_of(line: str) -> Any:
    """Return the id of a line that is otherwise wrong, None where it has none."""
    try:
        parsed = json.loads(line)
    except (ValueError, RecursionError):
        return None
    found = parsed.get("id") if isinstance(parsed, dict) else None
    return found if isinstance(found, str | int) else None
