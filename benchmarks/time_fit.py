"""Fit the constants of the time model on the rows that `published_runs.FITTED` names, and print them.

Method: coordinate search with random steps (fixed seed) on the logarithm of predicted over measured throughput, with
Huber's loss (quadratic below 5 %), so that a few bad rows do not steer it. Three stages: what all GPUs share and the
A100's and H100's shares on llm-foundry's rows; then products of the H100 with 500 W and of the H200, and networks of
the former and of the V100, which only one source has. Where runs hide communication the network is not fitted: it is
80 % of the cluster's data sheet.

Usage: ``python -m benchmarks.time_fit``; what it prints stands in configs/gpu_rates.csv and strategies/time/rates.py.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from benchmarks.published_runs import FITTED, Run, runs_of
from strategies.time.rates import Rates, rates_of

HUBER = 0.05
SHARED = ("half_rate_width", "hop_s", "interference")
Parameters = dict[tuple[str, str], float]
"""(GPU or "", field) to value."""


def loss(parameters: Parameters, runs: Sequence[Run]) -> float:
    """Return the mean loss over ``runs``."""
    total = 0.0
    for run in runs:
        rates = rates_with(parameters, rates_of(run.case.cluster.gpu), gpu=run.case.cluster.gpu.name)
        error = abs(math.log(run.predict(rates).tokens_per_s_per_gpu / run.measured))
        total += error * error / (2 * HUBER) if error < HUBER else error - HUBER / 2
    return total / len(runs)


def rates_with(parameters: Parameters, rates: Rates, *, gpu: str) -> Rates:
    """Return ``rates`` with the parameters that are shared or belong to ``gpu``."""
    own: dict[str, Any] = {field: value for (name, field), value in parameters.items() if name in ("", gpu)}
    return replace(rates, **own)


def search(start: Parameters, error: Callable[[Parameters], float], *, rounds: int = 150) -> Parameters:
    """Return the best parameters found, each changed in turn by a factor whose spread follows its success."""
    draw, best, lowest = random.Random(0), start, error(start)
    spread = dict.fromkeys(start, 0.3)
    for _ in range(rounds):
        for key in start:
            tried = best | {key: best[key] * math.exp(draw.gauss(0, spread[key]))}
            found = error(tried)
            better = found < lowest
            if better:
                best, lowest = tried, found
            spread[key] = max(spread[key] * (1.5 if better else 0.8), 0.005)
    return best


def start_of(gpu: str, fields: Sequence[str]) -> Parameters:
    """Return the present values of ``fields`` for ``gpu``."""
    run = next(run for run in runs_of(FITTED) if run.case.cluster.gpu.name == gpu)
    return {(gpu, field): getattr(rates_of(run.case.cluster.gpu), field) for field in fields}


def fit(parameters: Parameters, fixed: Parameters, runs: Sequence[Run]) -> Parameters:
    """Return ``fixed`` with ``parameters`` fitted on ``runs``."""
    return fixed | search(parameters, lambda tried: loss(fixed | tried, runs))


def fitted() -> Parameters:
    """Return all constants, fitted in stages."""
    runs = runs_of(FITTED)
    first: Parameters = {("", field): getattr(rates_of(runs[0].case.cluster.gpu), field) for field in SHARED}
    for gpu in ("A100-40GB-SXM", "A100-80GB-SXM", "H100-80GB-SXM"):
        first |= start_of(gpu, ("matrix_flops_per_s", "attention_flops_per_s"))
    found = fit(first, {}, [run for run in runs if run.row["id"].startswith("LF")])
    later = (
        ("H100-96GB-HBM2e-SXM (500W)", "TTC", ("matrix_flops_per_s", "inter_node_bytes_per_s")),
        ("H200-141GB-SXM", "KEMP", ("matrix_flops_per_s",)),
        ("V100-32GB-SXM2", "BSZ3", ("inter_node_bytes_per_s",)),
    )
    for gpu, source, fields in later:
        its_runs = [run for run in runs if run.row["id"].startswith(source)]
        found = fit(start_of(gpu, fields), found, its_runs)
    return found


def main() -> None:
    """Fit and print."""
    peaks = {run.case.cluster.gpu.name: rates_of(run.case.cluster.gpu).peak_flops_per_s for run in runs_of(FITTED)}
    for (gpu, field), value in fitted().items():
        share = f" = {value / peaks[gpu]:.3f} of the peak" if field.endswith("flops_per_s") else ""
        print(f"{gpu or 'all'}: {field} = {value:.4g}{share}")


if __name__ == "__main__":
    main()
