"""Without TensorFlow: one line and exit code 2 where it is needed, and everything else as ever."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.scaling.decisions import plan_tiny
from tests.scaling.launching import REPOSITORY

HIDDEN = """
import importlib.abc, importlib.util, runpy, sys

class Hidden(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition('.')[0] in ('tensorflow', 'keras'):
            raise ModuleNotFoundError(f'No module named {name!r}', name=name)

real = importlib.util.find_spec
importlib.util.find_spec = lambda name, *more: None if name in ('tensorflow', 'keras') else real(name, *more)
sys.meta_path.insert(0, Hidden())
sys.argv = sys.argv[1:]
module = sys.argv[0]
if module == 'scaling.tensorflow.train':
    sys.argv[0] = '-m'  # as `python -m` has it while it looks for the module
runpy.run_module(module, run_name='__main__', alter_sys=True)
"""
"""Runs a module where neither can be imported."""
ONE_LINE = "error: this needs TensorFlow, which is not installed; pip install 'memory-scaling[tensorflow]'\n"


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", HIDDEN, *words], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(
    "words",
    [
        ("scaling.cli", "compare-frameworks", "--plan", "{plan}", "--out", "{out}"),
        ("scaling.tensorflow.train", "--plan", "{plan}", "--out", "{out}", "--steps", "3"),
    ],
)
def test_what_needs_it_says_so(tmp_path: Path, words: tuple[str, ...]) -> None:
    plan = plan_tiny(tmp_path / "plan", "mirrored", world_size=2)
    done = run(*(word.format(plan=plan, out=tmp_path / "out") for word in words))
    assert (done.returncode, done.stderr, done.stdout) == (2, ONE_LINE, "")


def test_planning_needs_it_not(tmp_path: Path) -> None:
    words = ["--framework", "tensorflow", "--gpus", "2", "--gpu", "A100-80GB-SXM", "--seq-len", "128"]
    done = run("scaling.cli", "plan", "llama-demo", *words, "--global-batch-size", "4", "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "python -m scaling.tensorflow.train --plan" in done.stdout
