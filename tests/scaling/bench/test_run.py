"""How a run that did not end well is told; and one real bench."""

from __future__ import annotations

import csv
import json
import sys
import time
from pathlib import Path

import pytest

from scaling.bench.run import cpu_s_per_step, reason_in
from scaling.bench.store import read_bench
from scaling.recovery.launcher import is_alive
from scaling.watched_process import watch
from tests.scaling.decisions import TINY_LLAMA
from tests.scaling.launching import run_cli


@pytest.mark.parametrize(
    ("printed", "reason"),
    [
        ("INFO x: y\nerror: precision=fp16 cannot be trained\nE: root\n", "precision=fp16 cannot be trained"),
        ("[rank1]: error on rank 1: no space left\n", "no space left"),
        (
            "Traceback (most recent call last):\n  File\nRuntimeError: first\n"
            "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n",
            "RuntimeError: first",
        ),
        ("[rank0]: torch.OutOfMemoryError: CUDA out of memory.\n", "torch.OutOfMemoryError: CUDA out of memory."),
        ("some words\n", ""),
    ],
)
def test_reason_is_the_line_that_says_it(printed: str, reason: str) -> None:
    assert reason_in(printed) == reason


def test_processor_time_of_steps_is_that_between_the_moments_they_were_seen() -> None:
    # 4 s from the second to the fourth step; the third was over before anybody looked.
    assert cpu_s_per_step({0: 1.0, 2: 3.0, 4: 7.0, 5: 9.0}, first=2, last=4) == 2.0
    assert cpu_s_per_step({0: 1.0, 2: 3.0}, first=2, last=4) is None


def test_a_process_that_does_not_end_is_ended_with_what_it_started(tmp_path: Path) -> None:
    script = (
        "import subprocess, sys, time; p = subprocess.Popen(['sleep', '77.25']); print(p.pid, flush=True); p.wait()"
    )
    log = tmp_path / "log"
    start = time.monotonic()
    watched = watch([sys.executable, "-c", script], out=tmp_path, log=log, timeout_s=1.5)
    assert watched.timed_out
    assert time.monotonic() - start < 30
    child = int(log.read_text().split()[0])
    deadline = time.monotonic() + 10  # a signal takes a moment
    while is_alive(child) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not is_alive(child)


@pytest.mark.distributed
@pytest.mark.slow
def test_two_cells_run_for_real_under_two_launchers_and_once_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "model" / "config.json"
    config.parent.mkdir()
    config.write_text(json.dumps(TINY_LLAMA))
    out, rows, plots, page = (tmp_path / name for name in ("out", "rows.csv", "plots", "page.html"))
    words = ["bench", str(config), "--strategy", "ddp", "--seq-len", "32", "--launcher", "torchrun,accelerate"]
    words += ["--gpu", "cpu", "--precision", "fp32", "--steps", "4", "--out", str(out), "--set", "data=builtin:python"]
    reports = ["--csv", str(rows), "--plot", str(plots), "--html", str(page)]
    assert run_cli(monkeypatch, [*words, *reports]) == 0
    printed = capfd.readouterr()
    assert "[2/2] ddp-none-micro1-seq32-acc1-accelerate-" in printed.err
    bench = read_bench(out)
    for each in bench.cells:
        [run] = each.runs
        assert len(run.step_times_s) == 4
        assert run.cpu_s_per_step is not None
        assert 0 < run.cpu_s_per_step < 20
        # DDP's formula is exact (benchmarks/results/memory_accuracy.md).
        assert each.peak_bytes == pytest.approx(each.predicted_peak_bytes, rel=0.02)
        assert run.measured is not None
        assert run.measured.peak_bytes == each.peak_bytes
    assert {row["launcher"]: row["outcome"] for row in csv.DictReader(rows.open())} == {
        "torchrun": "done",
        "accelerate": "done",
    }
    assert {path.name for path in plots.iterdir()} == {
        f"{name}.png" for name in ("memory", "throughput", "pareto", "predicted", "phases")
    }
    assert page.read_text().count("<svg") == 5
    assert not list(out.rglob("final"))

    start = time.monotonic()
    assert run_cli(monkeypatch, [*words, "--json"]) == 0
    assert time.monotonic() - start < 5
    assert json.loads(capfd.readouterr().out) == json.loads((out / "bench.json").read_text())
    assert run_cli(monkeypatch, ["bench", "compare", str(out), str(out)]) == 0
