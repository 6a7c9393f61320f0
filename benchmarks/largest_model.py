"""The largest model that trains within a budget of memory a rank: plain DDP's, DDP's at its best, and the planner's.

Method: the llama-demo family (512 words, heads of 32, half as many for keys, 2.7 times as wide inside) in widths that
are multiples of 64 with one block for every 64 down to every 32 of width; two CPU ranks; one sample of 128 tokens a
rank; bf16 with fp32 masters; AdamW. The search is by prediction: the sizes from the largest down, until the planner
finds a plan whose point estimate fits the budget. The proof is by running: that size, and the next one up, each under
`scaling.train` for six real optimizer steps on text; the meter's peak of device bytes on the rank that holds most must
be below the budget for the one and above it for the other, and the loss finite and fallen. The next size up gets the
plan that needs least. Plain DDP has no activation checkpointing, no offload and the framework's own loss; *DDP at its
best* may recompute activations and fuse the loss; the planner may do anything it knows, offload included. (By itself
it leaves offload out on CPU ranks, where nothing is gained by it; so it is asked with every place named, what is
offloaded least first, and the first choice that fits is taken.)

On a CPU all bytes lie in the same memory: the meter tells device from host by the owner of a tensor
(docs/measuring.md), so what the planner offloads counts as host memory here as it would beside a GPU, and is reported
next to it. The model is also built in the memory that stands for the device: 2 bytes of every parameter must fit it
before they are shared out, which bounds the planner's size here and would not beside a GPU. Step times are those of the
three steps that are not metered, on whatever else this machine does; the models differ in size, so they are given a
parameter too.

Usage: ``python -m benchmarks.largest_model [--budget-mib 64]`` (five minutes on two free cores); writes
``benchmarks/results/largest_model.json``, ``.md`` and the runs' logs in ``benchmarks/results/largest_model/``; exit
code 1 if a proof fails or the ratio is below 8.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path
from typing import Any

from benchmarks.environment import environment
from benchmarks.largest_model_report import BEST_DDP, PLAIN, PLANNED, STEPS, Contest, Outcome, Size, ratio_of, report
from strategies.cluster import CPU_NAME, GIVEN, Cluster, Gpu
from strategies.decision import Decision
from strategies.emit.files import PLAN_FILE, write_plan
from strategies.errors import NoPlanFitsError
from strategies.explain import describe_plan
from strategies.job import Job, LossImplementation, Precision
from strategies.load_model import model_spec, resolve_model
from strategies.plan import ActivationCheckpointing, OffloadDevice, StrategyName
from strategies.search import FixedParts
from strategies.select import decide
from strategies.units import GIB, MIB

RESULTS = Path(__file__).parent / "results"
LOGS = RESULTS / "largest_model"
RANKS, SEQ_LEN = 2, 128
JOB = Job(seq_len=SEQ_LEN, global_batch_size=RANKS, precision=Precision.BF16)
METERED_STEPS = 3
LARGEST_WIDTH = 1536
AMPLE_BYTES = 64 * GIB
TARGET_RATIO = 8.0
ON_DEVICE = FixedParts(offload_optimizer=OffloadDevice.NONE, offload_param=OffloadDevice.NONE)
DDP = replace(ON_DEVICE, strategy=StrategyName.DDP)
PLACES = product((OffloadDevice.NONE, OffloadDevice.CPU), repeat=2)
CONTENDERS = {
    PLAIN: (replace(DDP, activation_checkpointing=ActivationCheckpointing.NONE),),
    BEST_DDP: (replace(DDP, searches_loss=True),),
    PLANNED: tuple(
        FixedParts(offload_param=param, offload_optimizer=optimizer, searches_loss=True) for param, optimizer in PLACES
    ),
}
"""What the planner is asked, in this order, until something fits."""
TRAINING = ["--data", "builtin:python", "--tokenizer", "bytes", "--learning-rate", "1e-3", "--seed", "1"]


def shaped(width: int, blocks: int) -> dict[str, Any]:
    """Return llama-demo's config with another width and depth, in its own proportions."""
    demo = dict(resolve_model("llama-demo").config)
    heads = width // 32
    return demo | {
        "hidden_size": width,
        "intermediate_size": demo["intermediate_size"] * width // demo["hidden_size"],
        "num_hidden_layers": blocks,
        "num_attention_heads": heads,
        "num_key_value_heads": heads // 2,
    }


def sizes() -> list[Size]:
    """Return the family, smallest first."""
    shapes = [
        (width, blocks) for width in range(64, LARGEST_WIDTH + 1, 64) for blocks in range(width // 64, width // 32 + 1)
    ]
    return sorted(
        Size(num_params=model_spec(resolve_model(shaped(*shape))).num_params, width=shape[0], blocks=shape[1])
        for shape in shapes
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Search, run, print and store; return 1 where a proof fails or the ratio is below the target."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--budget-mib", type=int, default=64)
    budget_bytes = parser.parse_args(arguments).budget_mib * MIB
    LOGS.mkdir(exist_ok=True)
    family = sizes()
    contests = [contest(name, family, budget_bytes=budget_bytes) for name in CONTENDERS]
    ratio = ratio_of(contests)
    text = report(contests)
    stored = {
        "environment": environment(),
        "ratio": ratio,
        "contests": [asdict(each) | {"is_proven": each.is_proven} for each in contests],
    }
    (RESULTS / "largest_model.json").write_text(json.dumps(stored, indent=1) + "\n")
    (RESULTS / "largest_model.md").write_text(text)
    print(text)
    return int(ratio < TARGET_RATIO or not all(each.is_proven for each in contests))


def contest(contender: str, family: Sequence[Size], *, budget_bytes: int) -> Contest:
    """Return the contender's largest size and the next one up, both trained."""
    place = largest_place(contender, family, budget_bytes=budget_bytes)
    with tempfile.TemporaryDirectory() as folder:
        fitting = decision_for(contender, family[place], Path(folder) / "largest", budget_bytes=budget_bytes)
        too_large = smallest_plan(contender, family[place + 1], Path(folder) / "next")
        return Contest(
            contender=contender,
            budget_bytes=budget_bytes,
            largest=run(fitting, family[place], log=LOGS / f"{_slug(contender)}.txt"),
            next_up=run(too_large, family[place + 1], log=LOGS / f"{_slug(contender)}-next-size.txt"),
        )


def largest_place(contender: str, family: Sequence[Size], *, budget_bytes: int) -> int:
    """Return where in ``family`` the largest size stands that is predicted to fit."""
    for place in range(len(family) - 1, -1, -1):
        if fits(contender, family[place], budget_bytes=budget_bytes):
            if place == len(family) - 1:
                raise SystemExit(f"{contender} fits every size in {budget_bytes / MIB:.0f} MiB; raise LARGEST_WIDTH")
            return place
    raise SystemExit(f"{contender} fits no size in {budget_bytes / MIB:.0f} MiB; raise --budget-mib")


def fits(contender: str, size: Size, *, budget_bytes: int) -> bool:
    """Return whether the planner finds a plan within the budget."""
    return next(_choices(contender, size, budget_bytes=budget_bytes, model="-"), None) is not None


def decision_for(contender: str, size: Size, folder: Path, *, budget_bytes: int) -> Decision:
    """Return the planner's choice within the budget, for a model whose config is written to ``folder``."""
    return next(_choices(contender, size, budget_bytes=budget_bytes, model=_written(size, folder)))


def smallest_plan(contender: str, size: Size, folder: Path) -> Decision:
    """Return the plan that needs least, whatever the budget."""
    model = _written(size, folder)
    choices = list(_choices(contender, size, budget_bytes=AMPLE_BYTES, model=model))
    least = min(plan.needed_bytes for choice in choices for plan in choice.front)
    return next(_choices(contender, size, budget_bytes=least, model=model))


def _choices(contender: str, size: Size, *, budget_bytes: int, model: str) -> Iterator[Decision]:
    """Yield what the planner chooses in every place that the contender may use, what is offloaded least first."""
    cluster = Cluster(gpu=Gpu(name=CPU_NAME, memory_bytes=budget_bytes, source=GIVEN), gpus=RANKS, gpus_per_node=RANKS)
    spec = model_spec(resolve_model(shaped(size.width, size.blocks)))
    for fixed in CONTENDERS[contender]:
        with suppress(NoPlanFitsError):
            yield decide(spec, cluster=cluster, job=JOB, fixed=fixed, model=model, safety=0.0)


def _written(size: Size, folder: Path) -> str:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(shaped(size.width, size.blocks)))
    return str(folder)


def run(decision: Decision, size: Size, *, log: Path) -> Outcome:
    """Train ``decision`` on two real ranks; keep what it printed."""
    folder = Path(decision.model)
    write_plan(decision, folder=folder / "plan")
    out = folder / "run"
    ranks = ["--nproc_per_node", str(RANKS), "--standalone", "-m", "scaling.train"]
    steps = ["--steps", str(STEPS), "--measure-steps", str(METERED_STEPS), "--eval-every", "0"]
    command = [sys.executable, "-m", "torch.distributed.run", *ranks, "--plan", str(folder / "plan" / PLAN_FILE)]
    environ = os.environ | {"DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1"}
    finished = subprocess.run(
        [*command, *TRAINING, *steps, "--out", str(out)], capture_output=True, text=True, check=False, env=environ
    )
    if finished.returncode:
        raise SystemExit(f"{describe_plan(decision.plan)} ended with {finished.returncode}:\n{finished.stderr[-3000:]}")
    records = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    losses = [record["loss"] for record in records if "loss" in record]
    log.write_text(_log(decision, size, finished.stdout + finished.stderr, losses))
    summary = json.loads((out / "summary.json").read_text())
    host = decision.estimate.host
    return Outcome(
        size=size,
        plan=described(decision),
        predicted_peak_bytes=summary["predicted_peak_bytes"],
        measured_peak_bytes=summary["measured_peak_bytes"],
        predicted_host_bytes=host.peak.total_bytes if host else None,
        losses=tuple(losses),
        step_time_s=summary["step_time_s"],
    )


def described(decision: Decision) -> str:
    fused = "" if decision.job.loss is LossImplementation.STANDARD else f", {decision.job.loss.value} loss"
    return describe_plan(decision.plan) + fused


def _log(decision: Decision, size: Size, printed: str, losses: Iterable[float]) -> str:
    """Return what a run printed without its progress bar, below what was run."""
    lines = [line for line in re.split(r"[\r\n]+", printed) if line.strip() and "it/s]" not in line]
    lines = [line for line in lines if not re.search(r"\d+%\|", line)]
    head = f"{size.num_params:,} parameters: width {size.width}, {size.blocks} blocks; {described(decision)}"
    folder = str(Path(decision.model).parent)
    steps = [f"step {step}: loss {loss:.4f}" for step, loss in enumerate(losses, start=1)]
    return "\n".join([head, *steps, *(line.replace(folder, "...") for line in lines)]) + "\n"


def _slug(contender: str) -> str:
    return contender.lower().replace(" ", "-")


if __name__ == "__main__":
    sys.exit(main())
