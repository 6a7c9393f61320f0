"""What counts as alike, and what the certificate says."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from scaling.parity.certificate import (
    Certificate,
    Limits,
    Row,
    largest_relative_difference,
    limits_for,
    rows_of,
)
from scaling.parity.plain import Trajectory
from scaling.parity.ranks import Outcome
from scaling.parity.table import lines, verdict
from scaling.parity.variants import LeftOut
from strategies.job import Job, OptimizerName, Precision

JOB = Job(seq_len=8, global_batch_size=4, precision=Precision.FP32, optimizer=OptimizerName.SGD)
PLAIN = Trajectory(losses=(4.0, 2.0), norms=(1.0, 0.5), parameters={"w": torch.zeros(2)})
EQUAL = Outcome(losses=(4.0, 2.0), norms=(1.0, 0.5), parameter_difference=0.0, fingerprint="a", seconds=1.0)


def rows(**outcomes: Outcome) -> dict[str, Row]:
    found = rows_of(outcomes, PLAIN, limits=limits_for(JOB), accumulations=dict.fromkeys(outcomes, 3))
    return {row.name: row for row in found}


def certificate(**outcomes: Outcome) -> Certificate:
    return Certificate(
        model="toy",
        ranks=2,
        job=JOB,
        steps=2,
        first_loss=4.0,
        last_loss=2.0,
        limits=limits_for(JOB),
        rows=tuple(rows(**outcomes).values()),
        left_out=(LeftOut(name="zero3", reason="DeepSpeed is not installed"),),
        failed=(),
        versions={},
    )


def test_limits_are_those_of_a_few_fp32_roundings_and_wider_for_adam() -> None:
    assert limits_for(JOB) == Limits(loss=1e-6, norm=1e-6, parameter=1e-6)
    assert limits_for(replace(JOB, optimizer=OptimizerName.ADAMW)) == Limits(loss=1e-6, norm=1e-6, parameter=2e-4)
    assert limits_for(replace(JOB, precision=Precision.BF16)) == Limits(loss=1e-2, norm=None, parameter=None)


def test_the_largest_step_counts_relative_to_what_is_expected() -> None:
    assert largest_relative_difference([4.0, 2.5, 1.0], [4.0, 2.0, 1.1]) == pytest.approx(0.25)
    assert largest_relative_difference([0.0], [0.0]) == 0.0
    assert largest_relative_difference([1e-12], [0.0]) == math.inf


@pytest.mark.parametrize(
    "changed",
    [
        replace(EQUAL, losses=(4.0, 2.00001)),
        replace(EQUAL, losses=(math.nan, 2.0)),
        replace(EQUAL, norms=(1.0, math.inf)),
        replace(EQUAL, norms=(1.00001, 0.5)),
        replace(EQUAL, parameter_difference=2e-6),
        replace(EQUAL, parameter_difference=math.nan),
    ],
    ids=lambda outcome: str((outcome.losses, outcome.norms, outcome.parameter_difference)),
)
def test_one_number_beyond_its_limit_is_not_alike(changed: Outcome) -> None:
    found = rows(ddp=EQUAL, zero1=changed)
    assert found["ddp"].alike
    assert not found["zero1"].alike


def test_a_run_that_is_not_finite_is_not_alike_even_where_plain_pytorch_is_not_either() -> None:
    plain = replace(PLAIN, losses=(4.0, math.nan))
    (row,) = rows_of(
        {"ddp": replace(EQUAL, losses=(4.0, math.nan))}, plain, limits=limits_for(JOB), accumulations={"ddp": 1}
    )
    assert not row.alike


def test_equal_bits_are_told_by_the_first_variant_that_has_them() -> None:
    found = rows(ddp=EQUAL, zero1=EQUAL, zero2=replace(EQUAL, fingerprint="b"))
    assert {name: row.same_bits_as for name, row in found.items()} == {"ddp": "ddp", "zero1": "ddp", "zero2": "zero2"}


def test_the_verdict_names_who_differs() -> None:
    assert verdict(certificate(ddp=EQUAL, zero1=EQUAL)).startswith("alike: all 2 train the same model")
    differing = certificate(ddp=EQUAL, zero1=replace(EQUAL, parameter_difference=1.0))
    assert verdict(differing).startswith("NOT alike: zero1")
    assert not differing.alike
    broken = replace(certificate(ddp=EQUAL), failed=(LeftOut(name="fsdp2", reason="it broke"),))
    assert verdict(broken).startswith("NOT alike: fsdp2")
    assert not broken.alike


def test_what_was_not_run_is_printed_with_its_reason() -> None:
    printed = "\n".join(lines(certificate(ddp=EQUAL)))
    assert "not run: zero3: DeepSpeed is not installed" in printed
    assert "Adam" not in printed
    of_adam = replace(certificate(ddp=EQUAL), job=replace(JOB, optimizer=OptimizerName.ADAMW))
    assert "Adam divides a gradient by its own size" in "\n".join(lines(of_adam))
