"""The time model against published throughput; issue's thresholds hold for the rows held aside, too."""

from __future__ import annotations

import csv

import pytest

from benchmarks.published_throughput import collect, score, spearman
from benchmarks.time_fit import fitted
from strategies.presets import configs_folder
from strategies.time import rates


def test_errors_and_ranks_of_published_throughput() -> None:
    found, left_out = collect()
    held = [each for each in found if not each.fitted]
    assert len(found) + len(left_out) == 330
    assert len(held) > len(found) / 2
    for rows in (found, held):
        assert score(rows).median <= 0.08
        assert score(rows).p90 <= 0.20
        assert spearman(rows) >= 0.95


@pytest.mark.slow
def test_constants_are_those_that_the_fit_gives() -> None:
    with (configs_folder() / "gpu_rates.csv").open(newline="") as file:
        shares = {row["name"]: row for row in csv.DictReader(file)}
    peaks = {name: rates.rates_of(rates_gpu).peak_flops_per_s for name, rates_gpu in _gpus(shares).items()}
    columns = {"matrix_flops_per_s": "matrix_share", "attention_flops_per_s": "attention_share"}
    for (gpu, field), value in fitted().items():
        if not gpu:
            assert getattr(rates, field.upper()) == pytest.approx(value, rel=0.02)
        elif field in columns:
            assert float(shares[gpu][columns[field]]) == pytest.approx(value / peaks[gpu], rel=0.02)
        else:
            assert float(shares[gpu]["inter_node_gb_s_per_gpu"]) == pytest.approx(value / 1e9, rel=0.02)


def _gpus(shares: dict[str, dict[str, str]]) -> dict[str, rates.Gpu]:
    from strategies.cluster import gpu_presets

    return {name: gpu for name, gpu in gpu_presets().items() if name in shares}
