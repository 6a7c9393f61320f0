"""One torch function mode that makes meta tensors behave like tensors of a device: its kernels and its autocast."""

from __future__ import annotations

import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from scaling.trace.autocast import AutocastRules, forwarded_contexts
from scaling.trace.kernels import CPU_KERNELS, CUDA_KERNELS
from scaling.trace.meta_results import MetaResults
from scaling.trace.optimizers import optimizers_of
from strategies.errors import ScalingError

_OVERRIDE_CHECKS = ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic")
_RNN_KERNELS = frozenset({torch._VF.lstm, torch._VF.gru, torch._VF.rnn_tanh, torch._VF.rnn_relu})

_READS = frozenset({Tensor.item, Tensor.tolist, Tensor.__bool__, Tensor.__int__, Tensor.__float__, Tensor.__index__})


class DeviceEmulation(TorchFunctionMode):
    """Sees every torch function that Python calls and gives it the kernel and the casts of the emulated device."""

    def __init__(self, device: str) -> None:
        """`device`: ``cuda`` or ``cpu``."""
        super().__init__()
        self.device = device
        self.rules = AutocastRules(device)
        self.num_values_asked = 0
        """How often a tensor without data was asked for its value."""
        self._running: list[types.FunctionType] = []
        self._kernels = CUDA_KERNELS if device == "cuda" else CPU_KERNELS

    def __torch_function__(
        self, func: Any, types_: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _READS and args[0].device.type == "meta":
            self.num_values_asked += 1
        if isinstance(func, types.FunctionType):
            return self._call_python(func, args, kwargs)
        if func in _RNN_KERNELS:
            raise ScalingError(
                f"{func.__name__} runs cuDNN kernels on CUDA whose memory is not known here; trace with "
                f"kernels='cpu', or measure on a GPU"
            )
        kernel = self._kernels.get(func)
        if torch.is_autocast_enabled("cpu"):
            return self._call_in_autocast(func, kernel, args, kwargs)
        return func(*args, **kwargs) if kernel is None else kernel(*args, **kwargs)

    def _call_in_autocast(self, func: Any, kernel: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if kernel is None:
            return self.rules.call(func, args, kwargs)
        args, kwargs = self.rules.cast_arguments(func, args, kwargs)
        return kernel(*args, **kwargs)

    def _call_python(self, func: types.FunctionType, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a torch function that is written in Python with the mode on, so that what it calls is seen too."""
        checks = [name for name in _OVERRIDE_CHECKS if name in func.__globals__]
        if not checks or func in self._running:  # methods come back by name from the C++ method they call
            return func(*args, **kwargs)
        self._running.append(func)
        try:
            with _first_check_passed(func.__globals__, checks), self:
                return func(*args, **kwargs)
        finally:
            self._running.pop()


@contextmanager
def _first_check_passed(namespace: dict[str, Any], checks: list[str]) -> Iterator[None]:
    """Let the next "is there an override?" check in a module say no: it is the override that calls the function."""
    originals = {name: namespace[name] for name in checks}

    def no_override(*_: Any) -> bool:
        namespace.update(originals)
        return False

    namespace.update(dict.fromkeys(checks, no_override))
    try:
        yield
    finally:
        namespace.update(originals)


@contextmanager
def emulated_device(device: str) -> Iterator[DeviceEmulation]:
    """Run meta tensors as if on ``device`` (``cuda`` or ``cpu``), under its autocast where that is on."""
    mode = DeviceEmulation(device)
    forwarded = frozenset({"meta", "cuda"} if device == "cuda" else {"meta"})
    with forwarded_contexts(mode.rules, forwarded), optimizers_of(device), mode, MetaResults(device):
        yield mode
