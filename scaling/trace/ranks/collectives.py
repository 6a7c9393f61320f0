"""Collectives on tensors without data: they are over at once and change nothing."""

from __future__ import annotations

from typing import Any

import torch
from torch._C._distributed_c10d import _create_work_from_future  # type: ignore[attr-defined]
from torch.futures import Future
from torch.utils._python_dispatch import TorchDispatchMode

c10d: Any = torch.ops.c10d

_TENSORS_FIRST = frozenset({c10d.allreduce_.default, c10d.broadcast_.default, c10d._allgather_base_.default})
"""Collectives whose result is their first argument with the work that is being done."""


class CollectivesWithoutData(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Answers collectives, which no backend runs on meta tensors; enter it before the log.

    Copies from tensors without data into those with data leave these as they are: DDP sends its bucket order through a
    broadcast, and rank 0's own order is the right one.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in _TENSORS_FIRST:
            return args[0], _finished(args[0])
        if func is torch.ops.aten.copy_.default and args[1].device.type == "meta" != args[0].device.type:
            return args[0]
        return func(*args, **(kwargs or {}))


class ZerosOnHost(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Lets an engine that offloads copy tensors without data to the host, where they are zeros; enter before the log.

    Host tensors are real ones here: what the trace of a device leaves out, but this machine must hold.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is torch.ops.aten._to_copy.default and args[0].device.type == "meta" and _goes_to_host(kwargs):
            return torch.zeros(args[0].shape, dtype=kwargs.get("dtype") or args[0].dtype)
        if func is torch.ops.aten.copy_.default and args[1].device.type == "meta" != args[0].device.type:
            return args[0].zero_()  # else what happens to be there would count as a gradient that is not finite
        return func(*args, **kwargs)


def _goes_to_host(kwargs: dict[str, Any]) -> bool:
    device = kwargs.get("device")
    return device is not None and torch.device(device).type == "cpu"


def _finished(result: Any) -> Any:
    future: Future[Any] = Future()
    future.set_result(result)
    return _create_work_from_future(future).boxed()
