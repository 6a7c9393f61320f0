"""The closed forms of TensorFlow's engine against what its allocator held (benchmarks/results/keras_memory.json)."""

from __future__ import annotations

import json
import statistics
from pathlib import Path

import pytest

from benchmarks.keras_memory import Measured, Row, beside_prediction
from strategies.conformal import conformal_range
from strategies.memory.interval import shipped_ratios
from strategies.records import Device
from strategies.serialize import from_json

RESULTS = Path(__file__).parents[3] / "benchmarks" / "results" / "keras_memory.json"
ROWS = [
    beside_prediction(from_json(Measured, json.dumps(row["measured"]), source=RESULTS.name))
    for row in json.loads(RESULTS.read_text())["rows"]
]
ROUNDED_UP = 2.0
"""The allocator counts chunks of up to twice what was asked for (tensorflow 2.21, bfc_allocator.cc)."""


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.measured.setup.label}-{row.measured.setup.precision}")
def test_no_peak_is_below_nine_tenths_or_above_what_rounding_explains(row: Row) -> None:
    assert 0.9 < row.measured_over_predicted < ROUNDED_UP
    assert 0.75 < row.evaluation_measured_over_predicted < ROUNDED_UP


def test_nine_in_ten_lie_in_the_interval_that_is_told() -> None:
    ratios = conformal_range(shipped_ratios(Device.GPU))
    assert ratios is not None
    inside = [ratios[0] <= row.measured_over_predicted <= ratios[1] for row in ROWS]
    assert sum(inside) >= 0.9 * len(ROWS)


def test_typical_error_is_a_few_percent() -> None:
    assert 0.97 < statistics.median(row.measured_over_predicted for row in ROWS) < 1.06
