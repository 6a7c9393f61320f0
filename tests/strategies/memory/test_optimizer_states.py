"""Optimizer states against the optimizers themselves: torch 2.13, and published sizes where the library is not here."""

import pytest
import torch

from strategies.job import Job, OptimizerName, Precision
from strategies.memory.optimizer_states import flat_state_bytes, step_copy_bytes, tensor_state_bytes

SHAPES = [(64, 96), (512,), (4, 48, 32), (1, 7)]


def _state_bytes(optimizer: torch.optim.Optimizer) -> int:
    """Return the bytes of the states but for the step counters, of one number each."""
    tensors = (tensor for state in optimizer.state.values() for tensor in state.values() if torch.is_tensor(tensor))
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors if tensor.dim())


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    ("precision", "dtype"), [(Precision.FP32, torch.float32), (Precision.BF16_PURE, torch.bfloat16)]
)
@pytest.mark.parametrize("name", [OptimizerName.ADAMW, OptimizerName.SGD, OptimizerName.ADAFACTOR])
def test_state_bytes_match_torch(
    name: OptimizerName, precision: Precision, dtype: torch.dtype, shape: tuple[int, ...]
) -> None:
    weight = torch.nn.Parameter(torch.ones(shape, dtype=dtype))
    optimizer: torch.optim.Optimizer
    match name:
        case OptimizerName.ADAMW:
            optimizer = torch.optim.AdamW([weight])
        case OptimizerName.SGD:
            optimizer = torch.optim.SGD([weight], momentum=0.9)
        case _:
            optimizer = torch.optim.Adafactor([weight])
    weight.grad = torch.ones_like(weight)
    optimizer.step()
    assert tensor_state_bytes(name, shape, weight.element_size()) == _state_bytes(optimizer)


def test_8_bit_adam_takes_a_quarter_of_its_fp32_states() -> None:
    # Dettmers et al. 2022, arXiv:2110.02861: 8 bits a state with one fp32 scale a block, and fp32 for small tensors
    # (bitsandbytes, optim/optimizer.py: min_8bit_size=4096).
    large, small = (1024, 1024), (64, 63)
    assert tensor_state_bytes(OptimizerName.ADAMW_8BIT, large, 4) == 2 * 2**20 * (1 + 4 / 256)
    assert tensor_state_bytes(OptimizerName.ADAMW_8BIT, small, 4) == tensor_state_bytes(OptimizerName.ADAMW, small, 4)


def test_lion_has_half_the_states_of_adam() -> None:
    # Chen et al. 2023, arXiv:2302.06675, section 3.
    lion, adam = (
        flat_state_bytes(Job(seq_len=8, global_batch_size=1, optimizer=name), 1000)
        for name in (OptimizerName.LION, OptimizerName.ADAMW)
    )
    assert 2 * lion == adam


@pytest.mark.parametrize("name", list(OptimizerName))
def test_no_working_copy_is_larger_without_fused_kernels_than_torch_says(name: OptimizerName) -> None:
    # torch's documentation of foreach: about sizeof(params) more than a loop, which holds two copies of one tensor.
    job = Job(seq_len=8, global_batch_size=1, optimizer=name, fused_optimizer=False)
    assert step_copy_bytes(job, 1000, largest=100) <= 4 * 1000
