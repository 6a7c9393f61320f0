"""Traces on meta tensors against the same steps on real CPU tensors, event by event.

Method: `trace_step` runs two AdamW steps of a narrow model twice: without data, with the CPU's kernels and autocast
emulated, and on real tensors without any emulation. Compared are all allocations, resizes and frees, in order, with
bytes and causes, and the peak of every phase. What is common to both is the storage log; `benchmarks.meter_accuracy`
holds that to the allocator. Usage: ``python -m benchmarks.trace_truth``; writes ``benchmarks/results/trace_truth.json``
and ``.md``; exit code 1 if a phase of any case differs.
"""

from __future__ import annotations

import json
import logging
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks.environment import environment
from benchmarks.trace_families import TEN_ARCHITECTURES, family_batch, family_model
from benchmarks.trace_modules import OWN_MODULES, OwnModel, cross_entropy, token_rows
from scaling.trace import EngineSpec, Recompute, TraceLog, TraceOptions, TracePrecision, profile, trace_step
from scaling.trace.step import Batch, Loss

RESULTS = Path(__file__).parent / "results"
PRECISIONS = (TracePrecision.FP32, TracePrecision.BF16, TracePrecision.BF16_AUTOCAST)
NUM_LAYERS = 3
NOTE = """\
Runs: fp32, bf16 weights, bf16 autocast, each with activation checkpointing none, full and selective; own modules and
engines also with two micro batches a step. Where events differ though phases and causes are equal: FSDP2 on a GPU has
streams, which the trace keeps and a CPU has not; DeepSpeed's stage 3 compares a few integers over ranks (14 tensors
of 8 bytes in two steps), which needs data and is left out."""
WORLD_SIZE = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One run that is made twice."""

    name: str
    model: Callable[[], nn.Module]
    batch: Batch
    options: TraceOptions
    loss: Loss | None = None
    engine: EngineSpec | None = None

    def log(self, *, on_cpu: bool) -> TraceLog:
        return trace_step(self.model, self.batch, self.options, loss=self.loss, engine=self.engine, on_cpu=on_cpu)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One case: how far the trace is from the real run."""

    name: str
    precision: str
    activation_checkpointing: str
    gradient_accumulation_steps: int
    num_events: int
    equal_events: bool
    equal_causes: bool
    largest_difference_bytes: int
    """Of the peak of a phase, traced minus real."""
    phase_bytes: dict[str, int]
    """Peak of every phase of the real run."""


def main() -> int:
    """Compare all cases, print and store the table."""
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    rows = [compare(case) for case in cases()]
    text = table(rows)
    print(text)
    stored = {"environment": environment(), "rows": [asdict(row) for row in rows]}
    (RESULTS / "trace_truth.json").write_text(json.dumps(stored, indent=1) + "\n")
    (RESULTS / "trace_truth.md").write_text(text + "\n")
    return int(any(row.largest_difference_bytes for row in rows))


def compare(case: Case) -> Row:
    """Return how the trace of ``case`` differs from its real run."""
    traced, real = case.log(on_cpu=False), case.log(on_cpu=True)
    ours, theirs = profile(traced), profile(real)
    differences = [mine.total_bytes - his.total_bytes for mine, his in zip(ours.phases, theirs.phases, strict=True)]
    return Row(
        name=case.name,
        precision=case.options.precision.value,
        activation_checkpointing=case.options.activation_checkpointing.value,
        gradient_accumulation_steps=case.options.gradient_accumulation_steps,
        num_events=real.num_events,
        equal_events=traced.equals(real),
        equal_causes=ours == theirs,
        largest_difference_bytes=max(differences, key=abs),
        phase_bytes={phase.phase.value: phase.total_bytes for phase in theirs.phases},
    )


def cases() -> Iterator[Case]:
    """Yield the ten architectures in nine modes, a user's own modules, and the three engines."""
    for name in TEN_ARCHITECTURES:
        for precision in PRECISIONS:
            for recompute in Recompute:
                options = TraceOptions(kernels="cpu", precision=precision, activation_checkpointing=recompute)
                yield _family_case(name, name, options)
    yield from _module_cases()
    yield from _engine_cases()


def _family_case(name: str, family: str, options: TraceOptions, engine: EngineSpec | None = None) -> Case:
    model = family_model(family, num_layers=NUM_LAYERS)
    return Case(name=name, model=model, batch=family_batch(family), options=options, engine=engine)


def _module_cases() -> Iterator[Case]:
    for name, module in OWN_MODULES.items():
        for precision in PRECISIONS:
            for recompute in (Recompute.NONE, Recompute.FULL) if module is OwnModel else (Recompute.NONE,):
                for steps in (1, 2):
                    options = TraceOptions(
                        kernels="cpu",
                        precision=precision,
                        activation_checkpointing=recompute,
                        gradient_accumulation_steps=steps,
                        num_steps=3,
                    )
                    yield Case(name=name, model=module, batch=token_rows(), options=options, loss=cross_entropy)


def _engine_cases() -> Iterator[Case]:
    for name, engine, precision in engines():
        for recompute in (Recompute.NONE, Recompute.FULL):
            for steps in (1, 2):
                options = TraceOptions(
                    kernels="cpu",
                    precision=precision,
                    activation_checkpointing=recompute,
                    gradient_accumulation_steps=steps,
                )
                yield _family_case(f"llama, {name}", "llama", options, engine)


def engines() -> Iterator[tuple[str, EngineSpec, TracePrecision]]:
    """Yield rank 0 of four under DDP, FSDP2 and DeepSpeed, with the format in which the module is made."""
    from scaling.trace.ranks.ddp import Ddp
    from scaling.trace.ranks.deepspeed import Zero
    from scaling.trace.ranks.fsdp2 import Fsdp2

    clipped: dict[str, Any] = {"world_size": WORLD_SIZE, "gradient_clipping": 1.0}
    yield "ddp", Ddp(**clipped), TracePrecision.FP32
    yield "fsdp2", Fsdp2(**clipped), TracePrecision.FP32
    yield "fsdp2 never resharded", Fsdp2(**clipped, reshard_after_forward=False), TracePrecision.FP32
    for stage in range(4):
        for overlap in (False, True):
            name = f"zero {stage}" + (", overlap_comm" if overlap else "")
            config = deepspeed_json(stage, overlap_comm=overlap)
            yield name, Zero(world_size=WORLD_SIZE, config=config), TracePrecision.BF16


def deepspeed_json(stage: int, *, overlap_comm: bool) -> dict[str, Any]:
    """Return a DeepSpeed configuration with buckets that a narrow model fills."""
    return {
        "train_micro_batch_size_per_gpu": 2,
        "bf16": {"enabled": True},
        "gradient_clipping": 1.0,
        "zero_optimization": {
            "stage": stage,
            "overlap_comm": overlap_comm,
            "reduce_bucket_size": 100_000,
            "allgather_bucket_size": 100_000,
            "stage3_prefetch_bucket_size": 50_000,
            "stage3_param_persistence_threshold": 1_000,
        },
    }


def table(rows: list[Row]) -> str:
    """Return one line a name: modes compared, modes equal event by event, largest difference of a phase."""
    lines = [
        "| model | runs compared | equal event by event | equal by phase and cause | largest difference of a phase |",
        "|---|---|---|---|---|",
    ]
    for name in dict.fromkeys(row.name for row in rows):
        group = [row for row in rows if row.name == name]
        largest = max((row.largest_difference_bytes for row in group), key=abs)
        events, causes = sum(row.equal_events for row in group), sum(row.equal_causes for row in group)
        lines.append(f"| {name} | {len(group)} | {events} | {causes} | {largest} bytes |")
    return "\n".join([*lines, "", NOTE])


if __name__ == "__main__":
    sys.exit(main())
