"""Collectives that are over when they return, so that what lives in between depends on the program alone."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch._C._distributed_c10d import Work, _create_work_from_future  # type: ignore[attr-defined]
from torch.futures import Future
from torch.utils._python_dispatch import TorchDispatchMode

POLL_S = 0.0002


class completed_collectives(TorchDispatchMode):  # type: ignore[no-untyped-call]  # used as a context
    """Context in which every collective is finished before it returns, with its first argument as its result.

    Two reasons. torch's fake group (2.13, FakeProcessGroup.hpp) completes its futures with None, which DDP's C++
    reducer refuses. And gloo keeps tensors longer than the program does: its thread drops its reference some time after
    waking us, and a reduce-scatter holds a clone of its input until its handle is gone (ProcessGroupGloo.cpp).
    """

    def __init__(self, *, settle_s: float) -> None:
        """`settle_s`: how long to wait at most, after each collective, for the communication thread to let go."""
        super().__init__()  # type: ignore[no-untyped-call]
        self._settle_s = settle_s

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func.namespace != "c10d":
            return func(*args, **(kwargs or {}))
        held = [(tensor, _use_count(tensor)) for tensor in _tensors(args)]
        result = func(*args, **(kwargs or {}))
        outputs, work = (result[:-1], result[-1]) if isinstance(result, tuple) else ((), result)
        if not isinstance(work, torch.ScriptObject):
            return result
        Work.unbox(work).wait()
        del work, result
        self._settle(held)
        return _with_work(outputs, completed(args[0]))

    def _settle(self, held: Sequence[tuple[torch.Tensor, int]]) -> None:
        deadline = time.perf_counter() + self._settle_s
        while time.perf_counter() < deadline and any(_use_count(tensor) > count for tensor, count in held):
            time.sleep(POLL_S)


def _tensors(values: Iterable[Any]) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors(value)


def _use_count(tensor: torch.Tensor) -> int:
    """Return how many hold the tensor, Python's and C++'s references together."""
    return int(tensor._use_count())  # type: ignore[attr-defined]


def completed(value: Any) -> Any:
    """Return the handle of a collective that is over, as the dispatcher passes it, with ``value`` as its result."""
    devices = {tensor.device for tensor in _tensors([value]) if tensor.is_cuda} if torch.cuda.is_available() else set()
    future: Future[Any] = Future(devices=list(devices))  # a future takes results on the devices that it knows only
    future.set_result(value)
    return _create_work_from_future(future).boxed()


def _with_work(outputs: tuple[Any, ...], work: Any) -> Any:
    return (*outputs, work) if outputs else work
