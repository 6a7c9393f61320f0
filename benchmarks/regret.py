"""How much slower is the planner's choice than the best plan? Every plan that fits, run for real on CPU ranks here.

Method: three models, two ranks, fp32. ``scaling calibrate`` measures the machine first (``--calibration FILE`` takes
what it wrote). The planner (`strategies.select.decide`) then chooses under three memory budgets for each model, and its
choices and every predicted time are stored before anything is run. Every plan that the search knows and that fits the
largest budget trains a few steps, each in an engine of its own; further rounds repeat those within 30 % of a best one,
in a new order. The fastest step of all rounds is a plan's time, since what disturbs a step only makes it slower. The
ratio of a budget is the throughput of the chosen plan over the best of all plans that fit it.

Usage: ``python -m benchmarks.regret``; writes ``benchmarks/results/regret.json``, ``.md`` and ``.png``. ``--rounds 1``
is a short run. Takes about ten minutes on two free cores, and means nothing on busy ones.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.regret_report import BudgetRow, ModelResult, PlanRow, Summary, store, store_predictions
from benchmarks.regret_worker import Assignment, Timing
from strategies.cluster import CPU_NAME, Cluster, Gpu
from strategies.decision import Decision
from strategies.errors import ScalingError
from strategies.estimate import NO_ESTIMATE
from strategies.job import Job, Precision
from strategies.load_model import load_model_spec
from strategies.memory.predict import predict
from strategies.model_spec import ModelSpec
from strategies.plan import Plan
from strategies.planner.safety import DEFAULT_SAFETY, needed_bytes, shortage
from strategies.search import FixedParts, candidates
from strategies.select import decide
from strategies.serialize import to_json
from strategies.time.calibration import calibration_for, calibration_path, read_calibration, write_calibration
from strategies.time.step_time import step_time
from strategies.units import GIB

RESULTS = Path(__file__).parent / "results"
RANKS = 2
CONTENDER = 1.3
"""Slower than this times the best under every budget after one round: not run again."""
BUDGET_PLACES = (1.0, 0.5, 0.15)
"""Where budgets lie among the bytes that plans need: all fit, half of them, few."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One model's job."""

    model: str
    seq_len: int
    global_batch_size: int

    @property
    def job(self) -> Job:
        return Job(seq_len=self.seq_len, global_batch_size=self.global_batch_size, precision=Precision.FP32)

    @property
    def name(self) -> str:
        return Path(self.model).stem


SETTINGS = (
    Setting(model="llama-demo", seq_len=64, global_batch_size=8),
    Setting(model="gpt2-demo", seq_len=128, global_batch_size=8),
    Setting(model="benchmarks/models/gemma-small.json", seq_len=32, global_batch_size=8),
)
"""Four million parameters in blocks; half a million, so that Python counts; five million, most in the vocabulary."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Plan, run, print and store; return 1 where the choices are worse than the limits."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calibration", type=Path, help="what scaling calibrate wrote here, instead of measuring now")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--steps", type=int, default=3, help="timed steps of a plan in each round")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args(arguments)
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as data_home:
        # Of its own, so that the planner reads the calibration as it would a user's, and the user's stays as it is.
        os.environ["XDG_DATA_HOME"] = data_home
        seconds = calibrate_into_data_folder(options.calibration)
        problems = [Problem(setting) for setting in SETTINGS]
        store_predictions({problem.setting.model: problem.prediction() for problem in problems}, folder=options.out)
        results = [problem.solved(rounds=options.rounds, steps=options.steps) for problem in problems]
    ratios = [row.ratio for result in results for row in result.budgets]
    summary = Summary(
        median_ratio=statistics.median(ratios),
        worst_ratio=min(ratios),
        rounds=options.rounds,
        steps=options.steps,
        calibration_s=seconds,
        seconds=round(time.perf_counter() - start),
    )
    store(results, summary, folder=options.out)
    print((options.out / "regret.md").read_text())
    return int(not summary.is_within_limits)


def calibrate_into_data_folder(given: Path | None) -> float:
    """Put a calibration where plans look for it; return how long it took to measure."""
    path = calibration_path(CPU_NAME)
    if given is not None:
        calibration = read_calibration(given)
        write_calibration(calibration, path)
    else:
        command = [sys.executable, "-m", "scaling.cli", "calibrate", "--ranks", str(RANKS)]
        subprocess.run(command, check=True, env=one_thread(), stdout=sys.stderr)
    found = calibration_for(cluster_with(GIB))
    if found is None:
        raise ScalingError(f"{given or path} is not about this machine; leave --calibration out")
    return found.seconds


class Problem:
    """One model: its plans, its budgets and what the planner chooses, before anything is run."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.spec: ModelSpec = load_model_spec(setting.model)
        roomy = cluster_with(64 * GIB)
        self.plans = list(candidates(self.spec, cluster=roomy, job=setting.job, fixed=FixedParts()))
        self.needs = {plan: self._needed(plan, roomy) for plan in self.plans}
        self.budgets = _budgets(list(self.needs.values()))
        self.chosen = {budget: self._choose(budget) for budget in self.budgets}
        # Smaller buckets, which the planner takes where nothing else fits, are not among the candidates.
        for plan in self.chosen.values():
            self.needs.setdefault(plan, self._needed(plan, roomy))
        self.predicted = {plan: self._seconds(plan, roomy) for plan in self.needs}

    def prediction(self) -> dict[str, dict[str, float] | dict[str, str]]:
        """Return every predicted time in seconds, and the choice under each budget in bytes."""
        return {
            "seconds": {label(plan): seconds for plan, seconds in self.predicted.items()},
            "chosen": {str(budget): label(plan) for budget, plan in self.chosen.items()},
        }

    def solved(self, *, rounds: int, steps: int) -> ModelResult:
        """Return the result, after running every plan."""
        times = self._measured(rounds=rounds, steps=steps)
        rows = {plan: self._row(plan, times[plan]) for plan in self.needs}
        budgets = tuple(self._budget_row(budget, rows) for budget in self.budgets)
        return ModelResult(model=self.setting.name, job=self.setting.job, plans=tuple(rows.values()), budgets=budgets)

    def _needed(self, plan: Plan, cluster: Cluster) -> int:
        estimate = predict(self.spec, cluster=cluster, job=self.setting.job, plan=plan)
        return needed_bytes(estimate, cluster=cluster, safety=DEFAULT_SAFETY)

    def _seconds(self, plan: Plan, cluster: Cluster) -> float:
        return step_time(self.spec, cluster=cluster, job=self.setting.job, plan=plan).total_s

    def _choose(self, budget: int) -> Plan:
        cluster = cluster_with(budget)
        decision = decide(self.spec, cluster=cluster, job=self.setting.job, model=self.setting.model)
        assert shortage(decision.estimate, cluster=cluster, safety=DEFAULT_SAFETY) is None
        return decision.plan

    def _measured(self, *, rounds: int, steps: int) -> dict[Plan, tuple[float, ...]]:
        """Return each plan's fastest step of every round that it ran in: all in the first, then those close to a best.

        A launch a round, since frameworks leave things behind.
        """
        found: dict[Plan, list[float]] = {plan: [] for plan in self.needs}
        for round_number in range(rounds):
            order = self._contenders(found) if round_number else list(self.needs)
            random.Random(round_number).shuffle(order)
            for plan, seconds in zip(order, run_plans([self._decision(plan) for plan in order], steps), strict=True):
                found[plan].append(seconds)
            print(f"{self.setting.name}: round {round_number + 1} of {rounds}, {len(order)} plans", file=sys.stderr)
        return {plan: tuple(times) for plan, times in found.items()}

    def _contenders(self, found: dict[Plan, list[float]]) -> list[Plan]:
        """Return the plans that are chosen or may still turn out to be the best under a budget."""
        fastest = {plan: min(times) for plan, times in found.items()}
        close = set(self.chosen.values())
        for budget in self.budgets:
            fitting = [plan for plan in self.needs if self.needs[plan] <= budget]
            limit = CONTENDER * min(fastest[plan] for plan in fitting)
            close |= {plan for plan in fitting if fastest[plan] <= limit}
        return [plan for plan in self.needs if plan in close]

    def _decision(self, plan: Plan) -> Decision:
        return Decision(
            model=self.setting.model,
            num_params=self.spec.num_params,
            cluster=cluster_with(64 * GIB),
            job=self.setting.job,
            plan=plan,
            estimate=NO_ESTIMATE,
        )

    def _row(self, plan: Plan, rounds_s: tuple[float, ...]) -> PlanRow:
        return PlanRow(
            label=label(plan),
            needed_bytes=self.needs[plan],
            predicted_s=self.predicted[plan],
            measured_s=min(rounds_s),
            rounds_s=rounds_s,
        )

    def _budget_row(self, budget: int, rows: dict[Plan, PlanRow]) -> BudgetRow:
        fitting = [row for row in rows.values() if row.needed_bytes <= budget]
        best, chosen = min(fitting, key=lambda row: row.measured_s), rows[self.chosen[budget]]
        return BudgetRow(
            model=self.setting.name,
            budget_bytes=budget,
            num_fitting=len(fitting),
            chosen=chosen.label,
            chosen_s=chosen.measured_s,
            best=best.label,
            best_s=best.measured_s,
        )


def _budgets(needs: list[int]) -> tuple[int, ...]:
    """Return the bytes below which the named parts of all plans lie, largest first."""
    ordered = sorted(needs)
    return tuple(ordered[round(place * (len(ordered) - 1))] for place in BUDGET_PLACES)


def cluster_with(memory_bytes: int) -> Cluster:
    """Return two CPU ranks with so much memory each."""
    return Cluster(gpu=Gpu(name=CPU_NAME, memory_bytes=memory_bytes), gpus=RANKS, gpus_per_node=RANKS)


def label(plan: Plan) -> str:
    """Return the plan in a few words."""
    kept = "" if plan.reshard_after_forward else ", weights kept"
    once = "" if plan.sync_each_batch else ", reduced once"
    return (
        f"{plan.strategy}{kept}{once}, {plan.activation_checkpointing}, "
        f"{plan.micro_batch_size} x {plan.gradient_accumulation_steps}"
    )


def run_plans(decisions: list[Decision], steps: int) -> list[float]:
    """Return the fastest step of every plan in seconds, run one after the other by one set of ranks."""
    with tempfile.TemporaryDirectory() as folder:
        given, out = Path(folder) / "plans.json", Path(folder) / "times.json"
        given.write_text(to_json(Assignment(decisions=tuple(decisions), steps=steps)))
        torchrun = str(Path(sys.executable).parent / "torchrun")
        head = [torchrun, "--standalone", "--nproc_per_node", str(RANKS), "-m", "benchmarks.regret_worker"]
        finished = subprocess.run(
            [*head, str(given), str(out)], env=one_thread(), capture_output=True, text=True, check=False
        )
        if finished.returncode:
            raise RuntimeError(f"regret_worker ended with {finished.returncode}:\n{finished.stderr[-4000:]}")
        return [Timing(**each).fastest_s for each in json.loads(out.read_text())]


def one_thread() -> dict[str, str]:
    """Return the environment of ranks that have a core each."""
    return os.environ | {"OMP_NUM_THREADS": "1"}


if __name__ == "__main__":
    sys.exit(main())
