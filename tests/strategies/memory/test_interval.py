"""Intervals: ranks of recorded errors, checked on errors whose distribution is known."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from benchmarks.record_errors import covered_by_the_others
from strategies import records
from strategies.conformal import FEWEST_RECORDS, conformal_range
from strategies.records import SHIPPED, Device


def test_too_few_errors_give_no_interval() -> None:
    assert conformal_range([1.0] * (FEWEST_RECORDS - 1)) is None
    assert conformal_range([1.0] * FEWEST_RECORDS) == (1.0, 1.0)


def test_ends_are_the_ranks_of_split_conformal_prediction() -> None:
    """n = 99: ceil(100 * 0.95) = 95th smallest above, the 5th below (Lei et al. 2018, section 2.2)."""
    assert conformal_range([float(number) for number in range(1, 100)]) == (5.0, 95.0)


@pytest.mark.parametrize("count", [19, 40, 200])
def test_nine_in_ten_new_errors_lie_inside(count: int) -> None:
    """On exchangeable errors, whatever their distribution; the bound is exact in expectation."""
    generator = random.Random(0)
    hits = trials = 0
    for _ in range(400):
        low, high = conformal_range([generator.lognormvariate(0, 0.1) for _ in range(count)]) or (1.0, 1.0)
        drawn = [generator.lognormvariate(0, 0.1) for _ in range(50)]
        hits += sum(low <= ratio <= high for ratio in drawn)
        trials += len(drawn)
    assert hits / trials >= 0.9 - 0.01


@pytest.mark.parametrize("device", list(Device))
def test_shipped_records_lie_inside_the_interval_that_the_others_give(device: Device) -> None:
    """Each is left out in turn. Nine in ten are promised; chance allows a few less among so few."""
    ratios = [record.measured_over_predicted for record in records.shipped_records() if record.device is device]
    assert len(ratios) > FEWEST_RECORDS
    assert conformal_range(ratios[1:]) is not None
    assert covered_by_the_others(ratios) >= 0.85


@pytest.mark.parametrize(
    "row",
    [
        *("gpu,allocated,0,5,x,y", "gpu,allocated,abc,5,x,y", "tpu,allocated,1,1,x,y", "gpu", ""),
        *(f"cpu,allocated,5,{10**400},x,y", f"cpu,allocated,{10**400},5,x,y"),
    ],
    ids=["zero", "text", "device", "short", "empty", "huge measured", "huge predicted"],
)
def test_a_row_that_is_no_record_does_not_count(row: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(records, "configs_folder", lambda: tmp_path)
    records.shipped_records.cache_clear()
    header = "device,kind,predicted_bytes,measured_bytes,label,source"
    (tmp_path / SHIPPED).write_text(f"{header}\n{row}\ncpu,allocated,100,101,good,here\n")
    assert [record.label for record in records.shipped_records()] == ["good"]
    records.shipped_records.cache_clear()
