"""Every task on two ranks: the update of plain PyTorch on the whole batch, and a loss that falls."""

from __future__ import annotations

import json
import statistics
from typing import Any

import pytest

from tests.scaling.launching import TORCHRUN, succeed
from tests.scaling.tasks.models import TINY

pytestmark = [pytest.mark.distributed, pytest.mark.deepspeed, pytest.mark.slow]
WORKER = ("-m", "tests.scaling.tasks.worker")


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each of two ranks saw."""
    folder = tmp_path_factory.mktemp("tasks")
    succeed([*TORCHRUN, "2", *WORKER, folder])
    return [json.loads((folder / f"seen.{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.parametrize("strategy", ["ddp", "zero2", "zero3", "fsdp2"])
@pytest.mark.parametrize("task", TINY)
def test_an_update_matches_one_process_with_the_library_s_loss(
    seen: list[dict[str, Any]], task: str, strategy: str
) -> None:
    for rank in seen:
        update = rank[f"{task} {strategy} update"]
        assert update["loss"] == pytest.approx(update["plain_loss"], rel=1e-6)
        assert update["grad_norm"] == pytest.approx(update["plain_grad_norm"], rel=1e-5)
        assert update["difference"] <= 1e-6 * max(1.0, update["largest_change"])
        assert update["largest_change"] > 1e-3


@pytest.mark.parametrize("strategy", ["ddp", "zero2"])
@pytest.mark.parametrize("task", TINY)
def test_the_loss_falls(seen: list[dict[str, Any]], task: str, strategy: str) -> None:
    losses = seen[0][f"{task} {strategy} training"]["losses"]
    assert statistics.mean(losses[-5:]) < 0.97 * statistics.mean(losses[:5])


@pytest.mark.parametrize("task", TINY)
def test_strategies_and_ranks_see_the_same_losses(seen: list[dict[str, Any]], task: str) -> None:
    first = seen[0][f"{task} ddp training"]
    for other in (seen[1][f"{task} ddp training"], seen[0][f"{task} zero2 training"]):
        assert other["losses"][:5] == pytest.approx(first["losses"][:5], rel=1e-4)
        assert other["eval_units"] == first["eval_units"]


@pytest.mark.parametrize("task", ["sequence-classification", "image-classification", "contrastive"])
def test_an_uneven_evaluation_counts_every_sample_once(seen: list[dict[str, Any]], task: str) -> None:
    for rank in seen:
        assert rank[f"{task} ddp training"]["eval_units"] == 35


@pytest.mark.parametrize("strategy", ["ddp", "zero2"])
@pytest.mark.parametrize("task", ["sequence-classification", "image-classification"])
def test_an_uneven_evaluation_matches_one_process_that_sees_all_at_once(
    seen: list[dict[str, Any]], task: str, strategy: str
) -> None:
    for rank in seen:
        found = rank[f"{task} {strategy} training"]
        assert found["eval_loss"] == pytest.approx(found["plain"]["eval_loss"], rel=1e-5)
        assert found["metrics"]["accuracy"] == found["plain"]["accuracy"]


@pytest.mark.parametrize("strategy", ["ddp", "zero2", "zero3", "fsdp2"])
def test_parameters_move_by_their_own_learning_rate(seen: list[dict[str, Any]], strategy: str) -> None:
    moved = seen[0][f"lr scale {strategy}"]
    assert moved["scaled bert.embeddings.word_embeddings.weight"] == 0
    assert moved["scaled classifier.weight"] == pytest.approx(moved["plain classifier.weight"] / 2, rel=1e-5)
    assert moved["scaled bert.pooler.dense.weight"] == pytest.approx(moved["plain bert.pooler.dense.weight"], rel=1e-6)
