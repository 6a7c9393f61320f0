"""Collectives that are over when they return, so that what lives in between depends on the program alone."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch
from torch._C._distributed_c10d import Work, _create_work_from_future  # type: ignore[attr-defined]
from torch.futures import Future
from torch.utils._python_dispatch import TorchDispatchMode


class completed_collectives(TorchDispatchMode):  # type: ignore[no-untyped-call]  # used as a context
    """Context in which every collective is finished before it returns, with its first argument as its result.

    Two reasons. torch's fake group (2.13, FakeProcessGroup.hpp) completes its futures with None, which DDP's C++
    reducer refuses. And gloo keeps tensors longer than the program does: its thread drops its reference some time after
    waking us, and a reduce-scatter holds a clone of its input until its handle is gone (ProcessGroupGloo.cpp).
    """

    def __init__(self, *, settle_s: float) -> None:
        """`settle_s`: how long to leave the processor to the communication thread after each collective."""
        super().__init__()  # type: ignore[no-untyped-call]
        self._settle_s = settle_s

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func.namespace != "c10d":
            return result
        outputs, work = (result[:-1], result[-1]) if isinstance(result, tuple) else ((), result)
        if not isinstance(work, torch.ScriptObject):
            return result
        Work.unbox(work).wait()
        del work, result
        if self._settle_s:
            time.sleep(self._settle_s)
        return _with_work(outputs, _completed(args[0]))


def _completed(value: Any) -> Any:
    future: Future[Any] = Future()
    future.set_result(value)
    return _create_work_from_future(future).boxed()


def _with_work(outputs: tuple[Any, ...], work: Any) -> Any:
    return (*outputs, work) if outputs else work
