"""Do all strategies train the same model? fp32 steps under each, on 1, 2 and 4 ranks, against plain PyTorch.

Method: four small models (Llama; GPT-2 with a tied head; a Llama whose first block is also its third; a Llama with a
layer that no forward runs), 10 optimizer steps with warm-up, a falling learning rate, decay and clipping, on samples of
unequal length and unequal numbers of labels. Every engine and offload that runs on this machine (`scaling.parity`),
with the buckets that the planner gives it: 2 ranks with accumulation 1, 3 and 8; then 1 and 4 ranks with SGD and the
global batch of the last one. Beside them one process of plain PyTorch that takes the whole global batch at once. A
third set asks for equal bits: DDP, ZeRO-1 and ZeRO-2 with AdamW on 2 ranks, where clipping is off, since DeepSpeed adds
up the norm in another order and format. Deterministic, so it is run once. Usage: ``python -m benchmarks.parity``; it
writes ``benchmarks/results/parity.json``.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path

from benchmarks.environment import environment
from benchmarks.parity_models import MODELS, Demo, planner, training
from scaling.parity.certificate import Limits, Row, limits_for, rows_of
from scaling.parity.certify import run_all, run_plainly, save_reference
from scaling.parity.plain import Trajectory
from scaling.parity.ranks import Run
from scaling.parity.variants import VARIANTS, Planned, plan_variants
from scaling.train_config import TrainConfig
from strategies.job import Job, OptimizerName, Precision
from strategies.search import FixedParts

RESULTS = Path(__file__).parent / "results" / "parity.json"
STEPS, SEQ_LEN, MICRO_BATCH_SIZE, CLIPPING = 10, 64, 2, 1.0
"""Gradients start above the clipping norm, so that a norm counted wrongly would show."""
LEARNING_RATE = {OptimizerName.ADAMW: 3e-3, OptimizerName.SGD: 0.1}
ACCUMULATIONS = (1, 3, 8)
BIT_EQUAL = ("ddp", "zero1", "zero2")


@dataclass(frozen=True)
class Case:
    """One model on one number of ranks, under several variants."""

    demo: Demo
    optimizer: OptimizerName
    ranks: int
    accumulation: int
    clipping: float = CLIPPING
    names: tuple[str, ...] = tuple(VARIANTS)

    @property
    def job(self) -> Job:
        return Job(
            seq_len=SEQ_LEN,
            global_batch_size=MICRO_BATCH_SIZE * self.accumulation * self.ranks,
            precision=Precision.FP32,
            optimizer=self.optimizer,
            gradient_clipping=self.clipping,
        )

    @property
    def config(self) -> TrainConfig:
        return training(steps=STEPS, learning_rate=LEARNING_RATE[self.optimizer])

    @cached_property
    def planned(self) -> list[Planned]:
        fixed = FixedParts(micro_batch_size=MICRO_BATCH_SIZE)
        return plan_variants(self.names, planner(self.demo, self.job, num_ranks=self.ranks), fixed=fixed)[0]

    @property
    def title(self) -> str:
        clipped = "" if self.clipping else ", no clipping"
        return f"{self.demo.name}; {self.optimizer}, {self.ranks} ranks, accumulation {self.accumulation}{clipped}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What the variants of a case came to."""

    model: str
    optimizer: OptimizerName
    ranks: int
    accumulation: int
    clipping: float
    first_loss: float
    """Of plain PyTorch."""
    last_loss: float
    limits: Limits
    rows: tuple[Row, ...]
    failed: dict[str, str]

    @property
    def alike(self) -> bool:
        return not self.failed and all(row.alike for row in self.rows)


def cases(models: Iterable[Demo] = MODELS) -> list[Case]:
    """Return all cases, those of one number of ranks together."""
    demos, last = tuple(models), ACCUMULATIONS[-1]
    return [
        *(Case(demo, rule, 2, count) for count in ACCUMULATIONS for demo in demos for rule in LEARNING_RATE),
        *(Case(demo, OptimizerName.SGD, 1, 2 * last) for demo in demos),
        *(Case(demo, OptimizerName.SGD, 4, last // 2) for demo in demos),
        *(Case(demo, OptimizerName.ADAMW, 2, count, 0.0, BIT_EQUAL) for demo in demos for count in ACCUMULATIONS),
    ]


def main() -> int:
    """Measure, print, store; return 1 if any run is beyond its limits."""
    start = time.perf_counter()
    results = measure(cases())
    seconds = time.perf_counter() - start
    for line in summary(results):
        print(line)
    print(f"{seconds:.0f} s")
    stored = {"results": [asdict(each) for each in results], "seconds": seconds, "environment": environment()}
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(stored, indent=1) + "\n")
    return int(not all(result.alike for result in results))


def measure(wanted: Sequence[Case]) -> list[Result]:
    """Return a result for every case; one launch for each number of ranks."""
    with tempfile.TemporaryDirectory() as folder:
        plains = [run_plainly(case.demo, case.planned[0].decision, config=case.config) for case in wanted]
        runs = [runs_of(index, case, plains[index], Path(folder)) for index, case in enumerate(wanted)]
        found, failed = {}, {}
        for ranks in sorted({case.ranks for case in wanted}):
            of_ranks = (each for case, each in zip(wanted, runs, strict=True) if case.ranks == ranks)
            outcomes, failures = run_all([run for each in of_ranks for run in each])
            found |= outcomes
            failed |= failures
    results = []
    for index, (case, plain) in enumerate(zip(wanted, plains, strict=True)):
        keys = {each.name: _key(index, each) for each in case.planned}
        limits = limits_for(case.job)
        rows = rows_of(
            {name: found[key] for name, key in keys.items() if key in found},
            plain,
            limits=limits,
            accumulations=dict.fromkeys(keys, case.accumulation),
        )
        results.append(
            Result(
                model=case.demo.name,
                optimizer=case.optimizer,
                ranks=case.ranks,
                accumulation=case.accumulation,
                clipping=case.clipping,
                first_loss=plain.losses[0],
                last_loss=plain.losses[-1],
                limits=limits,
                rows=rows,
                failed={name: failed[key] for name, key in keys.items() if key in failed},
            )
        )
    return results


def runs_of(index: int, case: Case, plain: Trajectory, folder: Path) -> list[Run]:
    """Return the runs of one case, with the parameters of plain PyTorch written into ``folder``."""
    own = folder / str(index)
    own.mkdir()
    reference = save_reference(plain, own)
    return [
        Run(key=_key(index, each), problem=case.demo, decision=each.decision, config=case.config, reference=reference)
        for each in case.planned
    ]


def _key(index: int, planned: Planned) -> str:
    return f"{index}-{planned.name}"


def summary(results: Sequence[Result]) -> Iterable[str]:
    """Yield the largest differences by variant and optimizer, what is beyond the limits, and which bits are equal."""
    yield f"{'largest over all cases':32} {'runs':>5} {'loss (rel)':>11} {'norm (rel)':>11} {'weights (abs)':>13}"
    clipped = [result for result in results if result.clipping]
    for optimizer in LEARNING_RATE:
        for name in VARIANTS:
            rows = [row for each in clipped if each.optimizer == optimizer for row in each.rows if row.name == name]
            if rows:
                worst = [max(getattr(row, field) for row in rows) for field in ("loss", "norm", "parameter")]
                yield f"{f'{optimizer}, {name}':32} {len(rows):>5} " + " {:>10.1e}  {:>10.1e}   {:>11.1e}".format(
                    *worst
                )
    for result in results:
        what = f"{result.model}; {result.optimizer}, {result.ranks} ranks, accumulation {result.accumulation}"
        for row in (row for row in result.rows if not row.alike):
            yield f"BEYOND: {what}: {row.name}: {row.loss:.1e} {row.norm:.1e} {row.parameter:.1e}"
        for name, reason in result.failed.items():
            yield f"FAILED: {what}: {name}: {reason}"
    for result in (result for result in results if not result.clipping):
        same = ", ".join(row.name for row in result.rows if row.same_bits_as == result.rows[0].name)
        yield f"same bits: {result.model}, accumulation {result.accumulation}: {same}"


if __name__ == "__main__":
    sys.exit(main())
