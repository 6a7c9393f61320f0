"""Runs in every rank: a device that takes two samples and no more from the third step on. Rank 0 writes JSON.

python -m tests.scaling.recovery.ladder_worker OUT (under torchrun for several ranks)
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import transformers

import scaling.recovery.ladder
from scaling.batch import Batch, causal_batch
from scaling.engines.base import Engine
from scaling.engines.build import build_engine
from scaling.engines.optimizer import OptimizerSettings
from scaling.launch_env import end_process_group, join_process_group, read_launch_environment
from scaling.loop import train_step
from scaling.meter import NoMeter
from scaling.recovery.agreement import StepAgreement
from scaling.recovery.ladder import Ladder
from scaling.recovery.progress import Progress
from scaling.recovery.silence import Counts, SilentAtFirst
from strategies.estimate import Phase
from strategies.plan import OffloadDevice
from tests.scaling.decisions import TINY_LLAMA, toy_decision
from tests.scaling.engines.worker import with_adamw, with_sgd

STEPS, FIRST_BAD_STEP = 5, 3
PLANNED_SIZE, ROOM_FOR = 4, 2
"""Samples in a pass: by the plan, and as many as go into memory."""
NUM_MICRO_BATCHES = 3


@dataclass(frozen=True, kw_only=True)
class Fault:
    """Where memory is too small."""

    phase: Phase
    ranks: Collection[int]


class FullDevice:
    """Raises in the first block, in whose backward the later blocks' gradients are under way already."""

    def __init__(self, model: Any, fault: Fault | None) -> None:
        self.num_passes = 0
        self.num_failures = 0
        self._fault = fault if fault is not None and dist.get_rank() in fault.ranks else None
        model.model.layers[0].register_forward_hook(self._hook)

    def _hook(self, module: object, inputs: object, output: Any) -> Any:
        hidden = output[0] if isinstance(output, tuple) else output
        self.num_passes += 1
        # The first two passes of the third step go well, what they add must be dropped; the last one synchronises.
        is_full = self.num_passes >= FIRST_BAD_STEP * NUM_MICRO_BATCHES
        if self._fault is None or not is_full or len(hidden) <= ROOM_FOR:
            return output
        if self._fault.phase is Phase.FORWARD:
            self._fail()
        hidden.register_hook(lambda _: self._fail())
        return output

    def _fail(self) -> None:
        self.num_failures += 1
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")


def run(strategy: str, *, size: int, fault: Fault | None = None, offload: bool = False) -> dict[str, Any]:
    """Train STEPS steps with passes of ``size`` samples; return the weights and what became of the ladder."""
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**TINY_LLAMA))
    full = FullDevice(model, fault)
    engine = _engine(model, strategy, offload=offload)
    agreement = StepAgreement(timeout_s=60, is_asked_to_stop=lambda: False)
    ladder = Ladder(agreement, micro_batch_size=size, progress=Progress())
    losses, silent = [], _note_silence()
    for step in range(1, STEPS + 1):
        engine.set_learning_rate(0.3)
        batches = [piece for batch in _batches(step) for piece in _split(batch, size)]
        result = train_step(engine, list(ladder.cut(batches, engine.task)), gradients=ladder.add_gradients)
        losses.append(float(result.mean_loss))
    weights = [parameter.flatten().clone() for _, parameter in engine.gathered_parameters()]
    engine.close()
    return {
        "weights": torch.cat(weights).tolist(),
        "silent": silent,
        "losses": losses,
        "micro_batch_size": ladder.micro_batch_size,
        "failures": full.num_failures,
    }


def _note_silence() -> list[int]:
    """Return a list that grows by the collectives that each repeated pass leaves out."""
    silent: list[int] = []

    def noted(begun: Counts) -> SilentAtFirst:
        silent.append(sum(begun.values()))
        return SilentAtFirst(begun)

    vars(scaling.recovery.ladder)["SilentAtFirst"] = noted
    return silent


def _engine(model: Any, strategy: str, *, offload: bool) -> Engine:
    decision = toy_decision(strategy, world_size=dist.get_world_size(), accumulation=NUM_MICRO_BATCHES, max_norm=1.0)
    buckets = replace(decision.plan.buckets, reduce_bucket_size=3000, allgather_bucket_size=3000)
    place = OffloadDevice.CPU if offload else OffloadDevice.NONE
    decision = replace(decision, plan=replace(decision.plan, buckets=buckets, offload_optimizer=place))
    settings = OptimizerSettings(weight_decay=0.0)
    return build_engine(model, decision=decision, settings=settings, device=torch.device("cpu"), meter=NoMeter())


def _batches(step: int) -> list[Batch]:
    """Return this rank's share of a step: rows of other lengths, so that passes have other weights."""
    generator = torch.Generator().manual_seed(100 * step + dist.get_rank())
    found = []
    for _ in range(NUM_MICRO_BATCHES):
        ids = torch.randint(288, (PLANNED_SIZE, 16), generator=generator)
        lengths = torch.randint(3, 17, (PLANNED_SIZE, 1), generator=generator)
        found.append(causal_batch(ids, labels=torch.where(torch.arange(16) < lengths, ids, -100)))
    return found


def _split(batch: Batch, size: int) -> list[Batch]:
    ids, labels = batch.inputs["input_ids"], batch.labels
    cuts = [slice(first, first + size) for first in range(0, len(ids), size)]
    return [causal_batch(ids[cut], labels=labels[cut]) for cut in cuts]


def main(out: Path) -> None:
    launch = read_launch_environment(os.environ)
    join_process_group(launch, device=torch.device("cpu"), timeout_s=60)
    last = launch.world_size - 1
    faults = [(Phase.FORWARD, [last]), (Phase.BACKWARD, [last])]
    if launch.world_size > 1:
        faults.append((Phase.BACKWARD, [0, 1]))
    with_sgd()
    found: dict[str, Any] = {}
    strategies = [("ddp", False), ("zero2", False), ("fsdp2", False)]
    if launch.world_size > 1:
        strategies += [("zero1", False), ("zero2", True)]
    for strategy, offload in strategies:
        cases = {"small": run(strategy, size=ROOM_FOR, offload=offload)}
        for phase, ranks in faults:
            fault = Fault(phase=phase, ranks=ranks)
            cases[f"{phase.value} on {ranks}"] = run(strategy, size=PLANNED_SIZE, fault=fault, offload=offload)
        found[f"{strategy} offloaded" if offload else strategy] = cases
    with_adamw()
    if launch.rank == last:  # which failed in every case
        out.write_text(json.dumps(found))
    end_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
