"""What DDP holds: gradients once, in its buckets, however many micro batches a step has."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import nn
from transformers.modeling_outputs import CausalLMOutput

from scaling.batch import causal_batch
from scaling.engines.ddp import DdpEngine
from scaling.engines.optimizer import OptimizerSettings
from scaling.launch_env import LaunchEnvironment, join_process_group, leave_process_group
from scaling.loop import train_step
from scaling.meter import Measurement, StorageMeter
from strategies.estimate import Phase
from strategies.job import Precision
from tests.scaling.decisions import toy_decision

pytestmark = pytest.mark.distributed
WIDTH, NUM_LAYERS = 256, 20
NUM_PARAMS = NUM_LAYERS * WIDTH**2


class Deep(nn.Module):
    """Many equal matrices and hardly any activations."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(NUM_LAYERS))

    def forward(self, input_ids: torch.Tensor) -> CausalLMOutput:
        hidden = nn.functional.one_hot(input_ids, WIDTH).to(self.layers[0].weight.dtype)
        for layer in self.layers:
            hidden = layer(hidden)
        return CausalLMOutput(logits=hidden)


@pytest.fixture(autouse=True)
def _process_group() -> Iterator[None]:
    alone = LaunchEnvironment(rank=0, local_rank=0, world_size=1, local_world_size=1, is_launched=False)
    join_process_group(alone, device=torch.device("cpu"), timeout_s=60)
    yield
    leave_process_group(alone)


def measure(*, precision: Precision, accumulation: int) -> Measurement:
    model = Deep().to(torch.float32 if precision is Precision.FP32 else torch.bfloat16)
    meter = StorageMeter()
    meter.start()
    with meter.phase(Phase.INITIALISE):
        engine = DdpEngine(
            model,
            decision=toy_decision("ddp", world_size=1, accumulation=accumulation, precision=precision),
            settings=OptimizerSettings(weight_decay=0.0),
            device=torch.device("cpu"),
            meter=meter,
        )
    meter.attach(engine.owners)
    engine.set_learning_rate(1e-4)
    for _ in range(4):
        train_step(engine, [causal_batch(torch.tensor([[1, 2, 3]]))] * accumulation)
    meter.stop()
    engine.close()
    return meter.measurement()


@pytest.mark.parametrize("accumulation", [1, 3])
def test_fp32_holds_16_bytes_a_parameter_while_gradients_live(accumulation: int) -> None:
    """One rank drops its gradients after the step: the first forward of the next one holds weights and moments."""
    # Rajbhandari et al. 2020, arXiv:1910.02054, section 3.1, in fp32: weight 4, gradient 4, two moments 8.
    measurement = measure(precision=Precision.FP32, accumulation=accumulation)
    for step in (1, 2, 3):
        held = {phase.phase: phase.total_bytes / NUM_PARAMS for phase in measurement.device(step=step).phases}
        assert 16.0 <= held[Phase.BACKWARD] < 16.5
        assert 16.0 <= held[Phase.OPTIMIZER_STEP] < 16.5
        in_forward = 12.0 if accumulation == 1 else 16.0
        assert in_forward <= held[Phase.FORWARD] < in_forward + 0.5


@pytest.mark.parametrize("accumulation", [1, 3])
def test_bf16_holds_16_bytes_a_parameter_and_widens_gradients_in_part(accumulation: int) -> None:
    # The same source: weight 2, gradient 2, fp32 master 4, two moments 8. In the step one of 20 matrices is widened.
    measurement = measure(precision=Precision.BF16, accumulation=accumulation)
    for step in (1, 2, 3):
        by_phase = {phase.phase: phase.causes for phase in measurement.device(step=step).phases}
        for phase, causes in by_phase.items():
            limit = 16.5 + (4 / NUM_LAYERS if phase is Phase.OPTIMIZER_STEP else 0)
            gradients = 2.0 if phase is Phase.FORWARD and accumulation == 1 else 0.0  # dropped after the step before
            assert 16.0 - gradients <= causes.total_bytes / NUM_PARAMS < limit - gradients, (step, phase)
        states = by_phase[Phase.OPTIMIZER_STEP]
        assert states.parameters == states.gradients == 2 * NUM_PARAMS
        assert states.master_weights == 4 * NUM_PARAMS
        assert states.optimizer_states == pytest.approx(8 * NUM_PARAMS, abs=1000)


def test_pure_bf16_holds_8_bytes_a_parameter() -> None:
    # Weight 2, gradient 2, two moments 4: everything is in bfloat16 and nothing is kept twice.
    measurement = measure(precision=Precision.BF16_PURE, accumulation=3)
    for step in (1, 2, 3):
        for phase in measurement.device(step=step).phases:
            assert 8.0 <= phase.total_bytes / NUM_PARAMS < 8.5, (step, phase)
            assert phase.causes.master_weights == 0
