"""Variables that launchers and schedulers set, left from another run or at odds with the plan."""

from __future__ import annotations

import platform
from collections.abc import Iterator, Mapping
from pathlib import Path

from scaling.check_plan import check_accelerate
from scaling.doctor import allocator_config, collective_variables
from scaling.doctor.asked import Asked, Needs
from scaling.doctor.cores import read_cores
from scaling.doctor.findings import Area, Examined, Finding, error, error_if, examined, note, warning
from scaling.errors import LaunchError
from scaling.launch_env import REQUIRED, read_launch_environment
from strategies.plan import OffloadDevice

OF_LAUNCHERS = (
    *REQUIRED,
    *("LOCAL_WORLD_SIZE", "LOCAL_SIZE", "GROUP_RANK", "ROLE_RANK", "CROSS_RANK", "CROSS_SIZE"),
    *("TORCHELASTIC_RUN_ID", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
)
SHOWN = ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "MASTER_ADDR", "MASTER_PORT", "SLURM_JOB_ID")


def examine(asked: Asked) -> Examined:
    shown = ", ".join(f"{name}={asked.environ[name]}" for name in SHOWN if name in asked.environ)
    found = findings(asked.environ, asked.plan, cores=read_cores().usable)
    return examined(Area.ENVIRONMENT, found, system=platform.platform(), variables=shown or None)


def findings(environ: Mapping[str, str], plan: Needs | None, *, cores: int) -> Iterator[Finding]:
    """Yield what the next launch would stumble over."""
    on_gpus = plan is not None and plan.on_gpus
    yield from _launched(environ, plan)
    yield from _nodes(environ, plan)
    yield from _accelerate(environ, plan)
    yield from _threads(environ, plan, cores=cores)
    yield from allocator_config.findings(environ, on_gpus=on_gpus)
    yield from collective_variables.findings(environ, plan)
    yield from _frameworks(environ, plan)


def _launched(environ: Mapping[str, str], plan: Needs | None) -> Iterator[Finding]:
    """Yield what tells a program that it is a rank. Launchers of several ranks set all of it anew."""
    left = [name for name in OF_LAUNCHERS if name in environ]
    one_process = plan is not None and plan.ranks * plan.num_nodes == 1
    fix = f"unset {' '.join(left)}"
    try:
        launch = read_launch_environment(environ)
    except LaunchError as problem:
        yield error_if(one_process, str(problem).partition("; ")[0], fix)
        return
    if launch.is_launched:
        yield error_if(
            one_process and launch.world_size > 1,
            f"RANK={launch.rank} and WORLD_SIZE={launch.world_size} are set here: a program that is started without a "
            f"launcher takes itself for a rank of that run, and waits for the others",
            fix,
        )


def _nodes(environ: Mapping[str, str], plan: Needs | None) -> Iterator[Finding]:
    tasks, nodes = (_number(environ, name) for name in ("SLURM_NTASKS", "SLURM_JOB_NUM_NODES"))
    if plan is not None and nodes is not None and nodes != plan.num_nodes:
        yield warning(
            f"SLURM_JOB_NUM_NODES={nodes}, and the plan is for {plan.num_nodes}",
            f"sbatch --nodes {plan.num_nodes}, or plan again with the GPUs of {nodes}",
        )
    if tasks is not None and nodes is not None and tasks > nodes and "SLURM_PROCID" in environ:
        yield warning(
            f"this is one of SLURM_NTASKS={tasks} tasks on {nodes} nodes: each would start a launcher of its own",
            "srun --ntasks-per-node 1, and let the launcher start the ranks",
        )
    if plan is not None and plan.num_nodes == 1 and environ.get("PET_NNODES", "1") not in ("1", "1:1"):
        yield warning(
            f"PET_NNODES={environ['PET_NNODES']}: torchrun takes it, and waits for other nodes; the plan is for one",
            "unset PET_NNODES",
        )
    if plan is not None and plan.num_nodes > 1 and nodes is None:
        absent = [name for name in ("NODE_RANK", "MASTER_ADDR") if not environ.get(name)]
        if absent:
            yield note(
                f"the plan is for {plan.num_nodes} nodes, and launch lines name {' and '.join(absent)}, not set here",
                "scaling launch --master-addr HOST --node-rank N on each node, or export both there",
            )


def _accelerate(environ: Mapping[str, str], plan: Needs | None) -> Iterator[Finding]:
    left = sorted(name for name in environ if name.startswith("ACCELERATE_"))
    if plan is not None:
        try:
            check_accelerate(plan.decision, environ)
        except LaunchError as problem:
            yield error(str(problem), f"unset {' '.join(left)}")
    elif left:
        yield warning(
            f"set here: {', '.join(left[:4])}{' and more' if len(left) > 4 else ''}; accelerate follows it where a "
            f"program's own arguments say nothing",
            f"unset {' '.join(left)}",
        )
    default = _default_accelerate_config(environ)
    if plan is None and default.is_file():
        yield note(f"accelerate launch without --config_file reads {default}", "scaling explain shows what it means")


def _default_accelerate_config(environ: Mapping[str, str]) -> Path:
    """Return what accelerate reads by itself. Source: accelerate 1.15, commands/config/config_args.py."""
    home = environ.get("HF_HOME")
    root = Path(home) if home else Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "huggingface"
    return root / "accelerate" / "default_config.yaml"


def _threads(environ: Mapping[str, str], plan: Needs | None, *, cores: int) -> Iterator[Finding]:
    text = environ.get("OMP_NUM_THREADS")
    if text is None:
        return
    threads = int(text) if text.isdecimal() else 0
    ranks = plan.ranks if plan else 1
    share = max(1, cores // ranks)
    if threads < 1:
        yield warning(f"OMP_NUM_THREADS={text} is no number above zero, and is passed over", "unset OMP_NUM_THREADS")
    elif threads > share:  # one for each rank is the least, on however few cores
        yield warning(
            f"OMP_NUM_THREADS={text} for each of {ranks} ranks on {cores} cores: threads wait for each other",
            f"export OMP_NUM_THREADS={share}",
        )
    elif plan is not None and threads < share and _updates_on_host(plan):
        yield note(
            f"OMP_NUM_THREADS={text}: the update on the host uses {text} of {share} cores that a rank could have",
            f"export OMP_NUM_THREADS={share}",
        )


def _updates_on_host(plan: Needs) -> bool:
    placed = plan.decision.plan
    return OffloadDevice.CPU in (placed.offload_optimizer, placed.offload_param)


def _frameworks(environ: Mapping[str, str], plan: Needs | None) -> Iterator[Finding]:
    if plan is None:
        return
    backend = environ.get("KERAS_BACKEND", "tensorflow")
    if plan.runs_tensorflow and backend != "tensorflow":
        yield error(f"KERAS_BACKEND={backend}, and the plan trains with TensorFlow", "unset KERAS_BACKEND")
    device = "cuda" if plan.on_gpus else "cpu"
    if plan.runs_deepspeed and environ.get("DS_ACCELERATOR", device) != device:
        yield error(
            f"DS_ACCELERATOR={environ['DS_ACCELERATOR']}, and the plan's ranks run on {device}", "unset DS_ACCELERATOR"
        )


def _number(environ: Mapping[str, str], name: str) -> int | None:
    text = environ.get(name, "")
    return int(text) if text.isascii() and text.isdigit() else None
