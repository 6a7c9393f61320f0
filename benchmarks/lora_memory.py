"""Predicted peaks beside the real engines where a part of the model is trained: LoRA, frozen parts, the head alone.

Method: that of ``benchmarks/memory_accuracy.py``: the trainer itself as one of N simulated ranks on CPU, with the
adapters of ``scaling/adapters.py``, two optimizer steps, an evaluation and the gathering of a save; the storage meter's
highest moment of every phase beside the closed forms.

Usage: ``python -m benchmarks.lora_memory [--again] [WORD ...]``; words choose setups by model, strategy or part;
``--again`` takes what was measured from the last result, predicts anew, and runs what is not there. Without words it
writes ``benchmarks/results/lora_memory.json`` and ``.md``; exit code 1 if the median error exceeds 1 % or one exceeds
4 %.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.environment import environment
from scaling.measure import run_steps
from scaling.meter import highest
from scaling.simulate import forked_from, simulate
from strategies.adapt import as_trained
from strategies.cluster import CPU_NAME, Cluster, Gpu
from strategies.decision import Decision
from strategies.estimate import MemoryProfile
from strategies.job import Job
from strategies.load_model import load_model_spec
from strategies.memory.predict import predict
from strategies.plan import ActivationCheckpointing, Plan, StrategyName
from strategies.registry import STRATEGIES
from strategies.serialize import from_json
from strategies.trained import Lora
from strategies.units import GIB, MIB
from strategies.zero_partitions import ranks_that_may_hold_most

MODELS = Path(__file__).parent / "models"
RESULTS = Path(__file__).parent / "results"
NUM_STEPS = 2
PRELOADED = ("deepspeed", "transformers", "scaling.measure", "scaling.meter")
RANK = 16
STRATEGY_NAMES = (StrategyName.DDP, StrategyName.ZERO2, StrategyName.ZERO3, StrategyName.FSDP2)
NONE, FULL = ActivationCheckpointing.NONE, ActivationCheckpointing.FULL
ATTENTION = {"gpt2-tied": ("c_attn",)}
EMBEDDINGS = {"gpt2-tied": ("wte", "wpe")}
HEADS = {"gpt2-tied": "ln_f", "gemma-small": "norm"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """One run."""

    model: str
    strategy: StrategyName
    parts: str
    """What is trained: ``lora attention``, ``lora all-linear``, ``frozen embedding`` or ``head``."""
    activation_checkpointing: ActivationCheckpointing
    gradient_accumulation_steps: int = 1
    ranks: int = 2
    micro_batch_size: int = 2
    seq_len: int = 128


def setups() -> Iterator[Setup]:
    """Yield the runs: adapters with and without recomputation, frozen parts, other families."""
    for parts in ("lora attention", "lora all-linear"):
        for strategy in STRATEGY_NAMES:
            base = Setup(model="llama-gqa", strategy=strategy, parts=parts, activation_checkpointing=NONE)
            yield base
            yield replace(base, activation_checkpointing=FULL, gradient_accumulation_steps=2, ranks=4)
    for strategy in STRATEGY_NAMES:
        base = Setup(model="llama-gqa", strategy=strategy, parts="frozen embedding", activation_checkpointing=FULL)
        yield base
        # Frozen blocks are not checkpointed: there is nothing to compute again.
        yield replace(base, parts="head", activation_checkpointing=NONE, gradient_accumulation_steps=2, ranks=4)
    for model in ("gpt2-tied", "gemma-small", "qwen2-vocabulary"):
        for strategy in STRATEGY_NAMES:
            yield Setup(model=model, strategy=strategy, parts="lora all-linear", activation_checkpointing=FULL, ranks=8)
        for strategy in (StrategyName.DDP, StrategyName.ZERO3):
            yield Setup(
                model=model, strategy=strategy, parts="frozen embedding", activation_checkpointing=NONE, ranks=8
            )


def job_of(setup: Setup) -> Job:
    """Return the job of a setup."""
    batch = setup.micro_batch_size * setup.gradient_accumulation_steps * setup.ranks
    job = Job(seq_len=setup.seq_len, global_batch_size=batch)
    match setup.parts:
        case "lora attention":
            targets = ATTENTION.get(setup.model, ("q_proj", "k_proj", "v_proj", "o_proj"))
            return replace(job, lora=Lora(rank=RANK, target_modules=targets))
        case "lora all-linear":
            return replace(job, lora=Lora(rank=RANK))
        case "frozen embedding":
            return replace(job, freeze=EMBEDDINGS.get(setup.model, ("embed_tokens",)))
        case "head":
            return replace(job, freeze=("*", f"!{HEADS.get(setup.model, 'lm_head')}"))
    raise ValueError(setup.parts)


def decision_of(setup: Setup) -> Decision:
    """Return the setup with its prediction."""
    path = str(MODELS / f"{setup.model}.json")
    spec, job = load_model_spec(path), job_of(setup)
    cluster = Cluster(gpu=Gpu(name=CPU_NAME, memory_bytes=GIB), gpus=setup.ranks, gpus_per_node=setup.ranks)
    plan = Plan(
        strategy=setup.strategy,
        micro_batch_size=setup.micro_batch_size,
        gradient_accumulation_steps=setup.gradient_accumulation_steps,
        activation_checkpointing=setup.activation_checkpointing,
        buckets=STRATEGIES[setup.strategy].buckets(spec, job),
    )
    estimate = predict(spec, cluster=cluster, job=job, plan=plan)
    return Decision(model=path, num_params=spec.num_params, cluster=cluster, job=job, plan=plan, estimate=estimate)


def measured(decision: Decision) -> MemoryProfile:
    """Return the device bytes of the rank that holds most; of FSDP2 and stage 3 the first one's shards are largest."""
    program = partial(run_steps, decision, NUM_STEPS, None)
    spec, size = as_trained(load_model_spec(decision.model), decision.job), decision.cluster.gpus
    by_cut = decision.plan.strategy in (StrategyName.ZERO1, StrategyName.ZERO2)
    ranks = ranks_that_may_hold_most(spec, size) if by_cut else (0,)
    context = forked_from(PRELOADED)
    return highest(
        [simulate(program, world_size=size, rank=rank, vocab_size=spec.vocab_size, context=context) for rank in ranks]
    ).device()


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Bytes by phase."""

    setup: Setup
    num_trained_params: int
    predicted: dict[str, int]
    measured: dict[str, int]
    predicted_causes: dict[str, dict[str, int]]
    measured_causes: dict[str, dict[str, int]]

    @property
    def error(self) -> float:
        """Of the peak, relative; above zero where too much was predicted."""
        return max(self.predicted.values()) / max(self.measured.values()) - 1


def row_of(setup: Setup, known: Row | None = None) -> Row:
    """Run one setup, unless ``known`` is what it held when it was run."""
    decision = decision_of(setup)
    estimated = decision.estimate.memory
    predicted = {phase.phase.value: phase.total_bytes for phase in estimated.phases}
    causes = {phase.phase.value: dict(phase.causes.items()) for phase in estimated.phases}
    if known:
        return replace(known, predicted=predicted, predicted_causes=causes)
    real = measured(decision)
    return Row(
        setup=setup,
        num_trained_params=as_trained(load_model_spec(decision.model), decision.job).num_trained_params,
        predicted=predicted,
        measured={phase.phase.value: phase.total_bytes for phase in real.phases},
        predicted_causes=causes,
        measured_causes={phase.phase.value: dict(phase.causes.items()) for phase in real.phases},
    )


def stored() -> dict[Setup, Row]:
    """Return the rows of the last result."""
    path = RESULTS / "lora_memory.json"
    rows = json.loads(path.read_text())["rows"] if path.is_file() else []
    found = [from_json(Row, json.dumps(row), source=str(path)) for row in map(_without_error, rows)]
    return {row.setup: row for row in found}


def _without_error(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name != "error"}


def summary(rows: Sequence[Row]) -> dict[str, Any]:
    """Return the scores."""
    errors = [row.error for row in rows]
    return {
        "runs": len(rows),
        "median_error": round(statistics.median(map(abs, errors)), 5),
        "largest_error": round(max(map(abs, errors)), 5),
        "lowest": round(min(errors), 5),
    }


def report(rows: Sequence[Row]) -> str:
    """Return a table in Markdown."""
    lines = [
        "| model | trained | strategy | checkpointing | accumulation | ranks | predicted MiB | measured | error % |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        setup, peaks = row.setup, (max(row.predicted.values()) / MIB, max(row.measured.values()) / MIB)
        words = (setup.model, setup.parts, setup.strategy, setup.activation_checkpointing)
        numbers = (setup.gradient_accumulation_steps, setup.ranks, *(f"{peak:.2f}" for peak in peaks))
        lines.append(f"| {' | '.join(map(str, (*words, *numbers)))} | {100 * row.error:.2f} |")
    return "\n".join(lines) + "\n"


def main(words: Sequence[str]) -> int:
    """Run the setups that the words choose."""
    chosen = [word for word in words if word != "--again"]
    again = stored() if "--again" in words else {}
    rows: list[Row] = []
    for setup in setups():
        if all(word in (setup.model, setup.strategy, setup.parts, setup.activation_checkpointing) for word in chosen):
            rows.append(row_of(setup, again.get(setup)))
            print(report(rows[-1:]).splitlines()[-1], file=sys.stderr, flush=True)
            if not chosen:
                write(rows)
    scores = summary(rows)
    print(json.dumps(scores, indent=1))
    return 0 if scores["median_error"] <= 0.01 and scores["largest_error"] <= 0.04 else 1


def write(rows: Sequence[Row]) -> None:
    """Write the result files."""
    scores = summary(rows)
    result = {
        "environment": environment(),
        "summary": scores,
        "rows": [asdict(row) | {"error": row.error} for row in rows],
    }
    (RESULTS / "lora_memory.json").write_text(json.dumps(result, indent=1) + "\n")
    scored = "\n".join(f"- {name}: {value}" for name, value in scores.items())
    (RESULTS / "lora_memory.md").write_text(f"{scored}\n\n{report(rows)}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
