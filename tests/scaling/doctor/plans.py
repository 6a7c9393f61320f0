"""What tests ask the doctor about: plans for GPUs and for CPUs, made by the planner."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from scaling.doctor.asked import Asked, Needs
from scaling.doctor.findings import Finding
from scaling.severity import Severity
from strategies.cluster import CPU_NAME, Cluster, Gpu, gpu_preset
from strategies.decision import Decision
from strategies.job import Job, OptimizerName, Precision
from strategies.load_model import load_model_spec
from strategies.plan import ActivationCheckpointing, OffloadDevice, StrategyName
from strategies.search import FixedParts
from strategies.select import decide
from strategies.units import GIB

NONE, CPU, NVME = OffloadDevice.NONE, OffloadDevice.CPU, OffloadDevice.NVME


@cache
def gpu_plan(
    strategy: str = "zero2",
    *,
    gpus: int = 8,
    offload_optimizer: OffloadDevice = NONE,
    offload_param: OffloadDevice = NONE,
    optimizer: OptimizerName = OptimizerName.ADAMW,
    gpu: str = "A100-80GB-SXM",
) -> Needs:
    """Llama-3.2-1B in bf16, eight GPUs to a node."""
    decision = decide(
        load_model_spec("llama-3.2-1b"),
        cluster=Cluster(gpu=gpu_preset(gpu), gpus=gpus, gpus_per_node=min(gpus, 8)),
        job=Job(seq_len=1024, global_batch_size=8 * gpus, precision=Precision.BF16, optimizer=optimizer),
        fixed=FixedParts(
            strategy=StrategyName(strategy),
            activation_checkpointing=ActivationCheckpointing.FULL,
            micro_batch_size=1,
            offload_optimizer=offload_optimizer,
            offload_param=offload_param,
        ),
        model="llama-3.2-1b",
    )
    return Needs(decision=decision)


def cpu_decision(strategy: str = "ddp", *, ranks: int = 1) -> Decision:
    """The model of the demo, which every machine can train."""
    return decide(
        load_model_spec("llama-demo"),
        cluster=Cluster(gpu=Gpu(name=CPU_NAME, memory_bytes=GIB), gpus=ranks, gpus_per_node=ranks),
        job=Job(seq_len=64, global_batch_size=2 * ranks, precision=Precision.BF16),
        fixed=FixedParts(strategy=StrategyName(strategy), micro_batch_size=1),
        model="llama-demo",
    )


@cache
def cpu_plan(strategy: str = "ddp", *, ranks: int = 1) -> Needs:
    return Needs(decision=cpu_decision(strategy, ranks=ranks))


def asked(plan: Needs | None = None, *, out: Path = Path(), port: int | None = None, **environ: str) -> Asked:
    return Asked(plan=plan, environ=environ, out=out, port=port)


def told(findings: object, text: str) -> Finding:
    """Return the only finding whose message has ``text`` in it."""
    (found,) = [each for each in findings if text in each.message]  # type: ignore[attr-defined]
    assert found.severity is Severity.NOTE or found.fix, "whatever is wrong has a fix"
    return found  # type: ignore[no-any-return]
