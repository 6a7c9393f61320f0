"""How much memory an export takes beside the process itself; prints it as JSON, with the model's bytes.

python -m tests.scaling.export_memory FOLDER HIDDEN_SIZE NUM_BLOCKS
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from scaling.checkpoint.snapshot import RunFacts
from scaling.checkpoint_export import export_checkpoint
from scaling.models import InitialWeights, build_config, build_model
from strategies.decision import Decision
from strategies.load_model import resolve_model
from strategies.serialize import read_json, to_json
from tests.scaling.checkpoint.alone import checkpoints, one_rank, start_engine, state
from tests.scaling.decisions import TINY_LLAMA, plan_tiny


def save(folder: Path, *, hidden_size: int, num_blocks: int) -> None:
    """Write a checkpoint of a model with its first weights."""
    shape = {"hidden_size": hidden_size, "intermediate_size": 4 * hidden_size, "num_hidden_layers": num_blocks}
    plan = plan_tiny(folder / "plan", "ddp", world_size=1, config=TINY_LLAMA | shape)
    decision = read_json(Decision, plan)
    config = build_config(resolve_model(decision.model))
    engine = start_engine(build_model(config, InitialWeights(folder=None), decision=decision, seed=0))
    documents = {"plan.json": to_json(decision), "train_config.json": json.dumps({"tokenizer": "bytes"})}
    facts = RunFacts(strategy="ddp", seed=0, identity={}, documents=documents)
    checkpoints(folder / "run" / "checkpoints", facts).save(engine, state(0))


class Watch:
    """Samples this process's memory until it is left."""

    def __enter__(self) -> Watch:
        self._before, self.highest = _status("RssAnon"), 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._sample)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._thread.join()

    def _sample(self) -> None:
        while not self._ended.is_set():
            self.highest = max(self.highest, _status("RssAnon") - self._before)
            time.sleep(0.0005)


def _status(name: str) -> int:
    """Return bytes of /proc/self/status. Pages of files (RssFile) are the kernel's to take back, so not counted."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


def in_child(save_all: Callable[[], None]) -> None:
    """Let a copy of this process save: memory that it frees is not there to be taken again."""
    if child := os.fork():
        assert os.waitpid(child, 0)[1] == 0
        return
    try:
        with one_rank():
            save_all()
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def main(folder: Path, hidden_size: int, num_blocks: int) -> None:
    torch.set_num_threads(1)

    def save_all() -> None:
        save(folder / "small", hidden_size=32, num_blocks=1)
        save(folder / "large", hidden_size=hidden_size, num_blocks=num_blocks)

    in_child(save_all)
    export_checkpoint(folder / "small" / "run", out=folder / "small-model")  # what is imported at the first export
    model_bytes = 4 * read_json(Decision, folder / "large" / "plan" / "plan.json").num_params
    start = time.perf_counter()
    with Watch() as watch:
        export_checkpoint(folder / "large" / "run", out=folder / "model", max_shard_bytes=model_bytes // 3)
    told: dict[str, Any] = {"model_bytes": model_bytes, "extra_bytes": watch.highest}
    print(json.dumps(told | {"seconds": time.perf_counter() - start}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
