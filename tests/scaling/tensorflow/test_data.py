"""The `tf.data` pipeline gives what PyTorch's ranks read, in their order."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from numpy.typing import NDArray

from scaling.losses import IGNORED_LABEL
from scaling.models import build_config
from scaling.tensorflow.data import evaluation_steps, training_steps
from scaling.tensorflow.devices import mirrored_strategy
from scaling.tensorflow.step_batch import StepBatch
from scaling.train_config import Packing, TrainConfig
from scaling.training_data import TrainingData, open_training_data
from strategies.decision import Decision
from strategies.load_model import resolve_model
from strategies.serialize import read_json
from tests.scaling.decisions import plan_tiny

pytestmark = pytest.mark.tensorflow


def data_of(tmp_path: Path, *, replicas: int, accumulation: int, packing: Packing = Packing.PACKED) -> TrainingData:
    plan = plan_tiny(tmp_path / "plan", "mirrored", world_size=replicas, global_batch_size=2 * replicas * accumulation)
    decision = read_json(Decision, plan)
    text = tmp_path / "text"
    text.mkdir(exist_ok=True)
    for number in range(40):
        (text / f"{number:02}.txt").write_text(f"document {number}: " + "few or many words. " * (number % 7 + 1))
    config = TrainConfig(
        plan=plan,
        out=tmp_path / "run",
        steps=1,
        data=str(text),
        packing=packing,
        cache_dir=tmp_path / "cache",
        eval_every=1,
        eval_fraction=0.2,
    )
    return open_training_data(
        config, decision, model_config=build_config(resolve_model(decision.model)), show_progress=False
    )


def of_replicas(strategy: tf.distribute.Strategy, value: Any) -> Sequence[NDArray[np.int32]]:
    return [each.numpy() for each in strategy.experimental_local_results(value)]


@pytest.mark.parametrize("packing", list(Packing))
@pytest.mark.parametrize(("replicas", "accumulation"), [(1, 1), (2, 1), (2, 3)])
def test_replicas_read_what_ranks_read(tmp_path: Path, replicas: int, accumulation: int, packing: Packing) -> None:
    data = data_of(tmp_path, replicas=replicas, accumulation=accumulation, packing=packing)
    strategy = mirrored_strategy(replicas)
    first = data.order.num_samples // data.order.global_batch_size - 1  # so that an epoch ends inside
    steps = training_steps(data, strategy=strategy, accumulation=accumulation, first_step=first)
    for step, found in enumerate(islice(steps, 3), start=first):
        for rank, (inputs, labels) in enumerate(parts(strategy, found)):
            # What PyTorch's feed gives a rank (scaling/data/feed.py), one rank at a time.
            draws = data.order.rank_draws(step, rank=rank, world_size=replicas, micro_batch_size=2)
            wanted = [data.train.batch(draw) for draw in draws]
            assert len(wanted) == accumulation
            assert inputs.shape == labels.shape == (accumulation, 2, 64)
            for index, batch in enumerate(wanted):
                rows, columns = batch.labels.shape
                np.testing.assert_array_equal(inputs[index, :rows, :columns], batch.inputs["input_ids"].numpy())
                np.testing.assert_array_equal(labels[index, :rows, :columns], batch.labels.numpy())
                assert (labels[index, :, columns:] == IGNORED_LABEL).all()


def parts(strategy: tf.distribute.Strategy, batch: StepBatch) -> Sequence[tuple[NDArray[np.int32], NDArray[np.int32]]]:
    inputs, labels = (of_replicas(strategy, each) for each in (batch.inputs, batch.labels))
    return list(zip(inputs, labels, strict=True))


@pytest.mark.parametrize("replicas", [1, 2])
def test_every_held_out_sample_is_judged_once(tmp_path: Path, replicas: int) -> None:
    data = data_of(tmp_path, replicas=replicas, accumulation=1, packing=Packing.PADDED)
    assert data.held_out is not None
    assert data.num_eval_samples % (2 * replicas), "the last batch is meant to be short"
    strategy = mirrored_strategy(replicas)
    seen = [
        tuple(row[label != IGNORED_LABEL].tolist())
        for batch in evaluation_steps(data, strategy=strategy)
        for inputs, labels in parts(strategy, batch)
        for row, label in zip(inputs[0], labels[0], strict=True)
        if (label != IGNORED_LABEL).any()
    ]
    wanted = [
        tuple(row[label != IGNORED_LABEL].tolist())
        for batch in data.evaluation_batches(rank=0, world_size=1)
        for row, label in zip(batch.inputs["input_ids"].numpy(), batch.labels.numpy(), strict=True)
    ]
    assert sorted(seen) == sorted(wanted)
    assert len(seen) == data.num_eval_samples
