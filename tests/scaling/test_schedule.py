"""The learning rate against transformers' schedules, and the reports about schedules that run too fast."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from scaling.errors import ConfigError
from scaling.schedule import LearningRate, ScheduleName, learning_rate_at
from scaling.train_config import TrainConfig

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


@pytest.mark.parametrize(("every", "factor"), [(1, 0.5), (3, 0.1), (20, 0.3)])
def test_step_matches_torch(every: int, factor: float) -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=2e-3)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=every, gamma=factor)
    for step in range(12):
        ours = learning_rate_at(
            step,
            peak=2e-3,
            schedule=ScheduleName.STEP,
            warmup_steps=0,
            num_steps=12,
            decay_factor=factor,
            decay_every=every,
        )
        assert ours == pytest.approx(scheduler.get_last_lr()[0], rel=1e-12)
        optimizer.step()
        scheduler.step()


def plateau_rate(tmp_path: Path, *, patience: int) -> LearningRate:
    return LearningRate(
        TrainConfig(
            plan=tmp_path,
            out=tmp_path,
            steps=100,
            learning_rate=2e-3,
            schedule=ScheduleName.PLATEAU,
            eval_every=1,
            decay_factor=0.5,
            patience=patience,
        )
    )


LOSSES = [3.0, 2.5, 2.5, 2.4999, 2.6, 2.0, 2.1, 2.2, 2.3, 1.99999, 2.0, 2.0, 1.5, 1.6, 1.6, 1.6, 1.6, 1.6, 1.6]


@pytest.mark.parametrize("patience", [0, 1, 2, 3])
def test_plateau_matches_torch(tmp_path: Path, patience: int) -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=2e-3)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=patience)
    ours = plateau_rate(tmp_path, patience=patience)
    seen = []
    for updates, loss in enumerate(LOSSES):
        assert ours.at(updates) == pytest.approx(optimizer.param_groups[0]["lr"], rel=1e-12)
        seen.append(ours.at(updates))
        ours.observe(loss)
        scheduler.step(loss)
    assert len(set(seen)) > 1


@pytest.mark.parametrize("stop", range(len(LOSSES)))
def test_plateau_goes_on_from_its_state_as_if_uninterrupted(tmp_path: Path, stop: int) -> None:
    whole, before, after = (plateau_rate(tmp_path, patience=1) for _ in range(3))
    for loss in LOSSES:
        whole.observe(loss)
    for loss in LOSSES[:stop]:
        before.observe(loss)
    after.restore(json.loads(json.dumps(before.state())))
    for loss in LOSSES[stop:]:
        after.observe(loss)
    assert after.at(50) == whole.at(50)
    assert after.state() == whole.state()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"schedule": ScheduleName.STEP}, "schedule=step needs decay_every"),
        ({"schedule": ScheduleName.PLATEAU}, "schedule=plateau needs eval_every"),
        ({"decay_factor": 1.5}, "decay_factor=1.5 must lie between 0 and 1"),
        ({"label_smoothing": 1.0}, "label_smoothing=1.0 must be at least 0 and below 1"),
        ({"lr_scale": ("head",)}, "lr_scale='head' is no PATTERN=FACTOR"),
        ({"lr_scale": ("head=-1",)}, "lr_scale='head=-1' is no PATTERN=FACTOR with a factor from zero up"),
    ],
)
def test_settings_without_effect_or_out_of_range_are_refused(
    tmp_path: Path, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        TrainConfig(plan=tmp_path, out=tmp_path, steps=1, **settings)
