"""``scaling estimate`` in text: whether it fits and how surely, how long a step takes, and of which batch."""

from __future__ import annotations

import json
import re

import pytest
from typer.testing import CliRunner, Result

from scaling import cli
from strategies.errors import PlanError

GPUS = ["estimate", "llama-3.1-8b", "--gpus", "8", "--gpu", "H100-80GB-SXM", "--seq-len", "4096"]
ZERO2 = [*GPUS, "--strategy", "zero2", "--loss", "fused"]


def asked(*words: str) -> Result:
    return CliRunner().invoke(cli.app, list(words))


def answered(*words: str) -> str:
    result = asked(*words)
    assert result.exit_code == 0, result.output
    return result.output


def needed_gib(text: str) -> tuple[float, float]:
    """Return what the plan needs by the point estimate and at safety 0.9, as the headline says."""
    found = re.search(r"needs ([0-9.]+) GiB, ([0-9.]+) GiB at safety 0\.9, of ", text)
    assert found is not None
    return float(found[1]), float(found[2])


@pytest.mark.parametrize(
    ("share", "verdict"),
    [
        (1.1, "fits: .* left by the point estimate, .* at safety 0.9"),
        (0.5, "fits by the point estimate, .* left; does not fit at safety 0.9: .* of GPU memory too little"),
        (-0.1, "does not fit: .* of GPU memory too little"),
    ],
)
def test_an_estimate_says_whether_it_fits_by_both_measures(share: float, verdict: str) -> None:
    """A GPU of any size between what is needed by the point estimate (0) and at safety 0.9 (1), or outside of that."""
    point, sure = needed_gib(answered(*ZERO2))
    size = point + share * (sure - point)
    text = answered(*ZERO2, "--gpu-memory-gib", f"{size:.2f}")
    line = next(line for line in text.splitlines() if "fit" in line)
    assert re.fullmatch(verdict, line), line


def test_an_estimate_fits_as_its_case_says_by_the_point_estimate() -> None:
    point, sure = needed_gib(answered(*ZERO2))
    between = ["--gpu-memory-gib", f"{(point + sure) / 2:.2f}"]
    assert json.loads(answered(*ZERO2, *between, "--json"))["fits"] is True


def test_an_estimate_names_its_loss_its_batch_and_its_step_time() -> None:
    words = [*ZERO2, "--global-batch-size", "64"]
    lines = answered(*words).splitlines()
    assert lines[0].endswith("sequence 4096, global batch 64")
    assert lines[1] == "Plan: zero2, no activation checkpointing, fused loss, micro batch 1 x accumulation 8"
    seconds = json.loads(answered(*words, "--json"))["step_time_s"]
    assert lines[2].startswith(f"Predicted step: {seconds:.3g} s, ")


def test_an_estimate_without_known_rates_says_so() -> None:
    cpu = ["--gpus", "2", "--gpu", "cpu", "--gpu-memory-gib", "1", "--seq-len", "64"]
    assert "Step time is not known for cpu" in answered("estimate", "llama-demo", *cpu)


@pytest.mark.parametrize(
    ("given", "micro_batch", "steps"),
    [
        ({}, 1, 1),
        ({"micro": 4}, 4, 1),
        ({"steps": 3}, 1, 3),
        ({"global": 64}, 1, 8),
        ({"global": 64, "micro": 2}, 2, 4),
        ({"global": 64, "steps": 2}, 4, 2),
        ({"global": 64, "micro": 4, "steps": 2}, 4, 2),
    ],
)
def test_a_batch_follows_from_what_is_given(given: dict[str, int], micro_batch: int, steps: int) -> None:
    plan = json.loads(answered(*ZERO2, *_batch_flags(given), "--json"))["plan"]
    assert (plan["micro_batch_size"], plan["gradient_accumulation_steps"]) == (micro_batch, steps)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"global": 60},
            r"global_batch_size=60 is not a positive multiple of .* data_parallel_size=8",
        ),
        ({"global": 64, "micro": 3}, r"global_batch_size=64 is not a positive multiple of micro_batch_size=3"),
        (
            {"global": 64, "micro": 2, "steps": 2},
            r"global_batch_size=64 is not micro_batch_size=2 .*accumulation_steps=2 .*gpus=8 = 32; leave one",
        ),
        ({"global": 64, "steps": 3}, r"global_batch_size=64 is not .*gradient_accumulation_steps=3"),
    ],
)
def test_batches_that_contradict_each_other_are_refused(given: dict[str, int], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        CliRunner().invoke(cli.app, [*ZERO2, *_batch_flags(given)], catch_exceptions=False)


def _batch_flags(given: dict[str, int]) -> list[str]:
    names = {"global": "--global-batch-size", "micro": "--micro-batch-size", "steps": "--gradient-accumulation-steps"}
    return [word for name, value in given.items() for word in (names[name], str(value))]
