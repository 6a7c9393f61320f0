"""Flags that several commands take, and the decision they add up to."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from strategies.decision import Decision
from strategies.job import Job, Precision
from strategies.plan import ActivationCheckpointing, StrategyName
from strategies.search import FixedParts

Model = Annotated[str, typer.Argument(help="Preset, folder, config.json or Hugging Face hub id.")]
SeqLen = Annotated[int, typer.Option(help="Tokens in one sample.")]
GlobalBatchSize = Annotated[int, typer.Option(help="Samples per optimizer step, over all GPUs.")]
Gpus = Annotated[int | None, typer.Option(help="GPUs in all; default: those of this machine.")]
GpuName = Annotated[str, typer.Option(help="GPU of configs/gpus.csv, 'cpu', or 'auto' to detect.")]
GpusPerNode = Annotated[int | None, typer.Option(help="GPUs in one machine; default: at most 8.")]
GpuMemoryGib = Annotated[float | None, typer.Option(help="Memory of one GPU instead of the known one.")]
HostMemoryGib = Annotated[float | None, typer.Option(help="Memory of one machine.")]
PrecisionName = Annotated[Precision, typer.Option(help="Number formats of weights and states.")]
GradientClipping = Annotated[float, typer.Option(help="Largest global gradient norm; 0 = off.")]
Strategy = Annotated[StrategyName | None, typer.Option(help="Take this strategy or refuse.")]
Checkpointing = Annotated[ActivationCheckpointing | None, typer.Option(help="Take this setting or refuse.")]
MicroBatchSize = Annotated[int | None, typer.Option(help="Take this micro batch or refuse.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Plot = Annotated[Path | None, typer.Option(help="Write a picture of memory over time to this PNG file.")]


def decide_from_flags(
    model: str,
    *,
    job: Job,
    fixed: FixedParts,
    gpus: int | None,
    gpu: str,
    gpus_per_node: int | None = None,
    gpu_memory_gib: float | None = None,
    host_memory_gib: float | None = None,
) -> Decision:
    """Return the planner's decision for what the flags describe.

    Raises:
        ScalingError: the flags contradict each other or nothing fits.
    """
    from scaling.detect import build_cluster
    from strategies.load_model import model_spec, resolve_model
    from strategies.select import decide

    cluster = build_cluster(
        gpu=gpu,
        gpus=gpus,
        gpus_per_node=gpus_per_node,
        gpu_memory_gib=gpu_memory_gib,
        host_memory_gib=host_memory_gib,
    )
    resolved = resolve_model(model)
    # A path is stored whole: training may start in another folder, where the same name could be another model.
    reference = str(Path(model).expanduser().resolve()) if resolved.is_local else model
    return decide(model_spec(resolved), cluster=cluster, job=job, fixed=fixed, model=reference)
