"""What python runs at its start where this folder is on PYTHONPATH: makes training worse on purpose.

``BENCH_REGRESSION=slow``: every optimizer step is followed by work of no use for 5 % of its time. ``leak``: the first
step keeps a buffer of ``BENCH_REGRESSION_BYTES``. Anything else: the same hook, which does nothing, so that runs differ
in nothing else. Used by `benchmarks.bench_regressions` alone.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import time
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

SLOWER = 0.05
TRAINER = "scaling.trainer"
_kept: list[Any] = []


class _AfterImport(MetaPathFinder):
    """Changes the trainer when it has been imported."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if name != TRAINER:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        assert spec is not None
        assert spec.loader is not None
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            _change(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _change(trainer: Any) -> None:
    step, kind = trainer.train_step, os.environ.get("BENCH_REGRESSION", "none")

    def changed_step(*arguments: Any, **named: Any) -> Any:
        start = time.perf_counter()
        if kind == "leak" and not _kept:
            import torch

            _kept.append(torch.empty(int(os.environ["BENCH_REGRESSION_BYTES"]), dtype=torch.uint8))
        result = step(*arguments, **named)
        if kind == "slow":
            end = time.perf_counter() + SLOWER * (time.perf_counter() - start)
            while time.perf_counter() < end:
                pass
        return result

    trainer.train_step = changed_step


sys.meta_path.insert(0, _AfterImport())
