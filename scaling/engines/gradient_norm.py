"""The global gradient norm and what clipping makes of it, the same for every engine that clips itself."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np
import torch

if TYPE_CHECKING:
    from numpy.typing import NDArray

NORM_PIECE = 2**20
"""Elements that are widened to fp64 at a time on a CPU, where the kernel copies its input; CUDA widens as it reads."""
NORM_ROW = 128
"""Elements that are summed in fp32 on a CPU, the rows then in fp64: a fraction of the time, and 1e-9 off."""


def global_norm(gradients: list[torch.Tensor]) -> torch.Tensor:
    """Return the 2-norm over all tensors, summed in fp64, as fp32.

    DeepSpeed sums in fp64 too. In fp32 torch 2.13 on a CPU is off by 1e-5 for a million elements, 4e-4 for ten million;
    short rows in fp32, then fp64, are not. CUDA's kernel widens as it reads.
    """
    return norm_in_fp64(gradients).float()


def norm_in_fp64(gradients: list[torch.Tensor]) -> torch.Tensor:
    """Return the 2-norm over all tensors of this rank, as fp64; empty ones count nothing."""
    total = _joined(_piece_norm(piece) for piece in _norm_pieces(gradients))
    if total.device.type == "cpu" and not math.isfinite(total):
        # The squares of elements above 1e19 leave the range of fp32, but not that of fp64.
        total = _joined(torch.linalg.vector_norm(gradient, dtype=torch.float64) for gradient in gradients)
    return total


def _joined(norms: Iterable[torch.Tensor]) -> torch.Tensor:
    total: torch.Tensor = torch.linalg.vector_norm(torch.stack(list(norms)))
    return total


def _norm_pieces(gradients: list[torch.Tensor]) -> Iterator[torch.Tensor]:
    for gradient in gradients:
        if gradient.device.type == "cpu":
            yield from torch.split(gradient.flatten(), NORM_PIECE)
        else:
            yield gradient


def _piece_norm(piece: torch.Tensor) -> torch.Tensor:
    if piece.device.type == "cpu" and piece.dtype == torch.float32 and piece.numel() >= NORM_ROW:
        return torch.tensor(_norm_by_rows(piece.numpy()), dtype=torch.float64)
    norm: torch.Tensor = torch.linalg.vector_norm(piece, dtype=torch.float64)
    return norm


def _norm_by_rows(flat: NDArray[np.float32]) -> float:
    """Return the 2-norm. In numpy: a sum over rows in torch is a tensor that a trace without a CPU does not make."""
    in_rows = len(flat) - len(flat) % NORM_ROW
    rows, rest = flat[:in_rows].reshape(-1, NORM_ROW), flat[in_rows:].astype(np.float64)
    squares = np.einsum("ij,ij->i", rows, rows)
    return math.sqrt(float(squares.sum(dtype=np.float64)) + float(rest @ rest))


def is_finite(norm: torch.Tensor) -> bool:
    """Return whether every gradient is finite; waits for the device.

    A sum of squares of fp32 numbers cannot leave the range of fp64, so only an element can make it infinite.
    """
    return math.isfinite(float(norm))


def gradient_factor(norm: torch.Tensor, *, max_norm: float, scale: float) -> torch.Tensor | None:
    """Return what scaled gradients are multiplied with: unscaled first, then clipped where ``max_norm`` is above 0.

    ``norm`` is that of the unscaled ones. None where nothing changes.
    """
    if not max_norm:
        return None if scale == 1.0 else torch.full_like(norm, 1.0 / scale)
    factor = clip_factor(norm, max_norm=max_norm)
    return factor if scale == 1.0 else factor / scale


def clip_factor(norm: torch.Tensor, *, max_norm: float) -> torch.Tensor:
    """Return what gradients are multiplied with so that their norm is at most ``max_norm``.

    Same formula as deepspeed 0.19.8, runtime/zero/stage_1_and_2.py, unscale_and_clip_grads.
    """
    return 1.0 / torch.clamp((norm + 1e-6) / max_norm, min=1.0)
