"""Metrics for TensorBoard: an event file in the run's folder."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, final

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter
from torch.utils.tensorboard import summary

FORMAT = "brain.Event:2"
"""What every event file begins with (tensorboard 2.21)."""


@final
class TensorBoardLogger:
    """One event file a run, and one event in it a record, on disk at once.

    torch's SummaryWriter has a thread that writes; where it cannot, the thread ends with a traceback.
    """

    def __init__(self, folder: Path, *, settings: Mapping[str, Any]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"events.out.tfevents.{time.time():.6f}.{socket.gethostname()}"
        self._file = path.open("xb", buffering=0)
        self._records = RecordWriter(self._file)
        self._write(file_version=FORMAT)
        lines = json.dumps(settings, indent=1)
        self._write(summary=summary.text("settings", f"```\n{lines}\n```"))  # type: ignore[no-untyped-call]

    def log(self, step: int, values: Mapping[str, float]) -> None:
        scalars = [Summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        self._write(step=step, summary=Summary(value=scalars))

    def close(self, *, failed: bool) -> None:
        self._file.close()

    def _write(self, **event: Any) -> None:
        self._records.write(Event(wall_time=time.time(), **event).SerializeToString())
