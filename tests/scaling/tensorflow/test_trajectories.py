"""Twenty optimizer steps against a plain PyTorch loop from the same weights and data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from scaling.batch import causal_batch
from scaling.engines.loss_scale import Outcome
from scaling.engines.optimizer import OptimizerSettings
from scaling.parity.plain import Trajectory, train_plainly
from scaling.schedule import LearningRate
from scaling.tensorflow.decoder import build_decoder
from scaling.tensorflow.devices import mirrored_strategy
from scaling.tensorflow.mirrored import MirroredEngine
from scaling.tensorflow.step_batch import deal
from scaling.tensorflow.weights import load_hugging_face, parameters_by_name
from scaling.train_config import TrainConfig
from strategies.job import Job, Precision
from strategies.plan import ActivationCheckpointing
from tests.scaling.tensorflow.models import resolved, tokens, torch_model

pytestmark = pytest.mark.tensorflow

STEPS, GLOBAL_BATCH, SEQ_LEN = 20, 8, 12
CONFIG = TrainConfig(plan=Path(), out=Path(), steps=STEPS, learning_rate=3e-3, warmup_steps=3, weight_decay=0.1)
JOB = Job(seq_len=SEQ_LEN, global_batch_size=GLOBAL_BATCH, precision=Precision.FP32)
LAYOUTS = [(1, 1), (1, 4), (2, 1), (2, 4)]
"""Replicas and accumulation steps."""


def batches() -> list[tuple[Any, Any]]:
    """Inputs and labels of every step; samples have unequally many labels, so that a mean of means would show."""
    found = []
    for step in range(STEPS):
        ids = tokens((GLOBAL_BATCH, SEQ_LEN), seed=step) % 10  # something to learn: only ten of the words come
        lengths = np.random.default_rng(1000 + step).integers(2, SEQ_LEN + 1, GLOBAL_BATCH)
        found.append((ids, np.where(np.arange(SEQ_LEN) < lengths[:, None], ids, -100).astype(np.int32)))
    return found


@pytest.fixture(scope="module", params=["llama", "gpt2"])
def plain(request: pytest.FixtureRequest) -> tuple[str, Trajectory]:
    """The trajectory of the plain loop, and the model's name."""
    steps = [
        [causal_batch(torch.from_numpy(ids).long(), labels=torch.from_numpy(labels).long())]
        for ids, labels in batches()
    ]
    model = torch_model(resolved(request.param))
    return request.param, train_plainly(model, steps, config=CONFIG, job=JOB, task=None)


def train(
    name: str,
    *,
    num_replicas: int,
    accumulation: int,
    precision: Precision = Precision.FP32,
    checkpointing: ActivationCheckpointing = ActivationCheckpointing.NONE,
) -> tuple[list[float], list[float], MirroredEngine]:
    """Return losses, norms and the engine after all steps."""
    model, strategy = resolved(name), mirrored_strategy(num_replicas)
    with strategy.scope():
        decoder = build_decoder(model, precision=precision, activation_checkpointing=checkpointing)
    load_hugging_face(decoder, torch_model(model))
    engine = MirroredEngine(
        decoder,
        strategy=strategy,
        job=Job(seq_len=SEQ_LEN, global_batch_size=GLOBAL_BATCH, precision=precision),
        settings=OptimizerSettings(weight_decay=CONFIG.weight_decay),
        gradient_accumulation_steps=accumulation,
        parameters=parameters_by_name(decoder),
    )
    rate, losses, norms = LearningRate(CONFIG), [], []
    micro_batch_size = GLOBAL_BATCH // (num_replicas * accumulation)
    for ids, labels in batches():
        batch = deal(strategy, ids, labels, micro_batch_size=micro_batch_size)
        result = engine.train_step(batch, learning_rate=rate.at(engine.update_state.num_updates))
        assert result.outcome is Outcome.APPLIED
        losses.append(result.mean_loss)
        norms.append(result.grad_norm)
    return losses, norms, engine


def distance(engine: MirroredEngine, expected: Trajectory) -> float:
    """Return how far all weights are from the expected ones, as a share of how far those have moved.

    Without the biases of keys: their gradient is zero in exact arithmetic, and Adam makes whole steps of its rounding.
    PyTorch cut into other micro batches is as far from itself there.
    """
    start = {name: each.detach().numpy() for name, each in torch_model(engine.model.resolved).named_parameters()}
    squares = np.zeros(2)
    for name, weight in engine.weights.items():
        found, reached, first = weight.numpy(), expected.parameters[name].numpy(), start[name]
        if name.endswith("c_attn.bias"):
            found, reached, first = (np.delete(each.reshape(3, -1), 1, axis=0) for each in (found, reached, first))
        squares += np.square(found - reached).sum(), np.square(reached - first).sum()
    return float(np.sqrt(squares[0] / squares[1]))


def test_losses_match_plain_pytorch(plain: tuple[str, Trajectory]) -> None:
    name, expected = plain
    runs = {layout: train(name, num_replicas=layout[0], accumulation=layout[1]) for layout in LAYOUTS}
    for losses, norms, engine in runs.values():
        assert losses == pytest.approx(expected.losses, rel=1e-5)
        assert norms == pytest.approx(expected.norms, rel=1e-4)
        assert distance(engine, expected) <= 1e-5
    for accumulation in (1, 4):
        assert runs[1, accumulation][0] == pytest.approx(runs[2, accumulation][0], rel=1e-5)
    assert expected.losses[-1] < 0.85 * expected.losses[0]
    assert max(expected.norms) > JOB.gradient_clipping  # clipping had something to do


def test_replicas_hold_the_same_weights() -> None:
    _, _, engine = train("llama", num_replicas=2, accumulation=1)
    for each, weight in engine.weights.items():
        first, second = (part.numpy() for part in engine.strategy.experimental_local_results(weight))
        assert np.array_equal(first, second), each


@pytest.mark.parametrize("precision", [Precision.BF16_AUTOCAST, Precision.FP16_AUTOCAST])
def test_mixed_precision_follows_fp32(plain: tuple[str, Trajectory], precision: Precision) -> None:
    name, expected = plain
    losses, _, engine = train(
        name, num_replicas=2, accumulation=2, precision=precision, checkpointing=ActivationCheckpointing.FULL
    )
    assert losses == pytest.approx(expected.losses, rel=0.02)
    assert engine.update_state.num_updates == STEPS
