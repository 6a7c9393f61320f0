"""fp32 masters beside 16-bit weights."""

from __future__ import annotations

import torch

from scaling.engines.master_weights import MasterWeights
from scaling.engines.optimizer import OptimizerSettings, make_adamw
from scaling.storage_log import StorageLog

SETTINGS = OptimizerSettings(weight_decay=0.1)


def weights(*shapes: tuple[int, ...]) -> list[torch.nn.Parameter]:
    torch.manual_seed(0)
    made = [torch.nn.Parameter(torch.randn(shape).bfloat16()) for shape in shapes]
    for weight in made:
        weight.grad = torch.randn(weight.shape).bfloat16()
    return made


def test_step_is_that_of_an_fp32_model_with_rounded_weights() -> None:
    ours = weights((40, 30), (7,), (300, 11))
    reference = [torch.nn.Parameter(weight.detach().float()) for weight in ours]
    their_optimizer = make_adamw(reference, [], SETTINGS)
    masters = MasterWeights(ours)
    our_optimizer = make_adamw(masters.of(ours), [], SETTINGS)
    for optimizer in (their_optimizer, our_optimizer):
        optimizer.param_groups[0]["lr"] = 1e-2
    for factor in (None, torch.tensor(0.25)):
        for weight, parameter in zip(ours, reference, strict=True):
            assert weight.grad is not None
            parameter.grad = weight.grad.float() * (1.0 if factor is None else factor)
        their_optimizer.step()
        masters.step(our_optimizer, gradient_factor=factor)
        for weight, parameter in zip(ours, reference, strict=True):
            assert torch.equal(weight, parameter.detach().bfloat16())


def test_step_widens_a_part_of_the_gradients_at_a_time() -> None:
    # 32 equal tensors: at most a sixteenth of the model, two tensors of 4 bytes an element, is widened at once.
    ours = weights(*[(100, 100)] * 32)
    masters = MasterWeights(ours)
    optimizer = make_adamw(masters.of(ours), [], SETTINGS)
    masters.step(optimizer, gradient_factor=None)  # makes the states
    log = StorageLog()
    with log:
        log.adopt(masters.masters)
        log.adopt(tensor for state in optimizer.state.values() for tensor in state.values())
        log.adopt(tensor for weight in ours for tensor in (weight, weight.grad) if tensor is not None)
        before = len(log.events)
        masters.step(optimizer, gradient_factor=None)
    live = peak = 0
    for event in log.events[before:]:
        live += event.change_bytes
        peak = max(peak, live)
    assert 2 * 40_000 <= peak < 3 * 40_000


def test_a_parameter_without_gradient_decays_like_one_with_zeros() -> None:
    unused = weights((4, 4))
    unused[0].grad = None
    with torch.no_grad():
        unused[0].fill_(64.0)
    masters = MasterWeights(unused)
    optimizer = make_adamw(masters.of(unused), [], SETTINGS)
    optimizer.param_groups[0]["lr"] = 1.0
    masters.step(optimizer, gradient_factor=None)
    assert unused[0].flatten().tolist() == [torch.tensor(64.0 * 0.9).bfloat16().item()] * 16
