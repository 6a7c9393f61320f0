"""The learning rate against transformers' schedules, and the reports about schedules that run too fast."""

from __future__ import annotations

import pytest
import torch
import transformers

from scaling.schedule import ScheduleName, learning_rate_at

THEIRS = {
    ScheduleName.LINEAR: transformers.get_linear_schedule_with_warmup,
    ScheduleName.COSINE: transformers.get_cosine_schedule_with_warmup,
}


@pytest.mark.parametrize("schedule", THEIRS)
@pytest.mark.parametrize(("warmup_steps", "num_steps"), [(0, 10), (3, 10), (10, 10), (1, 1), (7, 100)])
def test_learning_rate_matches_transformers(schedule: ScheduleName, warmup_steps: int, num_steps: int) -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=2e-3)
    scheduler = THEIRS[schedule](optimizer, warmup_steps, num_steps)
    for step in range(num_steps):
        ours = learning_rate_at(step, peak=2e-3, schedule=schedule, warmup_steps=warmup_steps, num_steps=num_steps)
        assert ours == pytest.approx(scheduler.get_last_lr()[0], rel=1e-12)
        optimizer.step()
        scheduler.step()


def test_constant_matches_transformers() -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=2e-3)
    scheduler = transformers.get_constant_schedule_with_warmup(optimizer, 4)
    for step in range(8):
        ours = learning_rate_at(step, peak=2e-3, schedule=ScheduleName.CONSTANT, warmup_steps=4, num_steps=8)
        assert ours == pytest.approx(scheduler.get_last_lr()[0], rel=1e-12)
        optimizer.step()
        scheduler.step()


def test_linear_decay_counts_optimizer_steps() -> None:
    # accelerate #963: from 1 to 0 over ten optimizer steps of four micro batches; 1 - k / 10 after k optimizer steps.
    rates = [
        learning_rate_at(micro_batch // 4, peak=1.0, schedule=ScheduleName.LINEAR, warmup_steps=0, num_steps=10)
        for micro_batch in range(40)
    ]
    assert rates[::4] == pytest.approx([1 - k / 10 for k in range(10)])
    assert rates[39] == pytest.approx(0.1)
    assert learning_rate_at(10, peak=1.0, schedule=ScheduleName.LINEAR, warmup_steps=0, num_steps=10) == 0
