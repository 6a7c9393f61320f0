"""Model states and buffers: the layouts of ``strategies`` beside traces of the real engines, by phase and cause.

Method: small models of four families and two tokens a pass, so that activations hardly count; the trainer's own engine
is traced (`scaling.trace.training`, equal to simulated ranks) as the first and as the last of N ranks. From the highest
moment of a phase activations and logits are taken off; what is left is compared with the layout's highest moment.
Usage: ``python -m benchmarks.state_bytes``; writes ``benchmarks/results/state_bytes.json`` and ``.md``.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

from benchmarks.environment import environment
from strategies.base import StateLayout
from strategies.cluster import CPU_NAME, Cluster, Gpu
from strategies.decision import Decision
from strategies.estimate import NO_ESTIMATE, CauseBytes, Phase
from strategies.job import Job, Precision
from strategies.load_model import load_model_spec
from strategies.model_spec import ModelSpec
from strategies.plan import ActivationCheckpointing, Buckets, OffloadDevice, Plan, StrategyName
from strategies.registry import STRATEGIES
from strategies.units import GIB
from strategies.zero import MIN_BUCKET_ELEMENTS
from strategies.zero_partitions import ranks_that_may_hold_most

RESULTS = Path(__file__).parent / "results"
SEQ_LEN = 2
MOST_LOGIT_BYTES = 12
"""Of one logit, where its log-softmax and two gradients of it are there."""
DEEPSPEED_BUCKETS = Buckets(
    reduce_bucket_size=500_000_000,
    allgather_bucket_size=500_000_000,
    stage3_prefetch_bucket_size=50_000_000,
    stage3_param_persistence_threshold=100_000,
    stage3_max_live_parameters=1_000_000_000,
    overlap_comm=True,
)
"""DeepSpeed's own defaults (0.19.8, runtime/zero/config.py)."""
SMALL_BUCKETS = Buckets(
    reduce_bucket_size=150_000,
    allgather_bucket_size=150_000,
    stage3_prefetch_bucket_size=60_000,
    stage3_param_persistence_threshold=1_000,
    stage3_max_live_parameters=800_000,
    overlap_comm=True,
)
"""Smaller than the larger tensors of every model here."""

DECODER = {"num_hidden_layers": 6, "num_attention_heads": 8, "num_key_value_heads": 2, "max_position_embeddings": 128}
MODELS: dict[str, dict[str, Any]] = {
    "llama": DECODER
    | {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": 4096,
        "hidden_size": 256,
        "intermediate_size": 688,
        "tie_word_embeddings": False,
    },
    "gpt2": {
        "model_type": "gpt2",
        "architectures": ["GPT2LMHeadModel"],
        "vocab_size": 8192,
        "n_embd": 256,
        "n_layer": 6,
        "n_head": 8,
        "n_positions": 128,
    },
    "qwen2 tied": DECODER
    | {
        "model_type": "qwen2",
        "architectures": ["Qwen2ForCausalLM"],
        "vocab_size": 151_936,
        "hidden_size": 256,
        "intermediate_size": 688,
        "tie_word_embeddings": True,
    },
    "mixtral": DECODER
    | {
        "model_type": "mixtral",
        "architectures": ["MixtralForCausalLM"],
        "vocab_size": 2048,
        "hidden_size": 256,
        "intermediate_size": 512,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "tie_word_embeddings": False,
        "sliding_window": None,
    },
}
MODELS["qwen2"] = MODELS["qwen2 tied"] | {"tie_word_embeddings": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One way to train one model."""

    model: str
    strategy: StrategyName
    ranks: int
    accumulation: int = 1
    precision: Precision = Precision.BF16
    bucket: str = "planned"
    """planned (as the search sizes them, the hidden size squared at most), small, or deepspeed (its defaults)."""
    overlap_comm: bool = True
    cuda: bool = False
    checkpointing: ActivationCheckpointing = ActivationCheckpointing.NONE
    offload: str = "none"
    """What rests on the host: none, optimizer, or all of stage 3."""


def spec_of(name: str, folder: Path) -> tuple[ModelSpec, Path]:
    """Return the spec of a model, and the config.json that it was read from."""
    path = folder / name.replace(" ", "-") / "config.json"
    if not path.is_file():
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(MODELS[name]))
    return load_model_spec(str(path)), path


def decision_of(case: Case, spec: ModelSpec, path: Path) -> Decision:
    """Return the plan of a case; its estimate is empty."""
    job = Job(seq_len=SEQ_LEN, global_batch_size=case.ranks * case.accumulation, precision=case.precision)
    planned = _at_most(max(spec.hidden_size**2, MIN_BUCKET_ELEMENTS), STRATEGIES[case.strategy].buckets(spec, job))
    buckets = {"planned": planned, "small": SMALL_BUCKETS, "deepspeed": DEEPSPEED_BUCKETS}[case.bucket]
    gpu = Gpu(name="test-gpu" if case.cuda else CPU_NAME, memory_bytes=GIB)
    return Decision(
        model=str(path),
        num_params=spec.num_params,
        cluster=Cluster(gpu=gpu, gpus=case.ranks, gpus_per_node=case.ranks),
        job=job,
        plan=Plan(
            strategy=case.strategy,
            micro_batch_size=1,
            gradient_accumulation_steps=case.accumulation,
            activation_checkpointing=case.checkpointing,
            offload_optimizer=OffloadDevice.NONE if case.offload == "none" else OffloadDevice.CPU,
            offload_param=OffloadDevice.CPU if case.offload == "all" else OffloadDevice.NONE,
            buckets=replace(buckets, overlap_comm=case.overlap_comm),
        ),
        estimate=NO_ESTIMATE,
    )


def _at_most(elements: int, buckets: Buckets) -> Buckets:
    """Return buckets of no more than ``elements``: small beside these models, as large ones' are."""
    return replace(
        buckets,
        reduce_bucket_size=min(buckets.reduce_bucket_size, elements),
        allgather_bucket_size=min(buckets.allgather_bucket_size, elements),
    )


@contextmanager
def as_rank(rank: int) -> Iterator[None]:
    """Make simulated process groups give this process another rank than the first."""
    import torch.distributed as dist

    original = dist.init_process_group

    def init(backend: str, **options: Any) -> None:
        original(backend, **(options | {"rank": rank}))

    with patch.object(dist, "init_process_group", init):
        yield


def measured(decision: Decision, *, rank: int) -> dict[Phase, CauseBytes]:
    """Return the highest moment of every phase of two steps of the trainer, an evaluation and a save."""
    from scaling.trace import profile
    from scaling.trace.training import trace_training

    with as_rank(rank):
        log = trace_training(decision, num_steps=2)
    return {phase.phase: phase.causes for phase in profile(log).phases}


def predicted(layout: StateLayout) -> dict[Phase, CauseBytes]:
    """Return the highest moment of every phase of a layout."""
    moments = {
        Phase.FORWARD: (layout.forward, layout.forward_start, layout.forward_gather),
        Phase.BACKWARD: layout.backward,
        Phase.OPTIMIZER_STEP: (layout.optimizer_step,),
        Phase.EVALUATION: (layout.evaluation, layout.evaluation_start, layout.evaluation_gather),
        Phase.SAVE: (layout.save,),
    }
    highest = {phase: max(causes, key=lambda each: each.total_bytes) for phase, causes in moments.items()}
    return {Phase.INITIALISE: layout.initialise} | {
        phase: layout.resident + causes for phase, causes in highest.items()
    }


def without_passes(causes: CauseBytes, phase: Phase, spec: ModelSpec) -> CauseBytes:
    """Return the causes without logits, and without activations where no gradient can be counted as one.

    The meter takes the transposed gradient of a head for logits, by its shape; only what two tokens have is taken off.
    """
    logits = max(causes.logits - MOST_LOGIT_BYTES * SEQ_LEN * spec.vocab_size, 0)
    if phase is Phase.BACKWARD:
        return replace(causes, logits=logits)
    return replace(causes, logits=logits, activations=0)


def cases() -> Iterator[Case]:
    """Yield every case of the table."""
    zero = (StrategyName.ZERO1, StrategyName.ZERO2, StrategyName.ZERO3)
    for model in MODELS:
        for strategy in (StrategyName.DDP, *zero, StrategyName.FSDP2):
            yield Case(model=model, strategy=strategy, ranks=8)
            yield Case(model=model, strategy=strategy, ranks=8, accumulation=4)
            if strategy is not StrategyName.DDP:
                yield Case(model=model, strategy=strategy, ranks=64)
            if strategy in zero:
                yield Case(model=model, strategy=strategy, ranks=8, bucket="small")
    for strategy in (StrategyName.DDP, *zero, StrategyName.FSDP2):
        yield Case(model="llama", strategy=strategy, ranks=2)
        yield Case(model="llama", strategy=strategy, ranks=8, precision=Precision.FP32)
        yield Case(model="llama", strategy=strategy, ranks=8, cuda=True)
    for strategy in zero:
        yield Case(model="llama", strategy=strategy, ranks=8, bucket="deepspeed")
        yield Case(model="llama", strategy=strategy, ranks=8, bucket="small", overlap_comm=False)
        yield Case(model="llama", strategy=strategy, ranks=2, bucket="small", accumulation=4, overlap_comm=False)
        yield Case(model="llama", strategy=strategy, ranks=8, cuda=True, offload="optimizer")
        yield Case(model="llama", strategy=strategy, ranks=2, cuda=True, offload="optimizer", accumulation=4)
    yield Case(model="llama", strategy=StrategyName.ZERO3, ranks=8, cuda=True, offload="all")
    yield Case(model="llama", strategy=StrategyName.ZERO3, ranks=8, cuda=True, offload="all", bucket="small")
    for checkpointed in ("llama", "mixtral"):
        yield Case(
            model=checkpointed,
            strategy=StrategyName.ZERO3,
            ranks=8,
            cuda=True,
            checkpointing=ActivationCheckpointing.FULL,
        )
    for strategy in (StrategyName.DDP, StrategyName.FSDP2):
        yield Case(model="llama", strategy=strategy, ranks=8, precision=Precision.BF16_PURE)


def ranks_of(case: Case, spec: ModelSpec) -> tuple[int, ...]:
    """Return the ranks that are traced: of a replicated layout one, else those that may hold most."""
    if case.strategy is StrategyName.DDP:
        return (0,)
    if case.strategy in (StrategyName.ZERO1, StrategyName.ZERO2):
        return ranks_that_may_hold_most(spec, case.ranks)
    return (0, case.ranks - 1)


def compare(case: Case, folder: Path) -> dict[str, Any]:
    """Return measured and predicted bytes of every phase, on the rank that holds most in it."""
    spec, path = spec_of(case.model, folder)
    decision = decision_of(case, spec, path)
    layout = STRATEGIES[case.strategy].layout(
        spec, job=decision.job, plan=decision.plan, data_parallel_size=case.ranks, on_cpu=not case.cuda
    )
    by_rank = [measured(decision, rank=rank) for rank in ranks_of(case, spec)]
    phases = {}
    for phase, causes in predicted(layout).items():
        highest = max((without_passes(each[phase], phase, spec) for each in by_rank), key=lambda each: each.total_bytes)
        phases[phase.value] = {
            "measured": highest.total_bytes,
            "predicted": causes.total_bytes,
            "measured_by_cause": dict(highest.items()),
            "predicted_by_cause": dict(causes.items()),
        }
    return {"case": asdict(case), "num_params": spec.num_params, "phases": phases}


def errors(rows: Sequence[dict[str, Any]]) -> dict[str, list[float]]:
    """Return predicted over measured, less one, of all cases by phase, and of the highest phase as ``peak``."""
    found: dict[str, list[float]] = {}
    for row in rows:
        for name, phase in row["phases"].items():
            found.setdefault(name, []).append(phase["predicted"] / phase["measured"] - 1)
        totals = [(phase["measured"], phase["predicted"]) for phase in row["phases"].values()]
        peak = max(value for _, value in totals) / max(value for value, _ in totals) - 1
        found.setdefault("peak", []).append(peak)
    return found


def markdown(rows: Sequence[dict[str, Any]]) -> str:
    """Return the summary by phase, and every case with its errors in per cent."""
    found = errors(rows)
    lines = [
        "# Model states and buffers, predicted beside traced",
        "",
        f"{len(rows)} cases, error of the prediction in per cent.",
        "",
        "| phase | lowest | median | highest | beyond 1 % |",
        "|---|---|---|---|---|",
    ]
    for name, values in found.items():
        beyond = sum(abs(value) > 0.01 for value in values)
        lowest, middle, highest = (f"{100 * value:.2f}" for value in (min(values), median(values), max(values)))
        lines.append(f"| {name} | {lowest} | {middle} | {highest} | {beyond} |")
    names = list(found)
    lines += ["", f"| case | {' | '.join(names)} |", "|---|" + "---|" * len(names)]
    for index, row in enumerate(rows):
        cells = " | ".join(f"{100 * found[name][index]:.2f}" for name in names)
        lines.append(f"| {_title(row['case'])} | {cells} |")
    return "\n".join(lines) + "\n"


def _title(case: dict[str, Any]) -> str:
    parts = [case["model"], case["strategy"], f"N {case['ranks']}", f"accumulation {case['accumulation']}"]
    parts += [case["precision"], f"{case['bucket']} buckets"]
    parts += [] if case["overlap_comm"] else ["no overlap"]
    parts += ["cuda"] if case["cuda"] else []
    parts += [f"checkpointing {case['checkpointing']}"] if case["checkpointing"] != "none" else []
    parts += [f"offload {case['offload']}"] if case["offload"] != "none" else []
    return ", ".join(parts)


def main() -> int:
    """Trace every case, and store measured beside predicted."""
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    with tempfile.TemporaryDirectory() as folder:
        rows = []
        for case in cases():
            rows.append(compare(case, Path(folder)))
            print(_title(rows[-1]["case"]), file=sys.stderr)
    stored = {"environment": environment(), "rows": rows}
    (RESULTS / "state_bytes.json").write_text(json.dumps(stored, indent=1) + "\n")
    (RESULTS / "state_bytes.md").write_text(markdown(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
