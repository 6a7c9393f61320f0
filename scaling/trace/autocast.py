"""Autocast for tensors without data: the casts that the autocast of CUDA or of the CPU makes, spelled in Python.

Autocast acts through dispatch keys of real devices, which meta tensors lack. The state is kept where torch keeps it,
in that of the CPU, to which meta tensors do not react: `forwarded_contexts` sends ``torch.autocast`` contexts of the
emulated device there, so that nesting, switching off and the contexts that activation checkpointing restores work as
on the device. Weights are cast once and kept until the outermost context is left, as torch keeps them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from scaling.trace import autocast_lists as lists
from scaling.trace.patching import patched
from strategies.errors import ScalingError

_HALF = (torch.float16, torch.bfloat16)

_OWNERS: tuple[Any, ...] = tuple(
    getattr(torch._C, name) for name in ("_VariableFunctions", "_nn", "_linalg", "TensorBase")
)


def _functions(names: str) -> frozenset[Any]:
    """Return everything Python can call under one of ``names``: free functions and tensor methods."""
    return frozenset(getattr(owner, name) for name in names.split() for owner in _OWNERS if hasattr(owner, name))


class AutocastRules:
    """Casts the arguments of torch functions as the autocast of one device does, where torch's CPU state is on."""

    def __init__(self, device: str) -> None:
        """`device`: ``cuda`` or ``cpu``, whose lists are followed."""
        is_cuda = device == "cuda"
        self._lower = _functions(lists.CUDA_LOWER if is_cuda else lists.CPU_LOWER)
        self._fp32 = _functions(lists.CUDA_FP32 if is_cuda else lists.CPU_FP32)
        self._fp32_result = _functions(lists.CUDA_FP32_RESULT) if is_cuda else frozenset()
        self._widest = _functions(lists.CUDA_WIDEST if is_cuda else lists.CPU_WIDEST)
        self._cross_entropy = torch._C._nn.cross_entropy_loss if is_cuda else None
        self._cached: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def clear(self) -> None:
        """Drop the casts of weights, as torch does when the outermost context is left."""
        self._cached.clear()

    def call(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return what ``func`` returns in an autocast context."""
        if func in self._fp32_result and _has_half_input(args) and not _names_dtype(func, args, kwargs):
            return func(*args, **{**kwargs, "dtype": torch.float32})
        if func is self._cross_entropy and _has_half_input(args):
            return _cross_entropy(*args, **kwargs)
        args, kwargs = self.cast_arguments(func, args, kwargs)
        return func(*args, **kwargs)

    def cast_arguments(
        self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments with tensors in 16 bits, in fp32, or as they are: what ``func`` is listed for."""
        if func in self._lower:
            return _cast_arguments(args, kwargs, self.lowered)
        if func in self._fp32:
            return _cast_arguments(args, kwargs, _lifted)
        if func in self._widest and torch.float32 in _formats((args, tuple(kwargs.values()))):
            return _cast_arguments(args, kwargs, _lifted)
        return args, kwargs

    def lowered(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return ``tensor`` in the context's 16-bit format; an fp32 weight's cast is made once."""
        dtype = torch.get_autocast_dtype("cpu")
        if not tensor.is_floating_point() or tensor.dtype in (dtype, torch.float64):
            return tensor
        if not _is_cached_kind(tensor):
            return tensor.to(dtype)
        if id(tensor) not in self._cached:
            self._cached[id(tensor)] = (tensor, tensor.to(dtype))
        return self._cached[id(tensor)][1]


def _lifted(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.float() if tensor.dtype in _HALF else tensor


def _cast_arguments(
    args: tuple[Any, ...], kwargs: dict[str, Any], cast: Callable[[torch.Tensor], torch.Tensor]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments with every tensor cast, the last one first: the order in which torch's own builds do it."""
    changed = {name: _mapped(value, cast) for name, value in reversed(kwargs.items())}
    return tuple(_mapped(value, cast) for value in reversed(args))[::-1], changed


def _formats(value: Any) -> set[torch.dtype]:
    if isinstance(value, torch.Tensor):
        return {value.dtype}
    return {dtype for item in value for dtype in _formats(item)} if type(value) in (list, tuple) else set()


def _mapped(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    if isinstance(value, torch.Tensor):
        return change(value)
    if type(value) in (list, tuple):
        return type(value)(_mapped(item, change) for item in value)
    return value


def _is_cached_kind(tensor: torch.Tensor) -> bool:
    """Source: torch 2.13.0, ATen/autocast_mode.cpp, cached_cast."""
    return (
        tensor.dtype == torch.float32
        and tensor.requires_grad
        and tensor.is_leaf
        and not tensor._is_view()
        and torch.is_autocast_cache_enabled()
    )


def _has_half_input(args: tuple[Any, ...]) -> bool:
    return bool(args) and isinstance(args[0], torch.Tensor) and args[0].dtype in _HALF


def _names_dtype(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    positional = "softmax" in str(getattr(func, "__name__", "")) and len(args) > 2
    return positional or kwargs.get("dtype") is not None


def _cross_entropy(
    logits: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None = None,
    reduction: int = 1,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
) -> torch.Tensor:
    """The one function of C++ that names the input's dtype for its softmax, so that only the rest is lifted to fp32.

    Source: torch 2.13.0, ATen/native/LossNLL.cpp, cross_entropy_loss_symint.
    """
    if label_smoothing or target.is_floating_point():
        raise ScalingError(
            f"cross_entropy on {logits.dtype} logits with label_smoothing={label_smoothing} or class probabilities "
            f"cannot be traced under autocast; cast the logits to fp32 first, as Hugging Face models do"
        )
    class_dim = 1 if logits.dim() > 1 else 0
    log_probabilities = torch.log_softmax(logits, class_dim, dtype=logits.dtype)
    nll_loss: Callable[..., torch.Tensor] = torch._C._nn.nll_loss_nd
    return nll_loss(log_probabilities.float(), target, weight, reduction, ignore_index)


@contextmanager
def forwarded_contexts(rules: AutocastRules, devices: frozenset[str]) -> Iterator[None]:
    """Make ``torch.autocast`` contexts of ``devices`` set the state that `AutocastRules` reads, and clear its cache."""
    autocast = torch.amp.autocast_mode.autocast
    initialise, enabled, dtype, clear = (
        autocast.__init__,
        torch.is_autocast_enabled,
        torch.get_autocast_dtype,
        torch.clear_autocast_cache,
    )

    def on_cpu(device_type: str) -> str:
        return "cpu" if device_type in devices else device_type

    def clear_both() -> None:
        clear()
        rules.clear()

    with (
        patched(
            autocast, "__init__", lambda self, device_type, *a, **k: initialise(self, on_cpu(device_type), *a, **k)
        ),
        patched(torch, "is_autocast_enabled", lambda device="cuda": enabled(on_cpu(device))),
        patched(torch, "get_autocast_dtype", lambda device: dtype(on_cpu(device))),
        patched(torch, "clear_autocast_cache", clear_both),
        _transformers_contexts(),
    ):
        yield


@contextmanager
def _transformers_contexts() -> Iterator[None]:
    """Let transformers enter its fp32 contexts, which it leaves out on meta tensors, wherever it has imported them."""
    generic = sys.modules.get("transformers.utils.generic")
    original = getattr(generic, "maybe_autocast", None)
    if original is None:
        yield
        return

    def maybe_autocast(device_type: str, *args: Any, **kwargs: Any) -> Any:
        return original("cpu" if device_type == "meta" else device_type, *args, **kwargs)

    users = [
        module
        for module in list(sys.modules.values())
        if getattr(module, "__dict__", {}).get("maybe_autocast") is original
    ]
    for module in users:
        module.maybe_autocast = maybe_autocast  # type: ignore[attr-defined]
    try:
        yield
    finally:
        for module in users:
            module.maybe_autocast = original  # type: ignore[attr-defined]
