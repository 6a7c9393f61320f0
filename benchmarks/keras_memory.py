"""Predicted peaks of TensorFlow's engine beside what its allocator held, on this machine's CPU.

Method: small decoders are trained for two optimizer steps, and evaluated once, under `MirroredStrategy` with the
allocator that TensorFlow has on GPUs (``scaling.tensorflow_extra.count_cpu_memory``), which counts the bytes of the
chunks in use, rounded up as it cuts them. The second step's peak, an even share of all replicas, stands beside the
closed forms of ``strategies/mirrored.py`` and ``strategies/memory/keras_activations.py``. Operators run one after the
other; replicas share the allocator, and need not be at their highest moment together.

Usage: ``python -m benchmarks.keras_memory [--again]``; ``--again`` takes what was measured from the last result and
predicts anew. Writes ``benchmarks/results/keras_memory.json`` and ``.md``.
"""

from __future__ import annotations

import gc
import json
import os
import statistics
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.environment import environment
from scaling.tensorflow_extra import count_cpu_memory
from strategies.cluster import CPU_NAME, Cluster, Gpu
from strategies.decision import Decision
from strategies.estimate import NO_ESTIMATE, Phase
from strategies.job import Attention, Job, Precision
from strategies.load_model import load_model_spec, resolve_model
from strategies.memory.predict import predict
from strategies.plan import ActivationCheckpointing, Plan, StrategyName
from strategies.registry import STRATEGIES
from strategies.serialize import from_json, plain
from strategies.units import GIB, MIB

RESULTS = Path(__file__).parent / "results"
NUM_STEPS = 2
LLAMA = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "max_position_embeddings": 2048}
GPT2 = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_positions": 1024}
NO_DROPOUT = {"attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """One run."""

    label: str
    model: dict[str, Any]
    precision: Precision
    micro_batch_size: int
    seq_len: int
    replicas: int = 1
    gradient_accumulation_steps: int = 1
    activation_checkpointing: ActivationCheckpointing = ActivationCheckpointing.NONE

    def plan(self) -> tuple[Cluster, Job, Plan]:
        """Return the run in the planner's nouns."""
        samples = self.micro_batch_size * self.gradient_accumulation_steps * self.replicas
        job = Job(seq_len=self.seq_len, global_batch_size=samples, precision=self.precision, attention=Attention.EAGER)
        plan = Plan(
            strategy=StrategyName.MIRRORED,
            micro_batch_size=self.micro_batch_size,
            gradient_accumulation_steps=self.gradient_accumulation_steps,
            activation_checkpointing=self.activation_checkpointing,
            buckets=STRATEGIES[StrategyName.MIRRORED].buckets(load_model_spec(self.model), job),
        )
        gpu = Gpu(name=CPU_NAME, memory_bytes=64 * GIB, source="given")
        return Cluster(gpu=gpu, gpus=self.replicas, gpus_per_node=self.replicas), job, plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What a run held, an even share of one replica."""

    setup: Setup
    peak_bytes: int
    """Of the second step."""
    evaluation_peak_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A run beside its prediction."""

    measured: Measured
    predicted_bytes: int
    peak_phase: str
    measured_over_predicted: float
    evaluation_measured_over_predicted: float


def setups() -> Iterator[Setup]:
    """Yield the runs: activations of each size in turn, depth, recomputation, states, both number formats."""
    for precision in (Precision.FP32, Precision.BF16_AUTOCAST):
        for layers in (2, 8):
            yield _tokens("wide", precision, llama(layers=layers, hidden=256, mlp=320))
            yield _tokens("deep MLP", precision, llama(layers=layers, hidden=128, mlp=1024))
            yield _tokens("many heads", precision, llama(layers=layers, hidden=128, mlp=160, heads=16))
            yield _tokens("gpt2", precision, gpt2(layers=layers, hidden=128))
            yield _tokens("recomputed", precision, llama(layers=layers, hidden=256, mlp=320), recomputes=True)
        yield _tokens("long", precision, llama(layers=2, hidden=64, mlp=96, heads=2), seq_len=256)
        yield _tokens("many words", precision, llama(layers=1, hidden=64, mlp=96, heads=2, words=4096))
        yield _tokens("tied, many words", precision, gpt2(layers=1, hidden=64, words=4096))
        for steps, replicas in ((1, 1), (4, 1), (1, 2), (4, 2)):
            yield Setup(
                label="states",
                model=llama(layers=4, hidden=512, mlp=1024, words=4096),
                precision=precision,
                micro_batch_size=1,
                seq_len=16,
                replicas=replicas,
                gradient_accumulation_steps=steps,
            )


def _tokens(
    label: str, precision: Precision, model: dict[str, Any], *, seq_len: int = 128, recomputes: bool = False
) -> Setup:
    kind = ActivationCheckpointing.FULL if recomputes else ActivationCheckpointing.NONE
    return Setup(
        label=label,
        model=model,
        precision=precision,
        micro_batch_size=4,
        seq_len=seq_len,
        activation_checkpointing=kind,
    )


def llama(*, layers: int, hidden: int, mlp: int, heads: int = 4, words: int = 64) -> dict[str, Any]:
    """Return a config of which every two query heads share one of keys."""
    sizes = {"hidden_size": hidden, "intermediate_size": mlp, "num_hidden_layers": layers, "vocab_size": words}
    return {
        **LLAMA,
        **sizes,
        "num_attention_heads": heads,
        "num_key_value_heads": heads // 2,
        "tie_word_embeddings": False,
    }


def gpt2(*, layers: int, hidden: int, words: int = 64) -> dict[str, Any]:
    """Return a config with tied vocabulary matrices."""
    return {**GPT2, **NO_DROPOUT, "n_embd": hidden, "n_layer": layers, "n_head": 4, "vocab_size": words}


def measure(setup: Setup) -> Measured:
    """Train and evaluate in this process, whose CPU is split in two already."""
    import numpy as np
    import tensorflow as tf

    from scaling.engines.optimizer import OptimizerSettings
    from scaling.tensorflow.mirrored import build_mirrored_engine
    from scaling.tensorflow.step_batch import deal

    def allocated(kind: str) -> int:
        return int(tf.config.experimental.get_memory_info("CPU:0")[kind])

    cluster, job, plan = setup.plan()
    resolved, spec = resolve_model(setup.model), load_model_spec(setup.model)
    decision = Decision(model="", num_params=spec.num_params, cluster=cluster, job=job, plan=plan, estimate=NO_ESTIMATE)
    gc.collect()
    before = allocated("current")
    engine = build_mirrored_engine(resolved, decision=decision, settings=OptimizerSettings(weight_decay=0.1))
    shape = (job.global_batch_size, job.seq_len)
    tokens = np.random.default_rng(0).integers(0, spec.vocab_size, shape).astype(np.int32)
    batch = deal(engine.strategy, tokens, tokens, micro_batch_size=setup.micro_batch_size)
    for _ in range(NUM_STEPS):
        tf.config.experimental.reset_memory_stats("CPU:0")
        engine.train_step(batch, learning_rate=1e-3)
    peak = allocated("peak") - before
    tf.config.experimental.reset_memory_stats("CPU:0")
    engine.evaluate(batch)
    evaluation = allocated("peak") - before
    return Measured(setup=setup, peak_bytes=peak // setup.replicas, evaluation_peak_bytes=evaluation // setup.replicas)


def beside_prediction(measured: Measured) -> Row:
    """Return a run with what the closed forms say of it."""
    setup = measured.setup
    cluster, job, plan = setup.plan()
    memory = predict(load_model_spec(setup.model), cluster=cluster, job=job, plan=plan).memory
    evaluation = next(phase for phase in memory.phases if phase.phase is Phase.EVALUATION)
    return Row(
        measured=measured,
        predicted_bytes=memory.peak_bytes,
        peak_phase=memory.peak.phase,
        measured_over_predicted=measured.peak_bytes / memory.peak_bytes,
        evaluation_measured_over_predicted=measured.evaluation_peak_bytes / evaluation.total_bytes,
    )


def measure_all() -> list[Measured]:
    """Run everything in this process; lines go to stderr."""
    count_cpu_memory(os.environ)
    import tensorflow as tf

    from scaling.tensorflow.devices import mirrored_strategy

    tf.config.threading.set_inter_op_parallelism_threads(1)
    tf.config.threading.set_intra_op_parallelism_threads(1)
    mirrored_strategy(2)
    found = []
    for setup in setups():
        found.append(measure(setup))
        print(_line(beside_prediction(found[-1])), file=sys.stderr, flush=True)
    return found


def stored() -> list[Measured]:
    """Return what the last run has measured."""
    content = json.loads((RESULTS / "keras_memory.json").read_text())
    return [from_json(Measured, json.dumps(row["measured"]), source="keras_memory.json") for row in content["rows"]]


HEAD = (
    "| run | format | layers | replicas x accumulation | recomputed | measured | predicted | ratio | evaluation |\n"
    "|---|---|---|---|---|---|---|---|---|\n"
)


def _line(row: Row) -> str:
    setup = row.measured.setup
    layers = setup.model.get("num_hidden_layers", setup.model.get("n_layer"))
    cells = (
        setup.label,
        setup.precision,
        layers,
        f"{setup.replicas} x {setup.gradient_accumulation_steps}",
        setup.activation_checkpointing,
        f"{row.measured.peak_bytes / MIB:.1f} MiB",
        f"{row.predicted_bytes / MIB:.1f} MiB in {row.peak_phase.replace('_', ' ')}",
        f"{row.measured_over_predicted:.3f}",
        f"{row.evaluation_measured_over_predicted:.3f}",
    )
    return f"| {' | '.join(map(str, cells))} |"


def main() -> int:
    rows = [beside_prediction(each) for each in (stored() if "--again" in sys.argv else measure_all())]
    ratios = sorted(row.measured_over_predicted for row in rows)
    summary = {
        "runs": len(rows),
        "median": statistics.median(ratios),
        "lowest": ratios[0],
        "highest": ratios[-1],
        "environment": environment(),
    }
    content = {**summary, "rows": [plain(asdict(row)) for row in rows]}
    (RESULTS / "keras_memory.json").write_text(json.dumps(content, indent=1) + "\n")
    text = (
        "# TensorFlow's engine: measured over predicted peaks\n\n"
        f"{len(rows)} runs on a CPU, by `python -m benchmarks.keras_memory`: median {summary['median']:.3f}, from "
        f"{ratios[0]:.3f} to {ratios[-1]:.3f}. What is measured is rounded up by the allocator.\n\n"
        f"{HEAD}" + "\n".join(map(_line, rows)) + "\n"
    )
    (RESULTS / "keras_memory.md").write_text(text)
    print(text.split("\n\n")[1])
    return 0


if __name__ == "__main__":
    sys.exit(main())
