"""Extrapolated logs against full traces: depth for 13 families, batch and length for some.

Method: three shallow traces give the log of a deep model, four sizes give that of another; the same run is traced in
full and both logs are compared event by event, with the storages they are about. Equal logs replay to equal reserved
bytes. Usage: ``python -m benchmarks.trace_extrapolation``; writes ``benchmarks/results/trace_extrapolation.json`` and
``.md``; exit code 1 if a log that was not refused differs.
"""

from __future__ import annotations

import json
import logging
import sys
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from benchmarks.environment import environment
from benchmarks.trace_families import THIRTEEN_FAMILIES, WINDOW, family_batch, family_config, family_model
from benchmarks.trace_truth import engines
from scaling.trace import (
    EngineSpec,
    ExtrapolationError,
    Recompute,
    SingleDevice,
    TraceLog,
    TraceOptions,
    TracePrecision,
    extrapolate_depth,
    extrapolate_size,
    profile,
    replay,
    trace_step,
)
from scaling.trace.deep import smallest_depths
from scaling.trace.hugging_face import layer_period

RESULTS = Path(__file__).parent / "results"
NUM_LAYERS = 2
ADDED_PERIODS = 5
SIZE_FAMILIES = ("llama", "mistral-window", "gemma2", "bert", "t5")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One log, extrapolated and traced."""

    what: str
    name: str
    precision: str
    activation_checkpointing: str
    traced_at: list[int]
    extrapolated_to: int
    num_events: int = 0
    equal_events: bool = False
    largest_difference_bytes: int = 0
    reserved_difference_bytes: int = 0
    refused: str = ""


def main() -> int:
    """Extrapolate everything, print and store the table."""
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    rows = [*depth_rows(), *engine_rows(), *batch_rows(), *length_rows()]
    text = table(rows)
    print(text)
    stored = {"environment": environment(), "rows": [asdict(row) for row in rows]}
    (RESULTS / "trace_extrapolation.json").write_text(json.dumps(stored, indent=1) + "\n")
    (RESULTS / "trace_extrapolation.md").write_text(text + "\n")
    return int(any(not row.equal_events and not row.refused for row in rows))


def modes() -> Iterator[TraceOptions]:
    """Yield bf16 weights and autocast with activation checkpointing none, full and selective."""
    for precision in (TracePrecision.BF16, TracePrecision.BF16_AUTOCAST):
        for recompute in Recompute:
            yield TraceOptions(precision=precision, activation_checkpointing=recompute)


def depth_rows() -> Iterator[Row]:
    """Yield every family in every mode, from the three smallest depths that respect its period."""
    for family in THIRTEEN_FAMILIES:
        period = layer_period(family_config(family, num_layers=26))
        for options in modes():
            yield _depth_row(family, family, period, options, SingleDevice())


def engine_rows() -> Iterator[Row]:
    """Yield Llama on one device with clipping, and as rank 0 of four under every engine."""
    specs = [("clipping", SingleDevice(gradient_clipping=1.0), TracePrecision.BF16), *engines()]
    for name, engine, precision in specs:
        if "overlap" not in name:
            yield _depth_row(f"llama, {name}", "llama", 1, TraceOptions(precision=precision), engine)


def _depth_row(name: str, family: str, period: int, options: TraceOptions, engine: EngineSpec) -> Row:
    base = smallest_depths(period)
    depth = base[0] + ADDED_PERIODS * period

    def traced(num_layers: int) -> TraceLog:
        return trace_step(family_model(family, num_layers=num_layers), family_batch(family), options, engine=engine)

    row = _row("depth", name, options, list(base), depth)
    try:
        found = extrapolate_depth({each: traced(each) for each in base}, depth)
    except ExtrapolationError as error:
        return _refused(row, error)
    return _compared(row, found, traced(depth))


def batch_rows() -> Iterator[Row]:
    """Yield 8 samples from 2, 3 and 4, and the refusal of a single sample."""
    for family in SIZE_FAMILIES:
        for options in modes():
            yield _size_row("batch", family, options, (2, 3, 4), 8, degree=1)
    yield _size_row("batch", "llama", TraceOptions(), (2, 3, 4), 1, degree=1)


def length_rows() -> Iterator[Row]:
    """Yield 1024 tokens from shorter samples: evenly where attention keeps no scores, else with the square.

    Steps of 128, the rows that CUDA's attention kernels work on at once.
    """
    for family in SIZE_FAMILIES:
        for options in modes():
            degree = 1 if family == "llama" else 2
            sizes = tuple(range(128, 128 * (degree + 3), 128))
            yield _size_row("length", family, options, sizes, 1024, degree=degree)
    yield _size_row("length", "llama", TraceOptions(), (128, 256, 384), 1000, degree=1)
    yield _size_row("length", "mistral-window", TraceOptions(), (4, 8, 12), 1024, degree=1)


def _size_row(what: str, family: str, options: TraceOptions, sizes: tuple[int, ...], size: int, *, degree: int) -> Row:
    def traced(value: int) -> TraceLog:
        shape = {"micro_batch_size": value} if what == "batch" else {"seq_len": value}
        return trace_step(family_model(family, num_layers=NUM_LAYERS), family_batch(family, **shape), options)

    row = _row(what, family, options, list(sizes), size)
    thresholds = (WINDOW,) if what == "length" and family in ("mistral-window", "gemma2") else ()
    logs: Mapping[int, TraceLog] = {each: traced(each) for each in sizes}
    try:
        found = extrapolate_size(logs, size, degree=degree, thresholds=thresholds)
    except ExtrapolationError as error:
        return _refused(row, error)
    return _compared(row, found, traced(size))


def _row(what: str, name: str, options: TraceOptions, traced_at: list[int], size: int) -> Row:
    return Row(
        what=what,
        name=name,
        precision=options.precision.value,
        activation_checkpointing=options.activation_checkpointing.value,
        traced_at=traced_at,
        extrapolated_to=size,
    )


def _refused(row: Row, error: ExtrapolationError) -> Row:
    return Row(**{**asdict(row), "refused": str(error)})


def _compared(row: Row, found: TraceLog, full: TraceLog) -> Row:
    pairs = zip(profile(found).phases, profile(full).phases, strict=True)
    differences = [mine.total_bytes - full_phase.total_bytes for mine, full_phase in pairs]
    result = {
        "num_events": full.num_events,
        "equal_events": found.equals(full),
        "largest_difference_bytes": max(differences, key=abs),
        "reserved_difference_bytes": replay(found).peak_reserved_bytes - replay(full).peak_reserved_bytes,
    }
    return Row(**{**asdict(row), **result})


def table(rows: list[Row]) -> str:
    """Return one line a subject and name."""
    lines = [
        "| what | model | traced at | extrapolated to | modes | equal event by event | largest difference | refused |",
        "|---|---|---|---|---|---|---|---|",
    ]
    keys = dict.fromkeys((row.what, row.name, tuple(row.traced_at), row.extrapolated_to) for row in rows)
    for what, name, traced_at, size in keys:
        group = [row for row in rows if (row.what, row.name, tuple(row.traced_at), row.extrapolated_to)
                 == (what, name, traced_at, size)]  # fmt: skip
        largest = max((row.largest_difference_bytes for row in group), key=abs)
        reasons = {row.refused for row in group if row.refused}
        equal, sizes = sum(row.equal_events for row in group), ", ".join(map(str, traced_at))
        reason = reasons.pop().split(";")[0] if reasons else ""
        lines.append(f"| {what} | {name} | {sizes} | {size} | {len(group)} | {equal} | {largest} bytes | {reason} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
