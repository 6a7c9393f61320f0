"""Mistakes that training loops are known for, each with a value worked out by hand, under every engine.

The numbers of the cases are those of the reports they come from: a gradient of 4 on one token and 1 on three others is
7/4 whatever the cut into micro batches and ranks.
"""

from __future__ import annotations

import json
import math
import sys
from typing import Any

import pytest
import torch

from tests.scaling.engines.worker import STRATEGIES
from tests.scaling.launching import TORCHRUN, succeed

pytestmark = [pytest.mark.distributed, pytest.mark.deepspeed, pytest.mark.slow]
WORKER = ("-m", "tests.scaling.engines.worker")


@pytest.fixture(scope="module", params=[1, 2], ids=["1-rank", "2-ranks"])
def ranks(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """What each rank saw, by strategy and case."""
    out = tmp_path_factory.mktemp("engines") / "seen.json"
    head = [*TORCHRUN, "2"] if request.param == 2 else [sys.executable]
    succeed([*head, *WORKER, out])
    return list(json.loads(out.read_text()))


def seen(ranks: list[Any], strategy: str, case: str) -> Any:
    """Return what rank 0 saw, after a check that the other ranks saw the same."""
    everywhere = [rank[strategy][case] for rank in ranks]
    assert all(rank == everywhere[0] for rank in everywhere), everywhere
    return everywhere[0]


@pytest.mark.parametrize("strategy", STRATEGIES)
class TestEveryEngine:
    def test_gradient_is_a_mean_over_tokens_not_over_micro_batches(self, ranks: list[Any], strategy: str) -> None:
        # transformers PR#34191: the mean of means is 2.5, a sum of means 5.
        assert seen(ranks, strategy, "tokens_in_micro_batches")["norms"] == pytest.approx([7 / 4], rel=1e-6)
        assert seen(ranks, strategy, "one_batch_of_all_tokens")["norms"] == pytest.approx([7 / 4], rel=1e-6)

    def test_gradient_is_a_mean_over_the_tokens_of_all_ranks(self, ranks: list[Any], strategy: str) -> None:
        # transformers #37474, PR#40610: local counts give 2.5, a global count with a mean over ranks 0.875.
        case = "tokens_on_ranks" if len(ranks) == 2 else "tokens_in_micro_batches"
        assert seen(ranks, strategy, case)["norms"] == pytest.approx([7 / 4], rel=1e-6)

    def test_loss_is_divided_once(self, ranks: list[Any], strategy: str) -> None:
        # DeepSpeed PR#7724, transformers #45305: divided twice 0.5, not at all 8.
        assert seen(ranks, strategy, "identical_micro_batches")["norms"] == pytest.approx([2.0], rel=1e-6)

    def test_reported_loss_does_not_depend_on_accumulation(self, ranks: list[Any], strategy: str) -> None:
        # transformers #11919, DeepSpeed #1107; the window of 8 is followed by a short one of 3.
        for accumulation, windows in ((1, 1), (2, 1), (8, 2)):
            losses = seen(ranks, strategy, f"loss_accumulation_{accumulation}")["losses"]
            assert losses == pytest.approx([3.0] * windows, rel=1e-6)

    def test_clipping_comes_once_after_the_last_micro_batch(self, ranks: list[Any], strategy: str) -> None:
        # accelerate #641: clipping the running gradient after each micro batch gives about (-0.306, 0.952).
        result = seen(ranks, strategy, "clipped_once")
        assert result["norms"] == pytest.approx([4.0], rel=1e-6)
        assert result["weights"] == pytest.approx([0.0, -1.0], abs=1e-6)

    def test_norm_is_over_all_shards_and_counts_replicas_once(self, ranks: list[Any], strategy: str) -> None:
        # pytorch #72548: per shard 3 and 4; with two replicas counted sqrt(2) * 5 = 7.07.
        clipped = seen(ranks, strategy, "clipped_shards")
        assert clipped["norms"] == pytest.approx([5.0], rel=1e-6)
        assert clipped["weights"] == pytest.approx([-0.6, 0.0, -0.8, 0.0], abs=1e-6)

    def test_gradient_below_the_limit_is_left_alone(self, ranks: list[Any], strategy: str) -> None:
        result = seen(ranks, strategy, "not_clipped")
        assert result["norms"] == pytest.approx([5.0], rel=1e-6)
        assert result["weights"] == [-3.0, 0.0, -4.0, 0.0]

    def test_short_last_window_is_a_step_of_its_own(self, ranks: list[Any], strategy: str) -> None:
        # ColossalAI PR#1030: ten micro batches in windows of four are three steps, none of which leaks into the next.
        assert seen(ranks, strategy, "short_last_window")["norms"] == pytest.approx([2.5, 6.5, 9.5], rel=1e-6)

    def test_micro_batch_without_labels_counts_for_nothing(self, ranks: list[Any], strategy: str) -> None:
        assert seen(ranks, strategy, "micro_batch_without_labels")["norms"] == pytest.approx([4.0, 1.0], rel=1e-6)

    def test_evaluation_weighs_tokens_not_batches(self, ranks: list[Any], strategy: str) -> None:
        # google/flax #527: the mean of the two batch means is (ln 2 + 3) / 2.
        result = seen(ranks, strategy, "evaluation")
        assert result["loss"] == pytest.approx((4 * math.log(2) + 3) / 5, rel=1e-6)
        assert result["tokens"] == 5

    def test_bf16_weights_move_by_steps_smaller_than_their_spacing(self, ranks: list[Any], strategy: str) -> None:
        # A thousandth is a quarter of the spacing below one: without fp32 masters the weight would stay at one.
        expected = [float(torch.tensor(1 - 1e-3 * step).bfloat16()) for step in range(1, 9)]
        assert len(set(expected)) == 3
        assert seen(ranks, strategy, "slow_weights") == expected

    def test_norm_of_an_infinite_gradient_is_not_finite(self, ranks: list[Any], strategy: str) -> None:
        norms = [rank[strategy]["not_finite"] for rank in ranks]
        assert not any(math.isfinite(norm) for norm in norms)

    def test_parameters_are_gathered_whole_and_by_name(self, ranks: list[Any], strategy: str) -> None:
        result = seen(ranks, strategy, "clipped_shards")
        assert result["names"] == ["scorer.weight", "unused.weight", "unused.bias"]
        assert len(result["weights"]) == 4
