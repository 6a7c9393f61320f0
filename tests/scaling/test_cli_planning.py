"""Questions turned round and suggestions on the command line: what stands behind an answer, and that it works."""

from __future__ import annotations

import shlex

import pytest

from scaling.cli.planning import Turn, turned
from strategies.load_model import load_model_spec
from strategies.plan import OffloadDevice
from strategies.planner.reverse import best_fit
from strategies.planner.sweep import Question
from strategies.search import FixedParts
from strategies.units import GIB
from tests.scaling.test_cli import run
from tests.strategies.planner.builders import question

A100 = "A100-80GB-SXM"


def planned_offload(asked: Question) -> OffloadDevice:
    fit = best_fit(asked)
    assert fit is not None
    return fit.plan.offload_optimizer


def test_the_largest_model_stands_first_without_offloading_where_host_memory_is_not_known() -> None:
    answer = turned(Turn.MODEL, question("llama-3-8b", A100))
    # 16 bytes a parameter (arXiv:1910.02054) over 8 x 79 GiB leave room for less than 42 billion.
    assert load_model_spec(answer.found).num_params < 42e9
    assert planned_offload(answer.question) is OffloadDevice.NONE
    # Eight ranks build 8 x 141 GB of weights, which 2 TB hold; 8 x 811 GB of the next one they do not.
    beyond, _, needed = answer.remark.partition(" with offloading to ")
    assert beyond == ", without offloading; llama-3-70b"
    assert 8 * 141 / 1.073741824 < float(needed.split()[0]) < 2000 / 1.073741824


def test_the_smallest_cluster_stands_first_without_offloading_where_host_memory_is_not_known() -> None:
    answer = turned(Turn.CLUSTER, question("llama-3-70b", gpus=1))
    # 16 x 70.6e9 bytes are 14 GPUs of 79 GiB before any activation.
    assert answer.question.cluster.gpus >= 14
    assert ", without offloading; 1 with offloading to 1" in answer.headline


def test_offloading_answers_where_host_memory_is_known_or_nothing_else_fits() -> None:
    known = turned(Turn.CLUSTER, question("llama-3.1-8b", gpus=1, host_memory_bytes=2000 * GIB))
    assert known.headline == "Fewest H100-80GB-SXM that fit: 1"
    only_so = turned(Turn.SEQ_LEN, question("llama-3-8b", "RTX4090", gpus=1))
    assert "without" not in only_so.headline
    assert " tokens, with offloading to " in only_so.headline
    assert planned_offload(only_so.question) is OffloadDevice.CPU


@pytest.mark.parametrize("host_memory_bytes", [None, 2000 * GIB])
def test_the_best_batch_is_that_of_plans_that_do_not_offload(host_memory_bytes: int | None) -> None:
    asked = question("llama-3-8b", A100, host_memory_bytes=host_memory_bytes)
    nowhere = {"offload_optimizer": OffloadDevice.NONE, "offload_param": OffloadDevice.NONE}
    answer = turned(Turn.GLOBAL_BATCH_SIZE, asked)
    named = turned(Turn.GLOBAL_BATCH_SIZE, asked.on(fixed=FixedParts(searches_loss=True, **nowhere)))
    assert answer.found == named.found
    assert answer.headline == f"{named.headline}, without offloading"


def test_that_positions_are_the_limit_is_said_and_only_where_they_are() -> None:
    ends = "the model has no more positions, memory is not the limit"
    assert turned(Turn.SEQ_LEN, question("llama-3-8b", A100)).headline == (
        f"Longest sequence that fits: 8,192 tokens, without offloading; {ends}"  # max_position_embeddings
    )
    assert ends not in turned(Turn.SEQ_LEN, question("llama-3.1-8b", A100)).headline


@pytest.mark.parametrize(
    ("words", "flags"),
    [
        (
            ["llama-3-70b", "--gpu", "H100-80GB-SXM", "--gpus", "64", "--host-memory-gib", "512"],
            {"--gpus-per-node", "--host-memory-gib"},
        ),
        (
            ["qwen2.5-7b", "--gpu", "RTX4090", "--gpus", "2", "--gpus-per-node", "2", "--host-memory-gib", "64"],
            {"--gpus", "--gpu", "--host-memory-gib"},
        ),
        (
            ["llama-3.1-8b", "--gpu", "RTX4090", "--gpus", "2", "--gpus-per-node", "2", "--offload-optimizer", "none"],
            {"--gpus", "--gpu", "--offload-optimizer"},
        ),
        (["llama-3.2-1b", "--gpu", "cpu", "--gpus", "2", "--gpu-memory-gib", "8"], {"--gpus"}),
    ],
)
def test_changes_of_the_cluster_fit_when_they_are_typed(
    words: list[str], flags: set[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["plan", *words, "--seq-len", "4096", "--global-batch-size", "64"]
    assert run(monkeypatch, asked) == 3
    suggestions = [line.strip() for line in capsys.readouterr().err.splitlines() if line.startswith("  --")]
    assert flags <= {suggestion.split()[0] for suggestion in suggestions}
    for suggestion in suggestions:
        typed = shlex.split(suggestion.partition(": needs ")[0])
        # A flag given twice: the last one counts.
        assert run(monkeypatch, [*asked, *typed]) == 0, typed
        capsys.readouterr()
