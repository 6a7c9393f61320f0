"""The global gradient norm and what clipping makes of it, the same for every engine that clips itself."""

from __future__ import annotations

from collections.abc import Iterator

import torch

NORM_PIECE = 2**20
"""Elements that are widened to fp64 at a time on a CPU, where the kernel copies its input; CUDA widens as it reads."""


def global_norm(gradients: list[torch.Tensor]) -> torch.Tensor:
    """Return the 2-norm over all tensors, summed in fp64, as fp32.

    DeepSpeed sums in fp64 too. In fp32 torch 2.13 on a CPU is off by 1e-5 for a million elements, 4e-4 for ten million.
    """
    return norm_in_fp64(gradients).float()


def norm_in_fp64(gradients: list[torch.Tensor]) -> torch.Tensor:
    """Return the 2-norm over all tensors of this rank, as fp64; empty ones count nothing."""
    norms = [torch.linalg.vector_norm(piece, dtype=torch.float64) for piece in _norm_pieces(gradients)]
    total: torch.Tensor = torch.linalg.vector_norm(torch.stack(norms))
    return total


def _norm_pieces(gradients: list[torch.Tensor]) -> Iterator[torch.Tensor]:
    for gradient in gradients:
        if gradient.device.type == "cpu":
            yield from torch.split(gradient.flatten(), NORM_PIECE)
        else:
            yield gradient


def clip_factor(norm: torch.Tensor, *, max_norm: float) -> torch.Tensor:
    """Return what gradients are multiplied with so that their norm is at most ``max_norm``.

    Same formula as deepspeed 0.19.8, runtime/zero/stage_1_and_2.py, unscale_and_clip_grads.
    """
    return 1.0 / torch.clamp((norm + 1e-6) / max_norm, min=1.0)
