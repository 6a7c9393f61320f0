"""The peers' table: which configurations it takes, what the installed tools answer, how they are scored."""

from __future__ import annotations

import json

import pytest

from benchmarks import peers, peers_report
from benchmarks.peers_report import Answer, Comparison
from benchmarks.published_cases import published_rows
from benchmarks.published_memory import Peak
from strategies.cluster import Cluster, gpu_preset
from strategies.job import Job, Precision
from strategies.load_model import load_model_spec
from strategies.plan import OffloadDevice, Plan, StrategyName
from strategies.registry import STRATEGIES

LLAMA_2_7B = 6_738_415_616


def peak(name: str) -> Peak:
    return Peak(
        id=name,
        model="",
        strategy="",
        kind="allocated",
        usable="mem",
        confidence="high",
        measured_gib=1.0,
        predicted_gib=1.0,
        phase="",
        interval_gib=None,
        built_differently=None,
    )


def comparison(measured: float, **answers: float | None) -> Comparison:
    given = {
        tool: None if (gib := answers.get(tool)) is None else Answer(gib=gib, is_own=True)
        for tool in peers_report.TOOLS
    }
    return Comparison(
        id="a",
        source="",
        model="m",
        num_params=1,
        strategy="zero2",
        activation_checkpointing="full",
        gpus=2,
        micro_batch_size=1,
        seq_len=1,
        measured_gib=measured,
        states_gib=None,
        answers=given,
        note="",
    )


def test_the_first_row_of_every_source_strategy_and_checkpointing_is_taken() -> None:
    rows = {
        name: {"strategy": strategy, "activation_ckpt": checkpointing}
        for name, strategy, checkpointing in (
            ("A-2", "zero2", "full"),
            ("A-1", "zero2", "full"),
            ("A-3", "zero2", "none"),
            ("B-1", "zero2", "full"),
            ("B-2", "zero3", "full"),
        )
    }
    found = peers.chosen([peak(name) for name in sorted(rows) if name != "B-1"], rows)
    assert [each.id for each in found] == ["A-2", "A-3", "B-2"]


@pytest.mark.deepspeed
def test_published_configurations_have_the_figures_of_their_sources() -> None:
    found = {each.id: each for each in peers.published_comparisons()}
    assert len(found) == 12
    # ColossalAI's page: Llama-2-7B, ZeRO-2 on two H800, 70,694 MB; DeepSpeed's estimate there is 2 P + 18 P / 2.
    row = found["COLO-005"]
    assert (row.num_params, row.gpus, row.measured_gib) == (LLAMA_2_7B, 2, 70.694)
    deepspeed, accelerate = row.answers["deepspeed"], row.answers["accelerate"]
    assert deepspeed is not None
    assert deepspeed.gib == pytest.approx(11 * LLAMA_2_7B / 2**30)
    assert deepspeed.is_own
    # accelerate 1.15.0: the largest of 4 P, 6 P and 8 P bytes.
    assert accelerate is not None
    assert accelerate.gib == pytest.approx(8 * LLAMA_2_7B / 2**30)
    assert not accelerate.is_own
    # FSDP is not ZeRO, and no estimator of DeepSpeed is for stage 1.
    assert not found["TTC-001"].answers["deepspeed"].is_own  # type: ignore[union-attr]
    assert found["MIST-001"].answers["deepspeed"] is None


@pytest.mark.deepspeed
def test_offloaded_weights_leave_deepspeeds_largest_layer() -> None:
    spec = load_model_spec("llama-2-7b")
    plan = Plan(
        strategy=StrategyName.ZERO3,
        micro_batch_size=1,
        gradient_accumulation_steps=1,
        buckets=STRATEGIES[StrategyName.ZERO3].buckets(spec, Job(seq_len=128, global_batch_size=8)),
        offload_optimizer=OffloadDevice.CPU,
        offload_param=OffloadDevice.CPU,
    )
    cluster = Cluster(gpu=gpu_preset("A100-80GB-SXM"), gpus=8, gpus_per_node=8)
    answer = peers.peers(spec, cluster=cluster, plan=plan, precision=Precision.BF16)["deepspeed"]
    assert answer is not None
    assert answer.gib == pytest.approx(4 * 32000 * 4096 / 2**30)  # 4 bytes for each parameter of the embedding


def test_a_tool_is_scored_on_what_it_answers() -> None:
    found = [comparison(10.0, ours=11.0, deepspeed=5.0), comparison(10.0, ours=10.0), comparison(10.0, ours=7.0)]
    scores = peers_report.summary(found)
    assert scores["ours"]["median_error"] == pytest.approx(0.1)
    assert (scores["ours"]["answered"], scores["ours"]["over_1_percent_too_low"]) == (3, 1)
    assert (scores["deepspeed"]["answered"], scores["deepspeed"]["median_error"]) == (1, pytest.approx(0.5))
    assert scores["deepspeed"]["median_error_of_ours_there"] == pytest.approx(0.1)
    assert (scores["accelerate"]["answered"], scores["accelerate"]["median_error"]) == (0, None)
    assert "| accelerate | 0 of 3 | 0 | - | - |" in peers_report.scores_table(found)


def test_the_stored_table_is_of_the_published_figures() -> None:
    stored = json.loads((peers.RESULTS / "peers.json").read_text())
    published = {row["id"]: row["peak_mem_gib"] for row in published_rows()}
    assert [each["measured_gib"] for each in stored["published"]] == [
        float(published[each["id"]]) for each in stored["published"]
    ]
    scores = stored["summary"]["published"]
    assert scores["ours"]["answered"] == 12
    assert all(scores["ours"]["median_error"] < scores[peer]["median_error"] for peer in ("deepspeed", "accelerate"))
