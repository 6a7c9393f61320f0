"""Mistakes that training loops are known for, each with a value worked out by hand, under every engine.

The numbers of the cases are those of the reports they come from: a gradient of 4 on one token and 1 on three others is
7/4 whatever the cut into micro batches and ranks.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
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


ROUNDING = {"fp32": 1e-6, "bf16": 2.0**-9, "fp16": 2.0**-12, "fp16-autocast": 1e-6}
"""Largest of a weight below one: half its spacing, where it is stored in 16 bits."""


def seen(ranks: list[Any], strategy: str, case: str, *, besides: Sequence[str] = ()) -> Any:
    """Return what rank 0 saw, after a check that the other ranks saw the same, but ``besides``, which may be NaN."""
    everywhere = [rank[strategy][case] for rank in ranks]
    if besides:
        everywhere = [{name: value for name, value in each.items() if name not in besides} for each in everywhere]
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

    @pytest.mark.parametrize("precision", ["fp16", "fp16-autocast"])
    def test_gradients_are_unscaled_before_they_are_clipped(
        self, ranks: list[Any], strategy: str, precision: str
    ) -> None:
        # Lightning #9599, pytorch/examples #1196: clipped first, with a scale of 1024, about (-0.000586, -0.000781).
        result = seen(ranks, strategy, f"unscaled_before_clipping_{precision}")
        assert result["norms"] == pytest.approx([5.0], rel=1e-6)
        assert result["weights"] == pytest.approx([-0.6, -0.8], abs=ROUNDING[precision])
        once = seen(ranks, strategy, f"clipped_once_{precision}")
        assert once["norms"] == pytest.approx([4.0], rel=1e-6)
        assert once["weights"] == pytest.approx([0.0, -1.0], abs=ROUNDING[precision])

    @pytest.mark.parametrize("precision", ["fp16", "fp16-autocast"])
    def test_overflow_on_one_rank_skips_the_step_on_all(self, ranks: list[Any], strategy: str, precision: str) -> None:
        # A first step of AdamW moves by the learning rate, a quarter, whatever the gradient. Had the skipped one been
        # counted in its bias corrections, it would be (0.1 / 0.19) / sqrt(0.001 / 0.001999) = 0.744 of that.
        result = seen(ranks, strategy, f"overflow_{precision}")
        assert result["outcomes"] == ["overflow", "applied"]
        assert result["norms"][1:] == pytest.approx([1.0], rel=1e-3)
        assert result["scale"] == 512.0
        assert result["num_updates"] == 1
        assert result["weights"] == pytest.approx([-0.25], abs=ROUNDING[precision])

    @pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
    def test_infinite_gradient_changes_neither_weights_nor_moments(
        self, ranks: list[Any], strategy: str, precision: str
    ) -> None:
        result = seen(ranks, strategy, f"infinite_{precision}", besides=("losses", "norms"))
        assert result["outcomes"] == ["not-finite", "applied"]
        assert result["scale"] == 1.0
        assert result["num_updates"] == 1
        assert result["weights"] == pytest.approx([-0.25], abs=ROUNDING[precision])

    def test_gradient_that_is_not_finite_is_named(self, ranks: list[Any], strategy: str) -> None:
        assert seen(ranks, strategy, "nonfinite_gradients") == ["scorer.weight"]

    def test_output_that_is_not_finite_is_named_on_every_rank(self, ranks: list[Any], strategy: str) -> None:
        # Infinity times a weight of zero: one of the sample's four tokens.
        where = f"the output of scorer (Linear), in 1 of 4 elements, on rank {len(ranks) - 1}"
        assert seen(ranks, strategy, "named") == f"the first tensor that is not finite is {where}"

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

    def test_schedule_counts_updates_not_micro_batches_or_ranks(self, ranks: list[Any], strategy: str) -> None:
        # accelerate #963, #1096: from 1 to 0 over ten updates. Stepped per micro batch it is at zero after the third,
        # and the weight stays at -1.18.
        result, weight = seen(ranks, strategy, "schedule"), 0.0
        assert result["rates"] == pytest.approx([1 - k / 10 for k in range(10)], rel=1e-12)
        for k in range(10):  # the toy's gradient is 1 at a weight of zero: twice the logistic function of twice it
            weight -= (1 - k / 10) * 2 / (1 + math.exp(-2 * weight))
        assert result["weight"] == pytest.approx([weight], rel=1e-6)

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
