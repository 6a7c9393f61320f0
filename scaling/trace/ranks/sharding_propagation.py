"""Keep DTensor's private reasoning about shapes out of a storage log."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from torch.utils._python_dispatch import _disable_current_modes

from scaling.trace.patching import patched


class _WithoutModes:
    """Enters a fresh context without dispatch modes each time it is entered itself."""

    def __init__(self) -> None:
        self._entered: list[AbstractContextManager[object]] = []

    def __enter__(self) -> None:
        context: AbstractContextManager[object] = _disable_current_modes()
        context.__enter__()
        self._entered.append(context)

    def __exit__(self, *exception: object) -> None:
        self._entered.pop().__exit__(None, None, None)


@contextmanager
def unlogged_sharding_propagation() -> Iterator[None]:
    """Hide from dispatch modes the fake tensors with which DTensor finds out, once for every shape, what comes out.

    They hold no memory, but look like real tensors to a log: up to a full copy of the parameters in the first step.
    Source: torch 2.13, distributed/tensor/_sharding_prop.py, _propagate_tensor_meta_non_cached.
    """
    from torch.distributed.tensor._sharding_prop import ShardingPropagator

    with patched(ShardingPropagator, "_fake_mode_lock", _WithoutModes()):
        yield
