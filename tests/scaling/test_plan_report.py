"""The printed decision: no byte and no second is left out of its tables."""

from __future__ import annotations

import re
from dataclasses import fields, replace
from io import StringIO

import pytest
from rich.console import Console

from scaling.plan_report import BYTES_BY_COLUMN, SECONDS_BY_COLUMN, SHOWN_FRONT, print_decision, shown_front
from strategies.cluster import Cluster, gpu_preset
from strategies.decision import Decision, RankedPlan
from strategies.estimate import CAUSE_NAMES
from strategies.explain import CAUSES_OF_TIME
from strategies.job import Job
from strategies.load_model import load_model_spec
from strategies.planner.safety import DEFAULT_SAFETY
from strategies.search import FixedParts
from strategies.select import decide
from strategies.time.step_time import StepTime
from strategies.trained import Lora
from strategies.units import format_bytes

MODEL = "llama-3.2-1b"


def decision_for(*, safety: float = DEFAULT_SAFETY, lora: Lora | None = None) -> Decision:
    return decide(
        load_model_spec(MODEL),
        cluster=Cluster(gpu=gpu_preset("A100-40GB-SXM"), gpus=8, gpus_per_node=8),
        job=Job(seq_len=2048, global_batch_size=32, lora=lora),
        fixed=FixedParts(searches_loss=True),
        safety=safety,
    )


def printed(decision: Decision) -> str:
    console = Console(width=100, file=StringIO())
    print_decision(decision, load_model_spec(MODEL), console)
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
        shown = (ranked.peak.total_bytes, ranked.device_bytes, ranked.needed_bytes)
        assert [float(cell) for cell in first[-3:]] == [round(num_bytes / 2**30, 1) for num_bytes in shown]
        assert float(second[-2]) == round(ranked.time.total_s, 2)
        assert abs(sum(map(float, first[1:-3])) - float(first[-3])) < 0.5
        assert abs(sum(map(float, second[1:-2])) - float(second[-2])) < 0.05


def test_a_decision_of_an_older_file_is_printed_without_what_it_lacks() -> None:
    bare = replace(decision_for(), by_strategy=(), alternatives=(), front=(), rejected=(), warnings=(), time=None)
    text = printed(bare)
    assert "Plan: " in text
    assert "The best plan" not in text
    assert "What does not fit" not in text


def test_needs_is_the_point_estimate_wherever_it_is_printed() -> None:
    decision = decision_for()
    text = printed(decision)
    for ranked in (*decision.alternatives[:1], *decision.front[:1]):
        point, sure = format_bytes(ranked.device_bytes), format_bytes(ranked.needed_bytes)
        assert f": needs {point}, {sure} at safety 0.9; " in text
    estimate = decision.estimate
    assert f"needs {format_bytes(estimate.device_bytes)}, {format_bytes(decision.front[0].needed_bytes)} at" in text
    bare = printed(decision_for(safety=0.0))
    assert "needs " in bare
    assert "safety" not in bare


def test_the_headline_and_the_table_give_matrix_products_the_same_seconds() -> None:
    decision = decision_for()
    text = printed(decision)
    headline = re.search(r"most of it .*matrix products ([0-9.]+) s", text)
    assert headline is not None
    table = [line.split() for line in text.partition("Seconds of one step")[2].splitlines()]
    heads = next(row for row in table if row[:1] == ["strategy"])
    chosen = next(row for row in table if row[:1] == [decision.plan.strategy])
    assert float(chosen[heads.index("matrix")]) == pytest.approx(float(headline[1]), abs=0.01)


def test_the_first_line_says_what_is_trained_by_adapters() -> None:
    """By Llama-3.2-1B's shapes: 16 layers, rank 4, (2048 + 2048) for q_proj and (2048 + 512) for v_proj: 425,984."""
    trained = Lora(rank=4, target_modules=("q_proj", "v_proj"))
    first = printed(decision_for(lora=trained)).splitlines()[0]
    assert "425,984 of them trained (LoRA rank 4 on q_proj, v_proj)" in first
    assert "trained" not in printed(decision_for()).splitlines()[0]


def test_the_printed_front_keeps_the_plan_that_saves_most_for_little_time() -> None:
    decision = decision_for()
    template = decision.front[0]
    assert template.time is not None

    def point(gib: float, seconds: float) -> RankedPlan:
        assert template.time is not None
        time = replace(template.time, matrix_s=seconds - template.time.total_s + template.time.matrix_s)
        return replace(template, device_bytes=int(gib * 2**30), time=time)

    # The figures of llama-3-8b on eight A100 whose second plan was passed over, and a long tail.
    tail = [point(34.42 - 2 * place, 9.34 + 0.5 * place) for place in range(14)]
    useful = point(42.97, 8.974)
    shown = shown_front([point(60.09, 8.466), useful, *tail])
    assert useful in shown
    assert len(shown) == SHOWN_FRONT
    assert shown[0].device_bytes > shown[-1].device_bytes == tail[-1].device_bytes
    sizes = [each.device_bytes for each in shown]
    assert sizes == sorted(sizes, reverse=True)
    assert shown_front([useful]) == [useful]
    without_times = [replace(each, time=None) for each in (useful, *tail)]
    assert len(shown_front(without_times)) == SHOWN_FRONT
