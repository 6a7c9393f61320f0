"""Which cause each storage counts for: what owners claim, and rules for what lives too briefly for them to be asked."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum, auto
from typing import Any

import torch

from scaling.ownership import Cause, Owned, Place
from scaling.storage_log import StorageLog, plain_tensors
from strategies.estimate import Phase

SMALLEST_SHARE_ASKED_FOR = 1000
"""Storages below one thousandth of what lives are not worth asking all owners for."""

_DETACH = torch.ops.aten.detach.default
_ADD = torch.ops.aten.add_.Tensor
_ALWAYS_DEVICE = frozenset({torch.ops.aten._to_copy.default, torch.ops.aten.clone.default})


class _Where(Enum):
    """Part of the program in which an operator runs."""

    FORWARD = auto()
    """No backward at all."""
    BACKWARD = auto()
    """In the backward function of some operator."""
    ACCUMULATION = auto()
    """As autograd hands over a gradient, where engines hang their hooks."""
    OUTSIDE = auto()
    """In the backward phase, in the engine's own code."""


class Attribution:
    """Claims on storages, collected while a `StorageLog` runs.

    Strongest first: an owner's claim, at a phase boundary or when an engine has made something large; what is seen in
    passing (a gradient as autograd accumulates it, a weight as a module uses it); an argument of a collective is a
    communication bucket; the rest goes by the phase and the place in autograd in which it was made. A storage has one
    cause for its whole life.
    """

    def __init__(
        self,
        log: StorageLog,
        *,
        device_type: str = "cpu",
        vocab_size: int | None = None,
        cpu_is_device: bool | None = None,
    ) -> None:
        """`device_type`: where the model is; `vocab_size`: width of the logits, None counts them as activations.
        `cpu_is_device`: whether CPU tensors are on the device unless an owner says otherwise; by default where the
        model is there."""
        self._log = log
        self._device_type = device_type
        self._cpu_is_device = device_type == "cpu" if cpu_is_device is None else cpu_is_device
        self._vocab_size = vocab_size
        self._claims: dict[int, tuple[Cause, Place]] = {}
        self._passing: dict[int, Cause] = {}
        self.wants_owners = False
        """An engine has just made a storage worth naming: ask its owners at the next operator, when it is in place."""
        self._in_collectives: set[int] = set()
        self._recomputed: set[int] = set()
        self._beside_autograd: set[int] = set()
        self._on_host: set[int] = set()
        self._num_seen = 0

    def claim(self, owned: Iterable[Owned]) -> None:
        """Record what owners hold now; the first claim on a storage stays."""
        self.wants_owners = False
        for item in owned:
            for number in self._log.adopt([item.tensor]):
                self._claims.setdefault(number, (item.cause, item.place))

    def observe(self, func: Any, args: tuple[Any, ...]) -> None:
        """Record what one operator tells about its arguments and about the storages it made."""
        where = _where() if self._log.phase == Phase.BACKWARD else _Where.FORWARD
        if where is _Where.ACCUMULATION and func in (_DETACH, _ADD):
            self._claim_gradients(args)
        elif func.namespace in ("c10d", "_c10d_functional"):
            self._in_collectives.update(_numbers(self._log, args))
        else:
            self._claim_parameters(args)
        if len(self._log.storages) > self._num_seen:
            self._describe_new(func, args, where)

    def cause(self, number: int) -> tuple[Cause, Place] | None:
        """Return what a storage counts for and in which memory; None where it has no bytes (meta tensors)."""
        device = self._log.storages[number].device
        if device not in (self._device_type, "cpu"):
            return None
        cause, place = self._claims.get(number) or (self._by_signs(number), self._place_by_birth(number))
        return cause, place if device == self._device_type or self._cpu_is_device else Place.HOST

    def _claim_gradients(self, args: tuple[Any, ...]) -> None:
        """Claim what autograd accumulates; hooks that run there detach their buckets too, which are none."""
        for number in _numbers(self._log, args):
            if number not in self._beside_autograd:
                self._passing.setdefault(number, Cause.GRADIENTS)

    def _claim_parameters(self, args: tuple[Any, ...]) -> None:
        """A weight that no owner holds for long is a gathered one; while the model is made it is the model's."""
        for arg in args:
            if type(arg) is torch.nn.Parameter:
                cause = Cause.GATHERED_PARAMETERS if self._is_gathered(arg) else Cause.PARAMETERS
                for number in _numbers(self._log, (arg,)):
                    self._passing.setdefault(number, cause)

    def _is_gathered(self, parameter: torch.nn.Parameter) -> bool:
        partition = getattr(parameter, "ds_tensor", None)  # DeepSpeed stage 3
        if partition is None:
            return self._log.phase != Phase.INITIALISE
        return self._log.number(partition) != self._log.number(parameter)

    def _describe_new(self, func: Any, args: tuple[Any, ...], where: _Where) -> None:
        new = range(self._num_seen, len(self._log.storages))
        self._num_seen = len(self._log.storages)
        if where in (_Where.ACCUMULATION, _Where.OUTSIDE):
            self._beside_autograd.update(new)
            largest = max(self._log.storages[number].num_bytes for number in new)
            self.wants_owners |= largest * SMALLEST_SHARE_ASKED_FOR > self._log.live_bytes
        elif where is _Where.BACKWARD and torch.is_grad_enabled():  # only a forward inside backward has gradients on
            self._recomputed.update(new)
        if self._comes_down(func, args, new) or (func not in _ALWAYS_DEVICE and self._all_on_host(args)):
            self._on_host.update(new)

    def _comes_down(self, func: Any, args: tuple[Any, ...], new: range) -> bool:
        """Is this a copy to the host, or a copy of one? Where the model is on a CPU nobody can tell."""
        if func not in _ALWAYS_DEVICE or self._device_type == "cpu" or self._log.storages[new[-1]].device != "cpu":
            return False
        return args[0].device.type != "cpu" or self._all_on_host(args)

    def _all_on_host(self, args: tuple[Any, ...]) -> bool:
        numbers = _numbers(self._log, args)
        return bool(numbers) and all(self._is_on_host(number) for number in numbers)

    def _is_on_host(self, number: int) -> bool:
        return number in self._on_host or self._claims.get(number, (None, Place.DEVICE))[1] is Place.HOST

    def _place_by_birth(self, number: int) -> Place:
        return Place.HOST if number in self._on_host else Place.DEVICE

    def _by_signs(self, number: int) -> Cause:
        storage = self._log.storages[number]
        if number in self._passing:
            return self._passing[number]
        if number in self._in_collectives:
            return Cause.COMMUNICATION_BUCKETS
        match self._log.events[storage.event].phase:
            case Phase.OPTIMIZER_STEP:
                return Cause.STEP_TEMPORARIES
            case Phase.FORWARD | Phase.EVALUATION | Phase.BACKWARD:
                return self._of_passes(number, storage.shape)
        return Cause.OTHER

    def _of_passes(self, number: int, shape: tuple[int, ...]) -> Cause:
        if self._vocab_size is not None and len(shape) > 1 and shape[-1] == self._vocab_size:
            return Cause.LOGITS
        if number in self._recomputed:
            return Cause.RECOMPUTED_BLOCK
        if number in self._beside_autograd and shape:  # without a shape: the loss, scaled, and its gradient
            return Cause.COMMUNICATION_BUCKETS
        return Cause.ACTIVATIONS


def _where() -> _Where:
    node = torch._C._current_autograd_node()
    if node is None:
        return _Where.OUTSIDE
    return _Where.ACCUMULATION if node.name() == "torch::autograd::AccumulateGrad" else _Where.BACKWARD


def _numbers(log: StorageLog, values: Iterable[Any]) -> list[int]:
    """Return the numbers of the storages of tensors with any bytes in nested sequences."""
    found: list[int] = []
    for value in values:
        if isinstance(value, torch.Tensor):
            found.extend(number for inner in plain_tensors(value) if (number := log.number(inner)) is not None)
        elif isinstance(value, (list, tuple)):
            found.extend(_numbers(log, value))
    return found
