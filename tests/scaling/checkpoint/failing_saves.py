"""Runs of the trainer on two ranks in which the disk of one is full at some saves; writes what became of each as JSON.

Ranks are forked from this process, which has imported the libraries once.

python -m tests.scaling.checkpoint.failing_saves FOLDER
"""

from __future__ import annotations

import errno
import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import scaling.checkpoint.save
from benchmarks.chaos import import_all
from scaling.ports import free_port
from scaling.train import main as train
from tests.scaling.decisions import plan_tiny

STEPS, NUM_RANKS = 4, 2
"""Saved after every step."""


@dataclass(frozen=True, kw_only=True)
class Case:
    strategy: str
    flags: tuple[str, ...]
    full_at: tuple[int, ...]
    """Numbers of the saves at which the disk of rank 1 is full."""


CONTINUE, ASYNC = ("--on-save-failure", "continue"), ("--save-async",)
CASES = {
    "ddp": Case(strategy="ddp", flags=CONTINUE, full_at=(2,)),
    "ddp, async": Case(strategy="ddp", flags=(*CONTINUE, *ASYNC), full_at=(2,)),
    "ddp, async, the last": Case(strategy="ddp", flags=(*CONTINUE, *ASYNC), full_at=(4,)),
    "ddp, stop": Case(strategy="ddp", flags=(), full_at=(2,)),
    "ddp, async, stop": Case(strategy="ddp", flags=ASYNC, full_at=(2,)),
    "zero3": Case(strategy="zero3", flags=CONTINUE, full_at=(1, 2, 3, 4)),
}


def run_case(case: Case, plan: Path, out: Path) -> dict[str, Any]:
    """Return exit codes, what rank 0 said, and what is in the folder then."""
    port = free_port()
    ranks = [_fork(case, plan, out, rank=rank, port=port) for rank in range(NUM_RANKS)]
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in ranks]
    return {
        "codes": codes,
        "said": _log(out, 0).read_text(),
        "metrics": [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()],
        "checkpoints": sorted(os.listdir(out / "checkpoints")),
    }


def _fork(case: Case, plan: Path, out: Path, *, rank: int, port: int) -> int:
    if child := os.fork():
        return child
    code = 70
    try:
        log = os.open(_log(out, rank), os.O_WRONLY | os.O_CREAT)
        os.dup2(log, 1)
        os.dup2(log, 2)
        place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": NUM_RANKS, "LOCAL_WORLD_SIZE": NUM_RANKS}
        os.environ |= {name: str(value) for name, value in place.items()}
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        if rank == 1:
            scaling.checkpoint.save.write_tensors = _full_disk(case)
        flags = ["--plan", plan, "--out", out, "--steps", STEPS, "--save-every", 1, "--keep-last", 0]
        code = train([str(each) for each in [*flags, "--measure-steps", 0, *case.flags]])
    finally:
        os._exit(code)


def _full_disk(case: Case) -> Callable[[Path, Any], tuple[int, str]]:
    real = scaling.checkpoint.save.write_tensors
    saves = iter(range(1, STEPS + 1))

    def write(path: Path, tensors: Any) -> tuple[int, str]:
        if next(saves) in case.full_at:
            path.write_bytes(b"a part")
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(path, tensors)

    return write


def _log(out: Path, rank: int) -> Path:
    return out.with_name(f"{out.name}.rank{rank}.log")


def main(folder: Path) -> None:
    import_all(["ddp", "zero3"])
    plans = {strategy: plan_tiny(folder / f"{strategy}-plan", strategy, world_size=2) for strategy in ("ddp", "zero3")}
    told = {name: run_case(case, plans[case.strategy], folder / name) for name, case in CASES.items()}
    (folder / "told.json").write_text(json.dumps(told))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
