"""Operators whose meta kernels refuse or give other results than the emulated device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

aten: Any = torch.ops.aten


class MetaResults(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Corrects what operators on meta tensors return. Enter it before the log, which then sees corrected results."""

    def __init__(self, device: str) -> None:
        """`device`: ``cuda`` or ``cpu``."""
        super().__init__()  # type: ignore[no-untyped-call]
        self._corrections: dict[Any, Callable[..., Any]] = {
            aten._grouped_mm.default: _grouped_mm,
            aten._fused_sgd_.default: _update_in_place,
        }
        if device == "cpu":
            self._corrections[aten.native_layer_norm.default] = _cpu_layer_norm

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if any(hasattr(kind, "__tensor_flatten__") for kind in types):
            return NotImplemented  # DTensor comes back here with its inner tensors
        correction = self._corrections.get(func)
        if correction is None or _first_tensor(args).device.type != "meta":
            return func(*args, **(kwargs or {}))
        return correction(*args, **(kwargs or {}))


def _first_tensor(args: tuple[Any, ...]) -> Tensor:
    first: Any = args[0]
    tensor: Tensor = first[0] if isinstance(first, list | tuple) else first
    return tensor


def _update_in_place(*_: Any, **__: Any) -> None:
    """Allocate nothing, as the fused kernel does; torch has no meta kernel for SGD's, unlike AdamW's."""


def _grouped_mm(
    first: Tensor, second: Tensor, offs: Tensor | None = None, bias: Tensor | None = None, out_dtype: Any = None
) -> Tensor:
    """Products of each expert's rows with its matrix in any format; the meta kernel knows bfloat16 alone.

    Source: torch 2.13, ATen/native/GroupedMMUtils.h: other formats run one product after the other into one output.
    """
    if first.dtype == torch.bfloat16 or out_dtype not in (None, first.dtype):
        out: Tensor = aten._grouped_mm.default(first, second, offs, bias, out_dtype)
        return out
    rows, columns = first.shape[-2], second.shape[-1]
    both_flat = first.dim() == 2 and second.dim() == 2
    groups = [offs.shape[0]] if both_flat and offs is not None else list(first.shape[:-2])
    return first.new_empty([*groups, rows, columns])


def _cpu_layer_norm(
    input: Tensor, shape: list[int], weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """A CPU keeps mean and deviation in the input's format unless the weight has another; CUDA and meta in fp32."""
    out, mean, deviation = aten.native_layer_norm.default(input, shape, weight, bias, eps)
    if weight is not None and weight.dtype != input.dtype:
        return out, mean, deviation
    return out, mean.to(input.dtype), deviation.to(input.dtype)
