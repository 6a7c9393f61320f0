"""Dynamic loss scaling, beside torch's own."""

from __future__ import annotations

import random

import pytest
import torch

from scaling.engines import loss_scale
from scaling.engines.loss_scale import LossScaler, Outcome, UpdateState


def torch_scales(finite: list[bool], *, growth_interval: int) -> list[float]:
    """Return the scale after each step by torch.amp.GradScaler, whose optimizer meets such gradients."""
    scaler = torch.amp.GradScaler("cpu", growth_interval=growth_interval)
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    scales = []
    for is_finite in finite:
        weight.grad = scaler.scale(torch.tensor([1.0 if is_finite else float("inf")]))
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
    return scales


def test_scale_matches_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loss_scale, "GROWTH_STEPS", 3)
    generator = random.Random(0)
    finite = [generator.random() < 0.8 for _ in range(200)]
    scaler, scales = LossScaler(is_dynamic=True), []
    for is_finite in finite:
        scaler.update(is_finite=is_finite)
        scales.append(scaler.scale)
    assert scales == torch_scales(finite, growth_interval=3)
    assert len(set(scales)) > 5  # it went up and down
    assert scaler.state.num_updates == sum(finite)
    assert scaler.state.num_skipped == len(finite) - sum(finite)


def test_defaults_are_those_of_torch() -> None:
    scaler = torch.amp.GradScaler("cpu")
    assert LossScaler(is_dynamic=True).scale == scaler.get_scale()
    assert (scaler.get_growth_factor(), 1 / scaler.get_backoff_factor()) == (loss_scale.FACTOR, loss_scale.FACTOR)
    assert scaler.get_growth_interval() == loss_scale.GROWTH_STEPS


def test_a_gradient_that_no_scale_helps_is_no_overflow() -> None:
    scaler = LossScaler(is_dynamic=True)
    scaler.state = UpdateState(scale=2.0)
    outcomes = [scaler.update(is_finite=False) for _ in range(3)]
    assert outcomes == [Outcome.OVERFLOW, Outcome.NOT_FINITE, Outcome.NOT_FINITE]
    assert scaler.scale == 1.0
    assert scaler.state.skipped_in_a_row == 3


def test_nothing_is_scaled_outside_fp16() -> None:
    scaler = LossScaler(is_dynamic=False)
    outcomes = [scaler.update(is_finite=is_finite) for is_finite in (True, False, True)]
    assert outcomes == [Outcome.APPLIED, Outcome.NOT_FINITE, Outcome.APPLIED]
    assert scaler.state == UpdateState(scale=1.0, num_updates=2, num_skipped=1, since_change=1)
