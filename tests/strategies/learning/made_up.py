"""Records of runs that never were."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from strategies.learning.run_record import RunRecord, record_of
from strategies.library import plan
from strategies.load_model import load_model_spec
from strategies.time.calibration import this_machine

BYTES = 1_000_000


def recorded(
    *, number: int = 0, ratio: float = 1.0, step_ratio: float | None = None, base: RunRecord, **changes: Any
) -> RunRecord:
    """A run of its own set-up, unless numbers are equal: measured ``ratio`` times what was predicted."""
    timed = {} if step_ratio is None else {"predicted_step_s": 2.0, "measured_step_s": 2.0 * step_ratio}
    return replace(
        base,
        at=f"2026-01-01T00:00:{number % 60:02d}+00:00",
        num_params=BYTES + number,
        predicted_allocated_bytes=BYTES,
        predicted_reserved_bytes=BYTES,
        measured_allocated_bytes=round(ratio * BYTES),
        **timed,
        **changes,
    )


def base_record(*, on_gpu: bool = False) -> RunRecord:
    """What is recorded of a plan of the demo model under DDP before it runs."""
    device = {"gpu": "A100-80GB-SXM"} if on_gpu else {"gpu": "cpu", "gpu_memory_gib": 2.0}
    decision = plan("llama-demo", gpus=2, seq_len=64, global_batch_size=8, strategy="ddp", **device)
    found = record_of(decision, load_model_spec("llama-demo"), source="a test")
    assert found.machine == ("" if on_gpu else this_machine())
    return found
