"""What a traced step is to do: number formats, activation checkpointing, steps, whose kernels."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

import torch

from scaling.trace.errors import TraceError

Kernels = Literal["cuda", "cpu"]


class TracePrecision(StrEnum):
    """Formats of weights and of the computation. What the optimizer keeps is the engine's matter."""

    FP32 = "fp32"
    BF16 = "bf16"
    """Weights, gradients and computation in bfloat16."""
    FP16 = "fp16"
    BF16_AUTOCAST = "bf16-autocast"
    """fp32 weights and gradients, bfloat16 computation where autocast says so."""
    FP16_AUTOCAST = "fp16-autocast"

    @property
    def weight_dtype(self) -> torch.dtype:
        return {TracePrecision.BF16: torch.bfloat16, TracePrecision.FP16: torch.float16}.get(self, torch.float32)

    @property
    def autocast_dtype(self) -> torch.dtype | None:
        dtypes = {TracePrecision.BF16_AUTOCAST: torch.bfloat16, TracePrecision.FP16_AUTOCAST: torch.float16}
        return dtypes.get(self)


class Recompute(StrEnum):
    """Which activations forward drops and backward computes again."""

    NONE = "none"
    FULL = "full"
    """Blocks keep their input only."""
    SELECTIVE = "selective"
    """Blocks keep their input and the outputs of fused attention and of every second linear layer, as in torchtitan."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceOptions:
    """Settings of a traced run; the defaults are one GPU, bf16 weights, first and second step."""

    precision: TracePrecision = TracePrecision.BF16
    activation_checkpointing: Recompute = Recompute.NONE
    checkpoint_every: int = 1
    """Blocks 0, k, 2k, ... are checkpointed; the others keep everything."""
    kernels: Kernels = "cuda"
    """Whose attention, dropout and autocast the tensors without data go through."""
    num_steps: int = 2
    """Optimizer states appear at the end of the first step, so only the second shows the steady peak."""
    gradient_accumulation_steps: int = 1
    evaluate: bool = False
    """Whether a forward pass without gradients follows the last step."""

    def __post_init__(self) -> None:
        counts = {
            "checkpoint_every": self.checkpoint_every,
            "num_steps": self.num_steps,
            "gradient_accumulation_steps": self.gradient_accumulation_steps,
        }
        if bad := [f"{name}={value}" for name, value in counts.items() if value <= 0]:
            raise TraceError(f"{', '.join(bad)} must be above zero; give positive whole numbers")
