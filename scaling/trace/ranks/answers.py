"""What an optimizer step is told about gradients that have no values."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class FiniteGradients(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Answers what a step asks about its gradients: no overflow, a norm of zero. Enter it after the log."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default and args[0].device.type == "meta":
            return False if args[0].dtype == torch.bool else 0
        return func(*args, **(kwargs or {}))
