"""The emulated autocast against torch's own: its lists in C++, and what it does on real CPU tensors."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from scaling.storage_log import StorageLog
from scaling.trace import autocast_lists as lists
from scaling.trace.emulation import emulated_device

HEADER = Path(torch.__file__).parent / "include" / "ATen" / "autocast_mode.h"

# Reached by other names from Python, or from inside other operators only.
NOT_CALLED_FROM_PYTHON = {
    "_thnn_fused_lstm_cell",
    "_thnn_fused_gru_cell",
    "_scaled_dot_product_flash_attention",
    "pdist",
}
PYTHON_NAMES = {"__matmul__", "__rmatmul__", "__pow__", "__rpow__", "nll_loss_nd"}


@pytest.mark.parametrize(
    ("macro", "ours"),
    [
        ("AT_FORALL_LOWER_PRECISION_FP", lists.CUDA_LOWER),
        ("AT_FORALL_FP32", lists.CUDA_FP32),
        ("AT_FORALL_FP32_SET_OPT_DTYPE", lists.CUDA_FP32_RESULT),
        ("AT_FORALL_PROMOTE", lists.CUDA_WIDEST),
    ],
)
def test_cuda_list_matches_the_header_of_the_installed_torch(macro: str, ours: str) -> None:
    body = re.search(rf"#define {macro}\(_\)(.*?)\n\n", HEADER.read_text(), re.DOTALL)
    assert body is not None
    theirs = set(re.findall(r"_\((\w+)", body.group(1)))
    assert set(ours.split()) - PYTHON_NAMES == theirs - (NOT_CALLED_FROM_PYTHON - set(ours.split()))


def _matrices(*, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.ones(4, 4, dtype=dtype, requires_grad=True)


TARGET = torch.zeros(4, dtype=torch.long)
CALLS: dict[str, Callable[[Tensor], Tensor]] = {
    "linear": lambda x: F.linear(x, x),
    "matmul operator": lambda x: x @ x,
    "reflected matmul": lambda x: torch.Tensor.__rmatmul__(x, x),
    "bmm": lambda x: torch.bmm(x[None], x[None]),
    "einsum": lambda x: torch.einsum("ij,jk->ik", x, x),
    "conv1d": lambda x: F.conv1d(x[None], x[:, :, None]),
    "prelu": lambda x: F.prelu(x, x[0]),
    "attention": lambda x: F.scaled_dot_product_attention(x[None, None], x[None, None], x[None, None]),
    "softmax": lambda x: F.softmax(x, -1),
    "log_softmax": lambda x: x.log_softmax(-1),
    "layer_norm": lambda x: F.layer_norm(x, (4,)),
    "rms_norm": lambda x: F.rms_norm(x, (4,)),
    "power": lambda x: x**2,
    "exp": lambda x: x.exp(),
    "sum": lambda x: x.sum(),
    "prod": lambda x: x.prod(),
    "norm": lambda x: x.norm(),
    "normalize": lambda x: F.normalize(x),
    "mse_loss": lambda x: F.mse_loss(x, x),
    "smooth_l1_loss": lambda x: F.smooth_l1_loss(x, x),
    "cross_entropy": lambda x: F.cross_entropy(x, TARGET.to(x.device)),
    "nll_loss": lambda x: F.nll_loss(x, TARGET.to(x.device)),
    "cat of two formats": lambda x: torch.cat([x.float(), x.bfloat16()]),
    "gelu": lambda x: F.gelu(x),
    "interpolate": lambda x: F.interpolate(x[None], scale_factor=2.0, mode="linear"),
    "multi-head attention": lambda x: F.multi_head_attention_forward(
        x, x, x, 4, 2, torch.ones(12, 4, device=x.device), None, None, None, False, 0.0,
        torch.ones(4, 4, device=x.device), None, need_weights=False,
    )[0],
}  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", CALLS)
def test_emulated_cpu_autocast_matches_real_cpu_autocast(name: str, dtype: torch.dtype) -> None:
    call = CALLS[name]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        real = call(_matrices(dtype=dtype))
    with emulated_device("cpu"), torch.autocast("cpu", dtype=torch.bfloat16):
        emulated = call(_matrices(dtype=dtype).to("meta"))
    assert (emulated.dtype, emulated.shape) == (real.dtype, real.shape)


def test_weights_are_cast_as_often_as_by_real_autocast() -> None:
    """Once for every outermost context, whatever is nested in it."""
    real = _num_casts(torch.empty(4, 4, requires_grad=True))
    with emulated_device("cpu"):
        assert _num_casts(torch.empty(4, 4, device="meta", requires_grad=True)) == real


def _num_casts(weight: Tensor) -> int:
    x = torch.ones(4, 4, dtype=torch.bfloat16, device=weight.device)
    log = StorageLog()
    with log:
        for _ in range(2):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                F.linear(x, weight)
                with torch.autocast("cpu", dtype=torch.bfloat16):
                    F.linear(x, weight)
                F.linear(x, weight)
    return sum(event.op == "aten._to_copy.default" for event in log.events)


def test_frozen_weight_is_cast_every_time_as_torch_does() -> None:
    """cached_cast keeps casts of leaves that require gradients only (ATen/autocast_mode.cpp)."""
    from scaling.trace.autocast import AutocastRules

    rules = AutocastRules("cuda")
    frozen, trained = torch.empty(4, device="meta"), torch.empty(4, device="meta", requires_grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert rules.lowered(trained) is rules.lowered(trained)
        assert rules.lowered(frozen) is not rules.lowered(frozen)


def test_context_of_the_emulated_device_can_be_switched_off_inside() -> None:
    x = torch.empty(4, 4, device="meta")
    with emulated_device("cuda"), torch.autocast("cuda", dtype=torch.bfloat16):
        with torch.autocast("cuda", enabled=False):
            assert (x @ x).dtype is torch.float32
        assert (x @ x).dtype is torch.bfloat16
        assert torch.is_autocast_enabled("cuda")
    assert not torch.is_autocast_enabled("cpu")
