"""The small run that `benchmarks.chaos` disturbs: a model with dropout, a text of a few dozen samples, a plan."""

from __future__ import annotations

import json
from pathlib import Path

from strategies.cluster import CPU_NAME, Cluster, Gpu
from strategies.emit.files import PLAN_FILE, write_plan
from strategies.job import Job, Precision
from strategies.load_model import load_model_spec
from strategies.plan import StrategyName
from strategies.search import FixedParts
from strategies.select import decide
from strategies.units import GIB

SEQ_LEN, NUM_SAMPLES = 32, 50
"""Of which a fifth is held out: 40 samples to train on are 5 steps an epoch."""
GPT2 = {
    "model_type": "gpt2",
    "architectures": ["GPT2LMHeadModel"],
    "vocab_size": 260,
    "n_positions": SEQ_LEN,
    "n_embd": 36,
    "n_layer": 2,
    "n_head": 4,
}
"""Dropout is GPT-2's default of a tenth."""


def write_text(folder: Path) -> Path:
    """Return a file whose bytes make `NUM_SAMPLES` samples."""
    path = folder / "text.txt"
    path.write_text("".join(chr(97 + number * number % 26) for number in range(SEQ_LEN * NUM_SAMPLES)))
    return path


def write_tiny_plan(folder: Path, strategy: str, *, global_batch_size: int, num_ranks: int = 2) -> Path:
    """Write the planner's files; return the path of plan.json. A step is two micro batches of two samples a rank."""
    folder.mkdir(parents=True)
    model = folder / "config.json"
    model.write_text(json.dumps(GPT2))
    decision = decide(
        load_model_spec(str(model)),
        cluster=Cluster(gpu=Gpu(name=CPU_NAME, memory_bytes=GIB), gpus=num_ranks, gpus_per_node=num_ranks),
        job=Job(seq_len=SEQ_LEN, global_batch_size=global_batch_size, precision=Precision.FP32),
        fixed=FixedParts(strategy=StrategyName(strategy), micro_batch_size=2),
        model=str(model),
    )
    write_plan(decision, folder=folder)
    return folder / PLAN_FILE
