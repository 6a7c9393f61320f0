"""AdamW of every engine: which parameters decay, and that cutting them into shards changes nothing."""

from __future__ import annotations

import math

import pytest
import torch
import transformers

from scaling.engines.gradient_norm import NORM_PIECE, clip_factor, global_norm, is_finite, norm_in_fp64
from scaling.engines.optimizer import OptimizerSettings, make_adamw, make_optimizer, split_by_decay
from scaling.storage_log import StorageLog
from strategies.job import Job, OptimizerName

SETTINGS = OptimizerSettings(weight_decay=0.1)
SHAPES = [(513, 257), (1001, 33), (77,), (5,)]


def steps(pieces: int, *, num_steps: int = 4) -> torch.Tensor:
    """Return the parameters after some steps on all of them laid end to end and cut into equal pieces."""
    generator = torch.Generator().manual_seed(1)
    flat = torch.cat([torch.randn(shape, generator=generator).flatten() for shape in SHAPES])
    shards = [torch.nn.Parameter(shard.clone()) for shard in flat.chunk(pieces)]
    optimizers = [make_adamw([shard], [], SETTINGS) for shard in shards]
    for _ in range(num_steps):
        gradient = torch.randn(flat.numel(), generator=generator)
        for shard, part, optimizer in zip(shards, gradient.chunk(pieces), optimizers, strict=True):
            shard.grad = part.clone()
            optimizer.param_groups[0]["lr"] = 1e-3
            optimizer.step()
    return torch.cat([shard.detach() for shard in shards])


@pytest.mark.parametrize("pieces", [2, 3, 7])
def test_adamw_is_bit_equal_for_any_number_of_shards(pieces: int) -> None:
    assert torch.equal(steps(pieces), steps(1))


def test_adamw_matches_the_formula() -> None:
    # Loshchilov and Hutter 2019, arXiv:1711.05101, algorithm 2, first step: moments cancel to the sign of the gradient.
    matrix, vector = torch.nn.Parameter(torch.full((2, 2), 3.0)), torch.nn.Parameter(torch.full((2,), 3.0))
    optimizer = make_adamw([matrix], [vector], SETTINGS)
    for group in optimizer.param_groups:
        group["lr"] = 0.01
    matrix.grad, vector.grad = torch.full((2, 2), 5.0), torch.full((2,), -5.0)
    optimizer.step()
    assert matrix.flatten().tolist() == pytest.approx([3.0 * (1 - 0.01 * 0.1) - 0.01] * 4, rel=1e-6)
    assert vector.tolist() == pytest.approx([3.0 + 0.01] * 2, rel=1e-6)


def test_adamw_makes_no_copies_in_the_step() -> None:
    parameter = torch.nn.Parameter(torch.zeros(1000, 1000))
    parameter.grad = torch.ones(1000, 1000)
    optimizer = make_adamw([parameter], [], SETTINGS)
    optimizer.step()
    log = StorageLog()
    with log:
        optimizer.step()
    assert sum(event.change_bytes for event in log.events if event.change_bytes > 0 and event.op != "adopt") < 1000


def test_only_matrices_decay() -> None:
    config = transformers.GPT2Config(vocab_size=32, n_embd=16, n_layer=1, n_head=2, n_positions=8)
    model = transformers.GPT2LMHeadModel(config)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    decayed, undecayed = (sorted(names[id(p)] for p in group) for group in split_by_decay(model))
    assert decayed == [
        "transformer.h.0.attn.c_attn.weight",
        "transformer.h.0.attn.c_proj.weight",
        "transformer.h.0.mlp.c_fc.weight",
        "transformer.h.0.mlp.c_proj.weight",
        "transformer.wpe.weight",
        "transformer.wte.weight",
    ]
    assert all(name.endswith("bias") or ".ln_" in name for name in undecayed)
    assert len(decayed) + len(undecayed) == len(names)


def test_frozen_parameters_are_in_no_group() -> None:
    model = torch.nn.Linear(3, 3)
    model.weight.requires_grad_(False)
    assert split_by_decay(model) == ([], [model.bias])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_global_norm_is_that_of_fp64_for_any_cut_into_pieces(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    shapes = ((), (0,), (3,), (NORM_PIECE,), (NORM_PIECE + 1,), (700, 500))
    gradients = [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]
    gradients.append(torch.randn(300, 400, generator=generator).to(dtype).T)  # not contiguous
    expected = math.sqrt(sum(float(each.double().square().sum()) for each in gradients))
    assert float(norm_in_fp64(gradients)) == pytest.approx(expected, rel=1e-8)
    for bad in (math.nan, math.inf):
        assert not is_finite(global_norm([*gradients, torch.tensor([1.0, bad], dtype=dtype)]))


def test_the_norm_of_elements_whose_squares_leave_fp32_is_finite() -> None:
    assert float(norm_in_fp64([torch.full((4096,), 1e25)])) == pytest.approx(64e25)


def test_global_norm_does_not_lose_digits_on_large_tensors() -> None:
    # Ten million equal numbers: the norm is their size times the root of their number, 1e-3 * sqrt(1e7).
    gradients = [torch.full((5_000_000,), 1e-3), torch.full((5000, 1000), 1e-3)]
    assert float(global_norm(gradients)) == pytest.approx(3.16227766, rel=1e-6)


def test_clip_factor_matches_torch() -> None:
    for norm in (0.5, 1.0, 5.0, 1e6):
        parameter = torch.nn.Parameter(torch.zeros(4))
        parameter.grad = torch.full((4,), norm / 2)
        torch.nn.utils.clip_grad_norm_([parameter], 1.0)
        assert float(clip_factor(torch.tensor(norm), max_norm=1.0)) * norm / 2 == pytest.approx(
            float(parameter.grad[0]), rel=1e-6
        )


def rule(name: OptimizerName, *, fused: bool = True) -> tuple[torch.nn.Parameter, torch.optim.Optimizer]:
    """Return a matrix of twos with gradients of five, and the job's rule for it with a learning rate of 0.01."""
    matrix = torch.nn.Parameter(torch.full((64, 128), 2.0))
    matrix.grad = torch.full((64, 128), 5.0)
    job = Job(seq_len=8, global_batch_size=1, optimizer=name, fused_optimizer=fused)
    optimizer = make_optimizer([matrix], [], SETTINGS, job=job)
    optimizer.param_groups[0]["lr"] = 0.01
    return matrix, optimizer


def test_lion_matches_the_formula() -> None:
    # Chen et al. 2023, arXiv:2302.06675, algorithm 2: decay, then the sign of the gradient.
    matrix, optimizer = rule(OptimizerName.LION)
    optimizer.step()
    assert matrix[0, 0].item() == pytest.approx(2.0 * (1 - 0.01 * 0.1) - 0.01, rel=1e-6)
    momentum = optimizer.state[matrix]["state1"]
    assert float(momentum[0, 0]) == pytest.approx(0.01 * 5.0, rel=1e-5)


def test_8_bit_adamw_matches_the_formula_and_keeps_bytes() -> None:
    # A block of equal numbers is its own scale, so nothing is rounded: the first step of AdamW.
    matrix, optimizer = rule(OptimizerName.ADAMW_8BIT)
    optimizer.step()
    assert matrix[0, 0].item() == pytest.approx(2.0 * (1 - 0.01 * 0.1) - 0.01, rel=1e-6)
    moments = [optimizer.state[matrix][name] for name in ("state1", "state2")]
    assert all(moment.dtype == torch.uint8 and moment.shape == matrix.shape for moment in moments)


@pytest.mark.parametrize("fused", [True, False])
def test_adafactor_matches_the_formula_and_keeps_sums(fused: bool) -> None:
    # Shazeer and Stern 2018, arXiv:1804.04235, algorithm 4: equal gradients give an update of one, times the relative
    # step min(0.01, 1 / sqrt(1)) and the weights' root mean square, 2.
    matrix, optimizer = rule(OptimizerName.ADAFACTOR, fused=fused)
    optimizer.step()
    assert matrix[0, 0].item() == pytest.approx(2.0 * (1 - 0.01 * 0.1) - 0.01 * 2.0, rel=1e-4)
    sums = [state.numel() for name, state in optimizer.state[matrix].items() if name != "step"]
    assert sorted(sums) == [64, 128]
