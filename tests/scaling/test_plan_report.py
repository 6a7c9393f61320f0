"""The printed decision: no byte and no second is left out of its tables."""

from __future__ import annotations

from dataclasses import fields, replace
from io import StringIO

from rich.console import Console

from scaling.plan_report import BYTES_BY_COLUMN, SECONDS_BY_COLUMN, print_decision
from strategies.cluster import Cluster, gpu_preset
from strategies.decision import Decision
from strategies.estimate import CAUSE_NAMES
from strategies.explain import CAUSES_OF_TIME
from strategies.job import Job
from strategies.load_model import load_model_spec
from strategies.search import FixedParts
from strategies.select import decide
from strategies.time.step_time import StepTime


def decision_for(model: str = "llama-3.2-1b", *, gpus: int = 8) -> Decision:
    return decide(
        load_model_spec(model),
        cluster=Cluster(gpu=gpu_preset("A100-40GB-SXM"), gpus=gpus, gpus_per_node=8),
        job=Job(seq_len=2048, global_batch_size=4 * gpus),
        fixed=FixedParts(searches_loss=True),
    )


def printed(decision: Decision) -> str:
    console = Console(width=100, file=StringIO())
    print_decision(decision, console)
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_every_cause_has_one_column() -> None:
    assert sorted(name for names in BYTES_BY_COLUMN.values() for name in names) == sorted(CAUSE_NAMES)
    seconds = sorted(
        field.name for field in fields(StepTime) if field.name.endswith("_s") and "_per_" not in field.name
    )
    assert sorted(name for names in SECONDS_BY_COLUMN.values() for name in names) == seconds
    assert sorted(CAUSES_OF_TIME) == seconds


def test_the_best_plan_of_every_strategy_is_shown_with_its_bytes_and_seconds() -> None:
    decision = decision_for()
    text = printed(decision)
    rows = [line.split() for line in text.splitlines()]
    for ranked in decision.by_strategy:
        assert ranked.time is not None
        first, second = [row for row in rows if row and row[0] == ranked.plan.strategy and len(row) >= 9]
        assert float(first[-2]) == round(ranked.peak.total_bytes / 2**30, 1)
        assert float(second[-2]) == round(ranked.time.total_s, 2)
        assert abs(sum(map(float, first[1:-2])) - float(first[-2])) < 0.5
        assert abs(sum(map(float, second[1:-2])) - float(second[-2])) < 0.05


def test_a_decision_of_an_older_file_is_printed_without_what_it_lacks() -> None:
    bare = replace(decision_for(), by_strategy=(), alternatives=(), front=(), rejected=(), warnings=(), time=None)
    text = printed(bare)
    assert "Plan: " in text
    assert "The best plan" not in text
    assert "What does not fit" not in text
