"""Checkpoints of TensorFlow runs: what comes back is what was there, on any number of replicas, or a refusal."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from numpy.typing import NDArray

from scaling.checkpoint.errors import CheckpointError
from scaling.engines.loss_scale import UpdateState
from scaling.engines.optimizer import OptimizerSettings
from scaling.tensorflow.checkpoint import Checkpoints, RunState
from scaling.tensorflow.mirrored import MirroredEngine, build_mirrored_engine
from scaling.tensorflow.step_batch import deal
from strategies.decision import Decision
from strategies.job import Precision
from strategies.load_model import resolve_model
from strategies.serialize import read_json
from tests.scaling.decisions import plan_tiny

pytestmark = pytest.mark.tensorflow


def engine_of(tmp_path: Path, *, replicas: int = 2, precision: Precision = Precision.FP32) -> MirroredEngine:
    plan = plan_tiny(tmp_path / f"plan-{replicas}-{precision}", "mirrored", world_size=replicas, precision=precision)
    decision = read_json(Decision, plan)
    return build_mirrored_engine(
        resolve_model(decision.model), decision=decision, settings=OptimizerSettings(weight_decay=0.1)
    )


def train(engine: MirroredEngine, *, first: int, last: int) -> list[float]:
    """Run steps over random tokens that depend on the step alone; return the losses."""
    losses = []
    for step in range(first, last):
        tokens = np.random.default_rng(step).integers(0, 288, (8, 64)).astype(np.int32)
        batch = deal(engine.strategy, tokens, tokens, micro_batch_size=2)
        losses.append(engine.train_step(batch, learning_rate=1e-2).mean_loss)
    return losses


def state_of(engine: MirroredEngine) -> dict[str, NDArray[np.float32]]:
    return {name: variable.numpy() for name, variable in (engine.weights | engine.moments).items()}


def assert_same_bits(one: dict[str, NDArray[np.float32]], other: dict[str, NDArray[np.float32]]) -> None:
    assert one.keys() == other.keys()
    for name, value in one.items():
        np.testing.assert_array_equal(value.view(np.uint32), other[name].view(np.uint32), err_msg=name)


def test_a_run_goes_on_bit_by_bit(tmp_path: Path) -> None:
    one = engine_of(tmp_path, precision=Precision.FP16_AUTOCAST)  # so that there is a loss scale
    train(one, first=0, last=2)
    state = RunState(step=2, num_samples_seen=16, update_state=one.update_state, schedule={"factor": 0.1})
    Checkpoints(one, tmp_path / "checkpoints", keep_last=2).save(state)
    losses = train(one, first=2, last=4)

    other = engine_of(tmp_path, precision=Precision.FP16_AUTOCAST)
    restored = Checkpoints(other, tmp_path / "checkpoints", keep_last=2).restore_latest()
    assert restored == state
    assert other.update_state == state.update_state
    assert other.update_state.scale == 2.0**16
    assert train(other, first=2, last=4) == losses
    assert_same_bits(state_of(one), state_of(other))


def test_another_number_of_replicas_goes_on(tmp_path: Path) -> None:
    two, one = engine_of(tmp_path, replicas=2), engine_of(tmp_path, replicas=1)
    train(two, first=0, last=2)
    state = RunState(step=2, num_samples_seen=16, update_state=two.update_state)
    Checkpoints(two, tmp_path / "checkpoints", keep_last=2).save(state)
    assert Checkpoints(one, tmp_path / "checkpoints", keep_last=2).restore_latest() == state
    assert_same_bits(state_of(two), state_of(one))
    np.testing.assert_allclose(train(one, first=2, last=4), train(two, first=2, last=4), rtol=1e-5)


def test_a_damaged_checkpoint_is_passed_over(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    engine = engine_of(tmp_path)
    checkpoints = Checkpoints(engine, tmp_path / "checkpoints", keep_last=2, identity={"seed": "0"})
    states = []
    for step in (1, 2, 3):
        train(engine, first=step - 1, last=step)
        states.append(RunState(step=step, num_samples_seen=8 * step, update_state=engine.update_state))
        checkpoints.save(states[-1])
    folder = tmp_path / "checkpoints"
    assert sorted(path.stem for path in folder.glob("*.index")) == ["ckpt-2", "ckpt-3"]

    (data,) = folder.glob("ckpt-3.data*")
    content = bytearray(data.read_bytes())
    content[len(content) // 2] ^= 1
    data.write_bytes(content)
    with caplog.at_level(logging.WARNING):
        assert Checkpoints(engine, folder, keep_last=2, identity={"seed": "0"}).restore_latest() == states[1]
    assert "ckpt-3 is damaged" in caplog.text

    with pytest.raises(CheckpointError, match="ckpt-2 is of another run: seed was 0 and is 1; change it back"):
        Checkpoints(engine, folder, keep_last=2, identity={"seed": "1"}).restore(folder / "ckpt-2")
    with pytest.raises(CheckpointError, match=r"ckpt-9 is no checkpoint of TensorFlow; give its path without"):
        checkpoints.restore(folder / "ckpt-9")
    (data,) = folder.glob("ckpt-2.data*")
    data.write_bytes(data.read_bytes()[:100])
    with pytest.raises(CheckpointError, match=r"all checkpoints in .* are damaged \(ckpt-3, ckpt-2\); move them away"):
        Checkpoints(engine, folder, keep_last=2).restore_latest()


def test_what_is_there_counts_and_not_what_the_manager_has_noted(tmp_path: Path) -> None:
    engine, folder = engine_of(tmp_path), tmp_path / "checkpoints"
    checkpoints, states = Checkpoints(engine, folder, keep_last=0), []
    for step in (9, 10):
        states.append(RunState(step=step, num_samples_seen=8 * step, update_state=engine.update_state))
        checkpoints.save(states[-1])
    (noted := folder / "checkpoint").rename(tmp_path / "noted")
    assert Checkpoints(engine, folder, keep_last=0).restore_latest() == states[1]
    (tmp_path / "noted").rename(noted)
    for path in folder.glob("ckpt-10.*"):
        path.unlink()
    assert Checkpoints(engine, folder, keep_last=0).restore_latest() == states[0]


def test_a_checkpoint_of_something_else_is_refused(tmp_path: Path) -> None:
    engine = engine_of(tmp_path)
    path = Path(tf.train.Checkpoint(weight=tf.Variable(1.0)).write(str(tmp_path / "theirs")))
    with pytest.raises(CheckpointError, match="theirs holds no run of this trainer"):
        Checkpoints(engine, tmp_path / "checkpoints", keep_last=2).restore(path)


def test_another_model_is_refused(tmp_path: Path) -> None:
    engine = engine_of(tmp_path)
    folder = tmp_path / "checkpoints"
    state = RunState(step=1, num_samples_seen=8, update_state=UpdateState(scale=1.0))
    path = Checkpoints(engine, folder, keep_last=2).save(state)
    engine.weights.pop("lm_head.weight")  # as if it had none
    with pytest.raises(CheckpointError, match="ckpt-1 is of another model or optimizer"):
        Checkpoints(engine, folder, keep_last=2).restore(path)
