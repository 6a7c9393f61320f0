"""What cannot be traced is refused in one line that names the operation, the module and what to do."""

from __future__ import annotations

import re

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.trace_modules import FrozenModel, PickyModel, cross_entropy, token_rows
from scaling.trace import Recompute, TraceError, TraceOptions, TracePrecision, trace_step
from strategies.errors import ScalingError


class Smoothed(FrozenModel):
    """Its 16-bit logits go into a smoothed loss."""


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(300, 8)
        self.lstm = nn.LSTM(8, 8, batch_first=True)
        self.head = nn.Linear(8, 300)

    def forward(self, tokens: Tensor) -> Tensor:
        result: Tensor = self.head(self.lstm(self.embedding(tokens))[0])
        return result


class Inner(nn.Module):
    """Holds the picky part one level down."""

    def __init__(self) -> None:
        super().__init__()
        self.picky = PickyModel()

    def forward(self, tokens: Tensor) -> Tensor:
        result: Tensor = self.picky(tokens)
        return result


def test_operation_that_needs_data_is_named_with_its_module() -> None:
    with pytest.raises(TraceError, match=re.escape("aten.nonzero.default failed in picky (PickyModel)")) as refusal:
        trace_step(Inner, token_rows(), TraceOptions(), loss=cross_entropy)
    assert "measure on real tensors" in str(refusal.value)
    assert "\n" not in str(refusal.value)
    assert isinstance(refusal.value, ScalingError)


def test_refused_module_leaves_no_patches_behind() -> None:
    before = torch.autocast.__init__, torch.is_autocast_enabled, F.has_torch_function
    with pytest.raises(TraceError):
        trace_step(PickyModel, token_rows(), TraceOptions(), loss=cross_entropy)
    assert before == (torch.autocast.__init__, torch.is_autocast_enabled, F.has_torch_function)


def test_recurrent_layers_are_refused_on_cuda_and_traced_on_cpu() -> None:
    with pytest.raises(ScalingError, match="lstm runs cuDNN kernels"):
        trace_step(Recurrent, token_rows(), TraceOptions(precision=TracePrecision.FP32), loss=cross_entropy)


def test_smoothed_loss_on_16_bit_logits_is_refused_under_autocast() -> None:
    def smoothed(module: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        logits = module(batch["tokens"]).flatten(0, 1)
        return F.cross_entropy(logits, batch["targets"].flatten(), label_smoothing=0.1)

    options = TraceOptions(precision=TracePrecision.BF16_AUTOCAST)
    with pytest.raises(ScalingError, match=re.escape("label_smoothing=0.1")):
        trace_step(Smoothed, token_rows(), options, loss=smoothed)


def test_checkpointing_without_blocks_is_refused() -> None:
    options = TraceOptions(activation_checkpointing=Recompute.FULL)
    with pytest.raises(TraceError, match="FrozenModel has no repeated blocks"):
        trace_step(FrozenModel, token_rows(), options, loss=cross_entropy)


@pytest.mark.parametrize("name", ["checkpoint_every", "num_steps", "gradient_accumulation_steps"])
def test_options_below_one_are_refused(name: str) -> None:
    with pytest.raises(TraceError, match=f"{name}=0 must be above zero"):
        TraceOptions(**{name: 0})
