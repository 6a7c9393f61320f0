"""Which implementation torch's optimizers and clipping choose: on tensors without data, that of the emulated device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module

import torch.utils._foreach_utils as foreach_utils

from scaling.trace.patching import patched

Devices = Callable[[], list[str]]


@contextmanager
def optimizers_of(device: str) -> Iterator[None]:
    """Let meta tensors pass for those of ``device`` where torch asks which kernels there are for them.

    On CUDA optimizers work on all parameters at once ("for-each", with temporaries of their size) by default, on a CPU
    on one after the other; clipping works for-each on both. Source: torch 2.13, utils/_foreach_utils.py.
    """
    optimizer = import_module("torch.optim.optimizer")  # no attribute of torch.optim
    fused: Devices = optimizer._get_fused_kernels_supported_devices
    for_each: Devices = optimizer._get_foreach_kernels_supported_devices
    by_default = [*for_each(), "meta"] if device == "cuda" else for_each()
    with (
        patched(optimizer, "_get_fused_kernels_supported_devices", lambda: [*fused(), "meta"]),
        patched(optimizer, "_get_foreach_kernels_supported_devices", lambda: list(by_default)),
        patched(foreach_utils, "_get_foreach_kernels_supported_devices", lambda: [*for_each(), "meta"]),
    ):
        yield
