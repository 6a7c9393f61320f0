"""What a save holds beside the state: nothing on the device, a tensor or a piece on the host."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

from scaling.checkpoint.checkpoints import Checkpoints
from scaling.checkpoint.manifest import TrainingState
from scaling.checkpoint.meeting import Meeting
from scaling.checkpoint.snapshot import RunFacts
from scaling.engines.build import build_engine
from scaling.loop import train_step
from scaling.measured_ranks import measure_ranks
from scaling.meter import Meter, highest
from scaling.models import InitialWeights, build_config, build_model
from scaling.rehearsal import SETTINGS, example
from strategies.cluster import CPU_NAME, Gpu
from strategies.decision import Decision
from strategies.estimate import Phase
from strategies.load_model import load_model_spec, resolve_model
from strategies.memory.predict import predict
from strategies.plan import ActivationCheckpointing, StrategyName
from strategies.units import GIB, MIB
from tests.scaling.decisions import demo_decision
from tests.scaling.launching import succeed

pytestmark = [pytest.mark.distributed, pytest.mark.slow]


def train_and_save(decision: Decision, folder: Path, meter: Meter) -> object:
    """Train two steps, and save a checkpoint in a phase of its own."""
    config = build_config(resolve_model(decision.model))
    model = build_model(config, InitialWeights(folder=None), decision=decision, seed=0)
    device = torch.device("cpu")
    engine = build_engine(model, decision=decision, settings=SETTINGS, device=device, meter=meter)
    meter.attach(engine.owners)
    batch = example(config, decision)
    for _ in range(2):
        train_step(engine, [batch] * decision.plan.gradient_accumulation_steps)
    saved = Checkpoints(folder, RunFacts(strategy="any", seed=0, identity={}), meeting=Meeting(timeout_s=60))
    with meter.phase(Phase.EVALUATION):  # of nothing: what is there at rest
        torch.empty(1)
    with meter.phase(Phase.SAVE):
        saved.save(engine, TrainingState(step=2, num_samples_seen=2))
    return engine


def decision_for(strategy: StrategyName) -> Decision:
    gpu = Gpu(name=CPU_NAME, memory_bytes=4 * GIB)
    planned = demo_decision(strategy, checkpointing=ActivationCheckpointing.NONE, gpu=gpu, gpus=2, seq_len=64)
    spec = load_model_spec(planned.model)
    return replace(planned, estimate=predict(spec, cluster=planned.cluster, job=planned.job, plan=planned.plan))


@pytest.mark.deepspeed
@pytest.mark.parametrize("strategy", [StrategyName.DDP, StrategyName.ZERO3, StrategyName.FSDP2])
def test_a_checkpoint_holds_nothing_beside_the_state(strategy: StrategyName, tmp_path: Path) -> None:
    decision = decision_for(strategy)
    measured = highest(measure_ranks(partial(train_and_save, decision, tmp_path), world_size=2)).device()
    found = {phase.phase: phase.total_bytes for phase in measured.phases}
    assert found[Phase.SAVE] - found[Phase.EVALUATION] < 0.01 * decision.num_params  # random states: 46 KiB
    # Rajbhandari et al. 2020, arXiv:1910.02054, section 3.1: masters and two moments of the rank's part at least.
    assert found[Phase.SAVE] > 12 * decision.num_params / (1 if strategy is StrategyName.DDP else 2)
    # What the memory model says of saves is the export at the end, which gathers tensors: never less.
    predicted = {phase.phase: phase.total_bytes for phase in decision.estimate.memory.phases}
    assert found[Phase.SAVE] <= 1.01 * predicted[Phase.SAVE]


def test_an_export_holds_a_tensor_at_a_time(tmp_path: Path) -> None:
    told = json.loads(
        succeed([sys.executable, "-m", "tests.scaling.export_memory", tmp_path, "512", "11"]).splitlines()[-1]
    )
    assert told["model_bytes"] > 160 * MIB
    assert told["extra_bytes"] < 48 * MIB  # one of the largest tensors is 4 MiB
