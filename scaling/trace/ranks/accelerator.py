"""DeepSpeed's view of a device whose tensors have no data."""

from __future__ import annotations

from typing import Any

from deepspeed.accelerator.cpu_accelerator import CPU_Accelerator

from scaling.trace.ranks.streams import StreamTracker


class MetaAccelerator(CPU_Accelerator):  # type: ignore[misc]
    """Meta tensors as device tensors; asynchronous with streams like CUDA, or synchronous like a CPU."""

    def __init__(self, tracker: StreamTracker, *, is_synchronous: bool) -> None:
        super().__init__()
        self._name = "meta"
        self._tracker, self._is_synchronous = tracker, is_synchronous

    def is_synchronized_device(self) -> bool:
        return self._is_synchronous

    def use_host_timers(self) -> bool:
        return True

    def device_name(self, device_index: int | None = None) -> str:
        return "meta"

    def current_device(self) -> str:
        return "meta"

    def current_device_name(self) -> str:
        return "meta"

    def on_accelerator(self, tensor: Any) -> bool:
        return bool(tensor.device.type == "meta")

    def pin_memory(self, tensor: Any, *_: Any, **__: Any) -> Any:
        return tensor

    def Stream(self, *_: Any, **__: Any) -> Any:
        return None if self._is_synchronous else self._tracker.Stream()

    def stream(self, stream: Any) -> Any:
        return super().stream(stream) if stream is None else self._tracker.stream(stream)

    def current_stream(self, device_index: int | None = None) -> Any:
        return None if self._is_synchronous else self._tracker.current_stream()

    def default_stream(self, device_index: int | None = None) -> Any:
        return None if self._is_synchronous else self._tracker.default_stream()

    def Event(self, *_: Any, **__: Any) -> Any:
        return None if self._is_synchronous else self._tracker.Event()
