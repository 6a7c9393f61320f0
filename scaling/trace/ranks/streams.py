"""Streams and events for tensors without data: nothing runs, but what is allocated knows on which stream."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from scaling.trace.recorder import Recorder


class _Stream:
    """A stream by number; waiting does nothing because nothing runs."""

    def __init__(self, number: int) -> None:
        self.number = number

    def wait_stream(self, stream: Any) -> None:
        """Return at once."""

    def wait_event(self, event: Any) -> None:
        """Return at once."""

    def synchronize(self) -> None:
        """Return at once."""

    def record_event(self, event: Any = None) -> _Event:
        return event or _Event()


class _Event:
    """A point in a stream; it has always been reached."""

    def record(self, stream: Any = None) -> None:
        """Return at once."""

    def query(self) -> bool:
        return True

    def wait(self, stream: Any = None) -> None:
        """Return at once."""

    def synchronize(self) -> None:
        """Return at once."""


class StreamTracker:
    """Stands in for ``torch.cuda``: hands out streams and tells the recorder which one is current."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._num_streams = 1

    def Stream(self, *_: Any, **__: Any) -> _Stream:
        number, self._num_streams = self._num_streams, self._num_streams + 1
        return _Stream(number)

    def Event(self, *_: Any, **__: Any) -> _Event:
        return _Event()

    def current_stream(self, *_: Any) -> _Stream:
        return _Stream(self._recorder.current_stream)

    def default_stream(self, *_: Any) -> _Stream:
        return _Stream(0)

    def current_device(self) -> int:
        return 0

    @contextmanager
    def stream(self, stream: _Stream) -> Iterator[None]:
        before, self._recorder.current_stream = self._recorder.current_stream, stream.number
        try:
            yield
        finally:
            self._recorder.current_stream = before
