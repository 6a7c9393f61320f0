"""The meter on small models whose bytes are counted by hand: fp32, so 4 bytes a number."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from scaling.meter import Measurement, NoMeter, StorageMeter
from scaling.ownership import Cause, Owned, Place, module_owners
from strategies.estimate import CauseBytes, MemoryProfile, Phase

WIDTH, BATCH = 64, 8
WEIGHT = 4 * WIDTH * WIDTH
HIDDEN = 4 * BATCH * WIDTH


def causes(profile: MemoryProfile, phase: Phase) -> CauseBytes:
    return next(found.causes for found in profile.phases if found.phase is phase)


def train(
    model: nn.Module,
    *,
    num_steps: int = 2,
    fused: bool = True,
    vocab_size: int | None = None,
    accumulation: int = 1,
    batch: int = BATCH,
) -> Measurement:
    """Meter a few steps of AdamW; the owners are told as an engine would."""
    meter = StorageMeter(vocab_size=vocab_size)
    optimizer = torch.optim.AdamW(model.parameters(), fused=fused, foreach=False if not fused else None)
    meter.start()
    with meter.phase(Phase.INITIALISE):
        meter.attach(lambda: module_owners(model, optimizer))
    inputs = torch.ones(batch, WIDTH)
    for _ in range(num_steps):
        for _ in range(accumulation):
            with meter.phase(Phase.FORWARD):
                loss = model(inputs).sum()
            with meter.phase(Phase.BACKWARD):
                loss.backward()
            del loss
        with meter.phase(Phase.OPTIMIZER_STEP):
            optimizer.step()
            optimizer.zero_grad()
    meter.stop()
    return meter.measurement()


def test_cause_names_every_field_of_the_estimate_in_order() -> None:
    assert [cause.value for cause in Cause] == [field.name for field in fields(CauseBytes)]


def test_states_of_one_linear_layer_match_the_count_by_hand() -> None:
    measurement = train(nn.Linear(WIDTH, WIDTH, bias=False))
    first, steady = measurement.device(step=0), measurement.device(step=1)
    assert causes(first, Phase.FORWARD).parameters == WEIGHT
    assert causes(first, Phase.FORWARD).optimizer_states == 0
    assert causes(first, Phase.BACKWARD).gradients == WEIGHT
    step = causes(first, Phase.OPTIMIZER_STEP)  # AdamW also counts its steps, in one number
    assert (step.parameters, step.gradients, step.optimizer_states) == (WEIGHT, WEIGHT, 2 * WEIGHT + 4)
    assert causes(steady, Phase.FORWARD).optimizer_states == 2 * WEIGHT + 4
    assert measurement.peak_allocated_bytes == max(phase.total_bytes for phase in steady.phases)
    assert measurement.peak_reserved_bytes is None


def test_fused_adamw_has_no_temporaries_and_the_loop_has_two_of_the_largest_weight() -> None:
    fused = causes(train(nn.Linear(WIDTH, WIDTH, bias=False)).device(step=1), Phase.OPTIMIZER_STEP)
    loop = causes(train(nn.Linear(WIDTH, WIDTH, bias=False), fused=False).device(step=1), Phase.OPTIMIZER_STEP)
    assert fused.step_temporaries == 0
    # torch 2.13, optim/adamw.py, _single_tensor_adam: exp_avg_sq.sqrt() and that divided by the bias correction.
    assert loop.step_temporaries == 2 * WEIGHT


def test_forward_keeps_the_input_of_every_layer_as_activations() -> None:
    model = nn.Sequential(*[nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3)])
    measurement = train(model)
    end = next(span for span in measurement.spans if span.phase is Phase.FORWARD).device_end
    # Saved: inputs of layers 2 and 3; the batch came from outside; the loss is one number.
    assert (end.activations, end.other) == (2 * HIDDEN + 4, HIDDEN)


def test_gradient_counts_as_gradient_from_its_creation_though_it_lives_only_inside_backward() -> None:
    model = nn.Linear(WIDTH, WIDTH, bias=False)
    model.weight.register_post_accumulate_grad_hook(_drop_gradient)  # type: ignore[no-untyped-call]
    measurement = train(model, num_steps=1)
    backward = causes(measurement.device(), Phase.BACKWARD)
    assert backward.gradients == WEIGHT
    assert next(span for span in measurement.spans if span.phase is Phase.BACKWARD).device_end.gradients == 0


def _drop_gradient(parameter: torch.Tensor) -> None:
    parameter.grad = None


def test_accumulated_gradients_exist_twice_for_a_moment() -> None:
    measurement = train(nn.Linear(WIDTH, WIDTH, bias=False), num_steps=1, accumulation=2)
    backward = [span.device for span in measurement.spans if span.phase is Phase.BACKWARD]
    assert [span.gradients for span in backward] == [WEIGHT, 2 * WEIGHT]


def test_tied_weights_count_once() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
            self.second.weight = self.first.weight

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            hidden: torch.Tensor = self.second(self.first(inputs))
            return hidden

    measurement = train(Tied())
    assert causes(measurement.device(), Phase.OPTIMIZER_STEP).parameters == WEIGHT
    assert causes(measurement.device(), Phase.OPTIMIZER_STEP).gradients == WEIGHT
    assert causes(measurement.device(), Phase.OPTIMIZER_STEP).optimizer_states == 2 * WEIGHT + 4


def test_logits_are_told_by_their_width() -> None:
    vocab_size = 1000
    measurement = train(nn.Linear(WIDTH, vocab_size, bias=False), vocab_size=vocab_size)
    assert causes(measurement.device(), Phase.FORWARD).logits == 4 * BATCH * vocab_size
    assert causes(measurement.device(), Phase.BACKWARD).gradients == 4 * WIDTH * vocab_size


class CheckpointedBlocks(nn.Module):
    """Two blocks of four layers; forward keeps the input of each."""

    def __init__(self, *, use_reentrant: bool) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(*[nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4)]) for _ in range(2)
        )
        self.use_reentrant = use_reentrant

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = inputs.requires_grad_()
        for block in self.blocks:
            hidden = checkpoint(block, hidden, use_reentrant=self.use_reentrant)
        return hidden


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_recomputed_block_is_told_from_kept_activations(use_reentrant: bool) -> None:
    batch = 512
    hidden = 4 * batch * WIDTH  # eight weights: activations decide where the peak is
    measurement = train(CheckpointedBlocks(use_reentrant=use_reentrant), num_steps=1, batch=batch)
    forward = next(span.device_end for span in measurement.spans if span.phase is Phase.FORWARD)
    assert forward.activations == hidden + 4  # the input of block 2 and the loss; that of block 1 is the batch
    assert forward.recomputed_block == 0
    # The inputs of layers 2 to 4 of one block, computed again.
    assert causes(measurement.device(), Phase.BACKWARD).recomputed_block == 3 * hidden


def test_storage_released_before_the_first_phase_ends_does_not_stay() -> None:
    meter = StorageMeter()
    meter.start()
    with meter.phase(Phase.INITIALISE):
        loaded = torch.zeros(1000)
        del loaded
    meter.stop()
    (span,) = meter.measurement().spans
    assert (span.device.other, span.device_end.total_bytes) == (4000, 0)


def test_phase_inside_another_one_ends_it_for_as_long_as_it_lasts() -> None:
    meter = StorageMeter()
    meter.start()
    with meter.phase(Phase.FORWARD):
        first = torch.zeros(10)
        with meter.phase(Phase.SAVE):
            second = torch.zeros(1000)
            del second
        third = torch.zeros(5)
    meter.stop()
    spans = meter.measurement().spans
    assert [span.phase for span in spans] == [Phase.FORWARD, Phase.SAVE, Phase.FORWARD]
    assert [span.device.total_bytes for span in spans] == [40, 4040, 60]
    assert first.numel() + third.numel() == 15


def test_memory_between_two_phases_counts_for_the_one_before() -> None:
    meter = StorageMeter()
    meter.start()
    with meter.phase(Phase.FORWARD):
        pass
    between = torch.zeros(100)
    del between
    with meter.phase(Phase.BACKWARD):
        pass
    meter.stop()
    assert [phase.total_bytes for phase in meter.profile().phases] == [400, 0]


def test_host_is_told_by_owner_and_by_what_is_computed_from_it() -> None:
    master = torch.zeros(1000)
    meter = StorageMeter()
    meter.attach(lambda: [Owned(Cause.MASTER_WEIGHTS, master, Place.HOST)])
    meter.start()
    with meter.phase(Phase.OPTIMIZER_STEP):
        on_host = master.sqrt()
        on_device = torch.zeros(10) + 1
    meter.stop()
    (host,) = meter.measurement().host().phases
    (device,) = meter.measurement().device().phases
    assert (host.causes.master_weights, host.causes.step_temporaries) == (4000, 4000)
    assert device.total_bytes == 80
    assert on_host.numel() + on_device.numel() == 1010


def test_meta_tensors_have_no_bytes() -> None:
    meter = StorageMeter()
    meter.start()
    with meter.phase(Phase.INITIALISE):
        shape_only = torch.zeros(1000, device="meta") + 1
    meter.stop()
    assert meter.profile().peak_bytes == 0
    assert shape_only.is_meta


def test_stopped_meter_measures_nothing_more() -> None:
    meter = StorageMeter()
    meter.start()
    with meter.phase(Phase.FORWARD):
        kept = torch.zeros(10)
    meter.stop()
    with meter.phase(Phase.BACKWARD):
        late = torch.zeros(1000)
    assert [span.phase for span in meter.measurement().spans] == [Phase.FORWARD]
    assert meter.profile().peak_bytes == 40
    assert kept.numel() + late.numel() == 1010


def test_stop_inside_a_phase_keeps_what_was_measured() -> None:
    meter = StorageMeter()
    meter.start()
    with meter.phase(Phase.FORWARD):
        kept = torch.zeros(10)
        meter.stop()
        late = torch.zeros(1000)
    assert meter.profile().peak_bytes == 40
    assert kept.numel() + late.numel() == 1010


def test_meter_that_is_off_has_the_same_interface() -> None:
    meter = NoMeter()
    meter.start()
    with meter.phase(Phase.FORWARD):
        pass
    meter.attach(_nothing)
    meter.stop()
    assert meter.measurement().spans == ()
    assert meter.profile().phases == ()


def _nothing() -> Iterator[Owned]:
    return iter(())


@contextmanager
def _metered(meter: StorageMeter) -> Iterator[None]:
    meter.start()
    try:
        yield
    finally:
        meter.stop()


def test_error_inside_a_phase_leaves_the_meter_usable() -> None:
    meter = StorageMeter()
    with _metered(meter):
        with pytest.raises(ZeroDivisionError), meter.phase(Phase.FORWARD):
            1 / 0  # noqa: B018
        with meter.phase(Phase.BACKWARD):
            kept = torch.zeros(10)
    assert [span.phase for span in meter.measurement().spans] == [Phase.FORWARD, Phase.BACKWARD]
    assert kept.numel() == 10
