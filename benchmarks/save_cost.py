"""What does a save cost: seconds, bytes a rank, host memory; and how long does training wait for one in the background?

Method: Llamas of three sizes under FSDP2 with AdamW in fp32, 1, 2 and 4 CPU ranks, after one optimizer step, so that
both moments exist. Three saves each to a fresh folder: ours, ours in the background (the time until the call returns,
and until the checkpoint is complete), and torch.distributed.checkpoint's save and async_save of the same model and
optimizer. All of them flush to the disk. Medians of the slowest rank. Peak host memory is the kernel's (VmHWM, reset
before each save), so it holds what a save needs besides the engine; on a CPU the state itself is host memory.

Usage: ``python -m benchmarks.save_cost``; it writes ``benchmarks/results/save_cost.json`` and ``.md``.
"""

from __future__ import annotations

import json
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.checkpoint.state_dict_saver import async_save, save

from benchmarks.environment import environment
from benchmarks.parity_models import Demo, planner, training
from scaling.checkpoint.checkpoints import Checkpoints
from scaling.checkpoint.manifest import TrainingState, read_manifest
from scaling.checkpoint.meeting import Meeting
from scaling.checkpoint.snapshot import RunFacts
from scaling.engines.base import Engine
from scaling.local_ranks import run_ranks
from scaling.loop import train_step
from scaling.parity.ranks import make_engine
from scaling.parity.variants import VARIANTS
from strategies.job import Job
from strategies.units import MIB

RESULTS = Path(__file__).parent / "results"
RANKS = (1, 2, 4)
SIZES = {"5M": (160, 8), "19M": (320, 10), "71M": (640, 10)}
"""Hidden size and blocks."""
REPEATS = 3
KINDS = ("ours", "ours, in the background", "torch", "torch, async_save")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Of one kind of save: the slowest rank's median."""

    kind: str
    blocked_s: float
    """Until the call returns and training goes on."""
    complete_s: float
    peak_extra_bytes: int
    """Above the process's memory before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """All kinds for one model on one number of ranks."""

    size: str
    num_ranks: int
    num_parameters: int
    bytes_per_rank: int
    costs: tuple[Cost, ...]


def main() -> None:
    found: list[Measured] = []
    with tempfile.TemporaryDirectory() as name:
        for size, shape in SIZES.items():
            config = write_config(Path(name) / size, *shape)
            for num_ranks in RANKS:
                folder = Path(name) / f"{size}-{num_ranks}"
                program = partial(_in_rank, size, config, folder)
                found.append(run_ranks(program, world_size=num_ranks, timeout_s=600)[0])
                print(found[-1], flush=True)
    content = {"environment": environment(), "measured": [asdict(each) for each in found]}
    (RESULTS / "save_cost.json").write_text(json.dumps(content, indent=1) + "\n")
    (RESULTS / "save_cost.md").write_text(table(found))


def write_config(folder: Path, hidden_size: int, num_blocks: int) -> Path:
    folder.mkdir()
    config = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": 4096,
        "hidden_size": hidden_size,
        "intermediate_size": 4 * hidden_size,
        "num_hidden_layers": num_blocks,
        "num_attention_heads": 8,
        "max_position_embeddings": 64,
    }
    (folder / "config.json").write_text(json.dumps(config))
    return folder / "config.json"


def _in_rank(size: str, config: Path, folder: Path, device: torch.device) -> Measured:
    demo = Demo(name=size, config=str(config))
    num_ranks = dist.get_world_size()
    job = Job(seq_len=16, global_batch_size=num_ranks)
    decision = planner(demo, job, num_ranks=num_ranks)(replace(VARIANTS["fsdp2"], micro_batch_size=1))
    settings = training(steps=2, learning_rate=1e-3)
    engine = make_engine(demo.model(decision), decision, config=settings, device=device)
    data = demo.data(decision)
    train_step(engine, data.micro_batches(0, rank=engine.rank, world_size=num_ranks))
    meeting = Meeting(timeout_s=60.0)
    kinds = zip(KINDS, (_ours, _ours_behind, _torchs, _torchs_async), strict=True)
    costs = tuple(_cost(kind, partial(call, engine, meeting), folder, meeting) for kind, call in kinds)
    files = read_manifest(_ours(engine, meeting, folder / "last")()).files
    return Measured(
        size=size,
        num_ranks=num_ranks,
        num_parameters=sum(parameter.numel() for parameter in engine.model.parameters()),
        bytes_per_rank=max(entry.num_bytes for entry in files),
        costs=costs,
    )


Started = Callable[[], Any]
"""What a save that has returned leaves: the wait for its end, which returns the checkpoint's folder if it is ours."""


def _cost(kind: str, call: Callable[[Path], Started], folder: Path, meeting: Meeting) -> Cost:
    blocked, complete, peaks = [], [], []
    for number in range(REPEATS):
        target = folder / f"{kind}-{number}"
        before = _reset_peak()
        meeting.arrive("a save")
        start = time.perf_counter()
        finish = call(target)
        blocked.append(time.perf_counter() - start)
        finish()
        complete.append(time.perf_counter() - start)
        peaks.append(_status("VmHWM") - before)
        meeting.arrive("the end of a save")
        if dist.get_rank() == 0:
            shutil.rmtree(target)
    rows = meeting.gather(lambda: [statistics.median(each) for each in (blocked, complete, peaks)])
    worst = [max(column) for column in zip(*rows, strict=True)]
    return Cost(kind=kind, blocked_s=worst[0], complete_s=worst[1], peak_extra_bytes=int(worst[2]))


def _ours(engine: Engine, meeting: Meeting, target: Path, *, behind: bool = False) -> Started:
    facts = RunFacts(strategy="fsdp2", seed=0, identity={})
    checkpoints = Checkpoints(target, facts, meeting=meeting)
    checkpoints.save(engine, TrainingState(step=1, num_samples_seen=1), in_background=behind)

    def finish() -> Path | None:
        checkpoints.finish()
        return checkpoints.latest

    return finish


def _ours_behind(engine: Engine, meeting: Meeting, target: Path) -> Started:
    return _ours(engine, meeting, target, behind=True)


def _torchs(engine: Engine, meeting: Meeting, target: Path) -> Started:
    save(_state(engine), checkpoint_id=target)
    return lambda: None


def _torchs_async(engine: Engine, meeting: Meeting, target: Path) -> Started:
    future: Any = async_save(_state(engine), checkpoint_id=target, process_group=dist.group.WORLD)
    return future.result  # type: ignore[no-any-return]


def _state(engine: Engine) -> dict[str, Any]:
    model, optimizer = get_state_dict(engine.model, engine._optimizer)
    return {"model": model, "optimizer": optimizer}


def _reset_peak() -> int:
    """Return the memory that this process has now, from where its peak counts again."""
    Path("/proc/self/clear_refs").write_text("5")  # Linux, proc(5)
    return _status("VmRSS")


def _status(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


def table(found: Sequence[Measured]) -> str:
    """Return the costs as Markdown."""
    head = ["parameters", "ranks", "MiB a rank", *(f"{kind}: waits, complete (s)" for kind in KINDS)]
    head += [f"{kind}: peak MiB" for kind in KINDS]
    lines = [head, ["---"] * len(head)]
    for each in found:
        times = [f"{cost.blocked_s:.2f}, {cost.complete_s:.2f}" for cost in each.costs]
        peaks = [f"{cost.peak_extra_bytes / MIB:.0f}" for cost in each.costs]
        mib = f"{each.bytes_per_rank / MIB:.1f}"
        lines.append([f"{each.num_parameters:,}", str(each.num_ranks), mib, *times, *peaks])
    text = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return f"# What a save costs\n\nMethod: `benchmarks/save_cost.py`; FSDP2, fp32, AdamW, CPU ranks.\n\n{text}\n"


if __name__ == "__main__":
    main()
