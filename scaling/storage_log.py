"""An append-only log of every tensor storage that comes, changes its size and goes, on real, meta and fake tensors.

One `TorchDispatchMode` sees the operators of forward, backward and optimizer (on CPU the autograd engine runs in the
calling thread; on CUDA it hands the mode to its device threads), those of C++ code such as DDP's reducer, and the
collectives. One weak reference a storage tells when it is freed, whoever frees it. What a kernel or a communication
library allocates inside one operator and frees before it returns is not seen: give `scratch` rules for it.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import IntEnum
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass

ScratchRule = Callable[[tuple[Any, ...]], Sequence[int]]
"""Bytes that one operator allocates and frees inside its kernel, from the operator's arguments."""

Observer = Callable[[Any, tuple[Any, ...], Any], None]
"""Called after each operator with the operator, its positional arguments and its result, all logged by then."""

_SCALAR = torch.ops.aten._local_scalar_dense.default
_PLAIN = (torch.Tensor, torch.nn.Parameter)


class EventKind(IntEnum):
    """What happened to a storage."""

    ALLOCATE = 1
    RESIZE = 0
    FREE = -1


class Event(NamedTuple):
    """One change of the live bytes. The sum of `change_bytes` up to an event is what lives after it."""

    kind: EventKind
    storage: int
    """Number of the storage, counted from 0 and never used twice; index into `StorageLog.storages`."""
    change_bytes: int
    phase: str
    op: str
    """The operator, such as ``aten.mm.default``; ``adopt``, ``resize`` or ``free`` where no operator did it."""


class Storage(NamedTuple):
    """The first tensor that was seen on a storage."""

    num_bytes: int
    """Size when first seen."""
    device: str
    """Where its bytes are: ``meta`` for meta and fake tensors, which have none."""
    dtype: torch.dtype
    shape: tuple[int, ...]
    event: int
    """Index of its first event."""


class _Live(NamedTuple):
    number: int
    num_bytes: int
    reference: weakref.ref[torch.UntypedStorage]


class StorageLog(TorchDispatchMode):
    """Log storages while entered; `phase` names what the program is doing and may be set at any time.

    Storages that exist before are logged when `adopt` shows them or when an operator first touches them. Those whose
    end comes after the mode is left are still logged as freed, until `close`.
    """

    def __init__(
        self,
        *,
        phase: str = "",
        scalar_answers: Mapping[torch.dtype, bool | int | float] | None = None,
        scratch: Mapping[Any, ScratchRule] | None = None,
        observer: Observer | None = None,
    ) -> None:
        """`scalar_answers`: what ``.item()`` returns on tensors without data, by dtype (absent: 0).
        `scratch`: bytes inside a kernel, by operator overload; logged after its results, freed at once."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.events: list[Event] = []
        self.storages: list[Storage] = []
        self.phase = phase
        self.live_bytes = 0
        self.num_ops = 0
        self.num_late_frees = 0
        """Storages whose last reference was dropped by another thread, such as gloo's after a collective: later than
        the program itself let go, by as much as that thread was behind."""
        self._thread = threading.get_ident()
        self._live: dict[int, _Live] = {}
        self._scalar_answers = dict(scalar_answers or {})
        self._scratch = dict(scratch or {})
        self._observer = observer

    def __enter__(self) -> StorageLog:
        self._thread = threading.get_ident()
        _watch_resizes(self)
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *exception: object) -> None:
        super().__exit__(*exception)  # type: ignore[no-untyped-call]
        _unwatch_resizes(self)

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if any(hasattr(kind, "__tensor_flatten__") for kind in types):
            return NotImplemented  # DTensor and the like: their own dispatch comes back here with the inner tensors
        if func is _SCALAR and _has_no_data(args[0]):
            return self._scalar_answers.get(args[0].dtype, 0)
        self.num_ops += 1
        self._see_all(args, "adopt")
        result = func(*args, **(kwargs or {}))
        self._see_all((result,), func)
        if func in self._scratch:
            self._log_scratch(self._scratch[func](args), f"scratch {func}")
        if self._observer is not None:
            self._observer(func, args, result)
        return result

    def adopt(self, tensors: Iterable[torch.Tensor]) -> set[int]:
        """Return the numbers of the tensors' storages, after logging the sizes of those that were not known."""
        return {self._see(inner, "adopt") for tensor in tensors for inner in plain_tensors(tensor)}

    def number(self, tensor: torch.Tensor) -> int | None:
        """Return the number of the tensor's storage, or None where it was never seen."""
        live = self._live.get(tensor.untyped_storage()._cdata)
        return None if live is None else live.number

    def live(self) -> dict[int, int]:
        """Return bytes by number of every storage that lives now."""
        return {live.number: live.num_bytes for live in self._live.values()}

    def close(self) -> None:
        """Stop following; the log stays as it is."""
        self._live.clear()

    def _see_all(self, values: Iterable[Any], op: Any) -> None:
        for value in values:
            if isinstance(value, torch.Tensor):
                if type(value) in _PLAIN or not is_traceable_wrapper_subclass(value):
                    self._see(value, op)
            elif isinstance(value, (list, tuple)):
                self._see_all(value, op)

    def _see(self, tensor: torch.Tensor, op: Any) -> int:
        storage = tensor.untyped_storage()
        known = self._live.get(storage._cdata)
        if known is None:
            return self._allocate(tensor, storage, str(op))
        if known.num_bytes != storage.nbytes():
            self._resize(storage, str(op))
        return known.number

    def _allocate(self, tensor: torch.Tensor, storage: torch.UntypedStorage, op: str) -> int:
        number, key, num_bytes = len(self.storages), storage._cdata, storage.nbytes()

        def free(_: weakref.ref[torch.UntypedStorage]) -> None:
            live = self._live.get(key)
            if live is not None and live.number == number:
                del self._live[key]
                self.num_late_frees += threading.get_ident() != self._thread
                self._log(EventKind.FREE, number, -live.num_bytes, "free")

        self._live[key] = _Live(number, num_bytes, weakref.ref(storage, free))
        self.storages.append(
            Storage(num_bytes, storage.device.type, tensor.dtype, tuple(tensor.shape), len(self.events))
        )
        self._log(EventKind.ALLOCATE, number, num_bytes, op)
        return number

    def _resize(self, storage: torch.UntypedStorage, op: str) -> None:
        known = self._live.get(storage._cdata)
        if known is None or known.num_bytes == storage.nbytes():
            return
        self._live[storage._cdata] = known._replace(num_bytes=storage.nbytes())
        self._log(EventKind.RESIZE, known.number, storage.nbytes() - known.num_bytes, op)

    def _log_scratch(self, sizes: Sequence[int], op: str) -> None:
        first = len(self.storages)
        for number, num_bytes in enumerate(sizes, start=first):
            self.storages.append(Storage(num_bytes, "scratch", torch.uint8, (num_bytes,), len(self.events)))
            self._log(EventKind.ALLOCATE, number, num_bytes, op)
        for number, num_bytes in enumerate(sizes, start=first):
            self._log(EventKind.FREE, number, -num_bytes, "free")

    def _log(self, kind: EventKind, number: int, change_bytes: int, op: str) -> None:
        self.live_bytes += change_bytes
        self.events.append(Event(kind, number, change_bytes, self.phase, op))


def plain_tensors(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yield the tensors that hold the bytes: the tensor itself, or the inner ones of a wrapper such as DTensor."""
    if not is_traceable_wrapper_subclass(tensor):
        yield tensor
        return
    names, _ = tensor.__tensor_flatten__()
    for name in names:
        inner = getattr(tensor, name)
        if isinstance(inner, torch.Tensor):  # DTensor also names its device mesh
            yield from plain_tensors(inner)


def _has_no_data(tensor: torch.Tensor) -> bool:
    return tensor.device.type == "meta" or type(tensor).__name__ == "FakeTensor"


# FSDP2 resizes storages directly, which is no operator: the method is wrapped while a log is entered.
_watching: list[StorageLog] = []


def _resize_and_log(storage: torch.UntypedStorage, size: int) -> Any:
    result = torch._C.StorageBase.resize_(storage, size)  # type: ignore[attr-defined]
    for log in _watching:
        log._resize(storage, "resize")
    return result


def _watch_resizes(log: StorageLog) -> None:
    if not _watching:
        torch.UntypedStorage.resize_ = _resize_and_log  # type: ignore[method-assign,assignment]
    _watching.append(log)


def _unwatch_resizes(log: StorageLog) -> None:
    _watching.remove(log)
    if not _watching:
        del torch.UntypedStorage.resize_
