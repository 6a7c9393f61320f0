"""A device that is full from the third step on: the run goes on and trains what it would in smaller micro batches."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.scaling.launching import TORCHRUN, succeed

pytestmark = [pytest.mark.distributed, pytest.mark.deepspeed, pytest.mark.slow]

Found = dict[str, dict[str, Any]]
WORKER = "tests.scaling.recovery.ladder_worker"


@pytest.fixture(scope="module", params=[1, 2], ids=["1 rank", "2 ranks"])
def found(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Found:
    out: Path = tmp_path_factory.mktemp("ladder") / "found.json"
    succeed([*TORCHRUN, str(request.param), "-m", WORKER, out], timeout_s=240)
    loaded: Found = json.loads(out.read_text())
    return loaded


def failed(cases: dict[str, Any]) -> dict[str, Any]:
    return {name: case for name, case in cases.items() if name != "small"}


def test_the_run_goes_on_as_if_started_with_the_smaller_micro_batch(found: Found) -> None:
    for strategy, cases in found.items():
        small = cases["small"]
        assert len(failed(cases)) >= 2
        for name, case in failed(cases).items():
            assert case["failures"] == 1, (strategy, name)  # halved once, and never tried with the larger one again
            assert case["micro_batch_size"] == 2
            # The first two steps had larger passes, so sums are rounded in another order.
            assert case["weights"] == pytest.approx(small["weights"], rel=0, abs=1e-7), (strategy, name)
            assert case["losses"] == pytest.approx(small["losses"], rel=1e-6), (strategy, name)


@pytest.mark.parametrize("found", [2], indirect=True, ids=["2 ranks"])
def test_a_rank_that_failed_in_backward_takes_part_in_the_rest_of_the_collectives(found: Found) -> None:
    for strategy in ("ddp", "zero2", "zero2 offloaded", "fsdp2"):  # zero1 reduces when backward is over
        # Gradients of the later layers were under way when the first layer's backward failed.
        assert min(found[strategy]["backward on [1]"]["silent"]) > 0, strategy
        assert min(found[strategy]["backward on [0, 1]"]["silent"]) > 0, strategy
