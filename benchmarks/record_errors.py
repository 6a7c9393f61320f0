"""Turn the results of `published_memory` and `memory_accuracy` into the shipped file of prediction errors.

A published run counts where it is scored and not known to be built differently from what is predicted, or no more
differently than a user's run may be; a run on CPU always. Usage: ``python -m benchmarks.record_errors``; writes
``configs/prediction_errors.csv`` and prints how many of the records lie inside the interval that the others give.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from strategies.conformal import conformal_range
from strategies.presets import configs_folder
from strategies.records import SHIPPED, Device, Kind, Record, write_records
from strategies.units import GIB

RESULTS = Path(__file__).parent / "results"
LIKE_A_USERS = frozenset({"TTC-004", "TTC-005", "MIST-001"})
"""Runs of the same strategy in eager code of an earlier version, or in another runtime: the largest errors on record.
An interval without them would promise more than users' own programs keep."""


def published() -> Iterator[Record]:
    """Yield the published peaks."""
    for peak in _result("published_memory")["peaks"]:
        if peak["usable"] != "mem" or peak["confidence"] == "low":
            continue
        if peak["built_differently"] and peak["id"] not in LIKE_A_USERS:
            continue
        yield Record(
            device=Device.GPU,
            kind=Kind(peak["kind"]),
            predicted_bytes=round(peak["predicted_gib"] * GIB),
            measured_bytes=round(peak["measured_gib"] * GIB),
            label=f"{peak['id']}: {peak['model']}, {peak['strategy']}",
            source="benchmarks/results/published_memory.json",
        )


def on_cpu() -> Iterator[Record]:
    """Yield our own runs."""
    for row in _result("memory_accuracy")["rows"]:
        setup = row["setup"]
        yield Record(
            device=Device.CPU,
            kind=Kind.ALLOCATED,
            predicted_bytes=max(row["predicted"].values()),
            measured_bytes=max(row["measured"].values()),
            label=f"{setup['model']}, {setup['strategy']}, {setup['activation_checkpointing']}, {setup['ranks']} ranks",
            source="benchmarks/results/memory_accuracy.json",
        )


def covered_by_the_others(ratios: list[float]) -> float:
    """Return the share of records inside the interval that all other records give."""
    inside = 0
    for index, ratio in enumerate(ratios):
        ends = conformal_range(ratios[:index] + ratios[index + 1 :])
        inside += ends is not None and ends[0] <= ratio <= ends[1]
    return inside / len(ratios)


def _result(name: str) -> dict[str, Any]:
    result: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text())
    return result


def main() -> None:
    records = [*published(), *on_cpu()]
    write_records(configs_folder() / SHIPPED, records)
    for device in Device:
        ratios = [record.measured_over_predicted for record in records if record.device is device]
        print(device, len(ratios), "records, measured / predicted", conformal_range(ratios))
        print("  inside what the others give:", covered_by_the_others(ratios))


if __name__ == "__main__":
    main()
