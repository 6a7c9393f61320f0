"""What contradicts itself or does nothing in an accelerate configuration.

Source: accelerate 1.15.0, commands/launch.py, utils/launch.py, utils/dataclasses.py and parallelism_config.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

from scaling.explain.accelerate_keys import SAGEMAKER
from scaling.explain.findings import Finding, Repair, Severity, Topic, removing, setting
from scaling.explain.tree import Tree, block, get, is_true, shown, whole

ALONE = (
    "NO",
    "MULTI_CPU",
    "MULTI_GPU",
    "MULTI_NPU",
    "MULTI_MLU",
    "MULTI_SDAA",
    "MULTI_MUSA",
    "MULTI_XPU",
    "MULTI_HPU",
    "XLA",
)
SIZES = ("dp_replicate", "dp_shard", "tp", "cp", "sp")


@dataclass(frozen=True, slots=True, kw_only=True)
class AccelerateRun:
    """An accelerate configuration as it is read."""

    tree: Tree
    """With former keys as the new ones."""
    file: str
    world_size: int | None
    has_arguments: bool = False
    """Whether TrainingArguments were given, which may set the precision."""

    @property
    def kind(self) -> str:
        """The distributed type in capitals, NO where there is none."""
        value = self.tree.get("distributed_type", "NO")
        return value.upper() if isinstance(value, str) else "NO"

    @property
    def deepspeed(self) -> Tree:
        return block(self.tree, "deepspeed_config")

    @property
    def fsdp(self) -> Tree:
        return block(self.tree, "fsdp_config")

    @property
    def is_flat(self) -> bool:
        """Whether DeepSpeed's settings stand in this file."""
        return self.kind == "DEEPSPEED" and not names_file(self.deepspeed)

    @property
    def stage(self) -> int:
        """Of ZeRO, by the flat key; accelerate's default is 2."""
        return whole(self.deepspeed.get("zero_stage", 2)) or 0

    @property
    def has_stage(self) -> bool:
        """Whether the stage is a number."""
        return whole(self.deepspeed.get("zero_stage", 2)) is not None

    def size(self, name: str) -> int:
        """Return a size of parallelism_config, 1 where it is not given."""
        return whole(get(self.tree, f"parallelism_config.parallelism_config_{name}_size", 1)) or 1

    @property
    def non_data_ranks(self) -> int:
        """Ranks that see the same data."""
        return prod(self.size(name) for name in ("tp", "cp", "sp"))

    def say(self, severity: Severity, topic: Topic, key: str, message: str, fix: str = "", *repairs: Repair) -> Finding:
        return Finding(
            severity=severity, topic=topic, file=self.file, key=key, message=message, fix=fix, repairs=repairs
        )

    def clash(self, key: str, message: str, fix: str, *repairs: Repair, severity: Severity = Severity.ERROR) -> Finding:
        return self.say(severity, Topic.CONTRADICTION, key, message, fix, *repairs)

    def hint(
        self, key: str, message: str, fix: str = "", *repairs: Repair, severity: Severity = Severity.NOTE
    ) -> Finding:
        return self.say(severity, Topic.HINT, key, message, fix, *repairs)


def names_file(deepspeed: Tree) -> bool:
    """Whether a deepspeed_config block names a DeepSpeed JSON."""
    name = deepspeed.get("deepspeed_config_file")
    return isinstance(name, str) and name.strip() not in ("", "none")


Rule = Callable[[AccelerateRun], Iterator[Finding]]


def rule_findings(run: AccelerateRun, rules: tuple[Rule, ...]) -> list[Finding]:
    """Return what every rule finds."""
    if run.tree.get("compute_environment") == SAGEMAKER:
        return [run.hint("compute_environment", "a SageMaker file, which is not looked at further")]
    return [finding for rule in rules for finding in rule(run)]


def kind(run: AccelerateRun) -> Iterator[Finding]:
    """The distributed type, and blocks that belong to another one."""
    if "distributed_type" not in run.tree:
        message = "distributed_type is missing: accelerate refuses the file"
        wanted = "DEEPSPEED" if run.deepspeed else "FSDP" if run.fsdp else "MULTI_GPU"
        yield run.say(
            Severity.ERROR,
            Topic.INCOMPLETE,
            "distributed_type",
            message,
            f"give it, for instance {wanted}",
            setting("distributed_type", wanted),
        )
        return
    owners = {"deepspeed_config": "DEEPSPEED", "fsdp_config": "FSDP", "megatron_lm_config": "MEGATRON_LM"}
    idle = [name for name, owner in owners.items() if block(run.tree, name) and run.kind != owner]
    if idle:
        message = (
            f"distributed_type is {run.kind}, so that {' and '.join(idle)} {'do' if len(idle) > 1 else 'does'} nothing"
        )
        fix = f"take {' and '.join(idle)} out, or set distributed_type={owners[idle[0]]}"
        yield run.clash(", ".join(idle), message, fix, *map(removing, idle), severity=Severity.WARNING)
    if run.kind == "DEEPSPEED" and not run.deepspeed:
        message = "distributed_type is DEEPSPEED without deepspeed_config: accelerate takes stage 2 without offloading"
        yield run.hint("deepspeed_config", message, "give zero_stage", severity=Severity.WARNING)
    old = "main_process_ip" in run.tree and run.tree["main_process_ip"] is None and "use_cpu" in run.tree
    if old and "rdzv_backend" not in run.tree:
        yield run.say(Severity.NOTE, Topic.OLD, "", "written by an early accelerate, and still read")


def processes(run: AccelerateRun) -> Iterator[Finding]:
    """How many processes on how many machines."""
    count, machines = whole(run.tree.get("num_processes")), whole(run.tree.get("num_machines", 1)) or 1
    rank = whole(run.tree.get("machine_rank", 0)) or 0
    if run.kind != "NO" and (count is None or count == -1) and run.world_size is None:
        yield run.hint(
            "num_processes", "num_processes is not given: it must stand on the command line of accelerate launch"
        )
    if count is not None and count < 1 and count != -1:
        yield run.clash(
            "num_processes",
            f"num_processes={count} must be above zero",
            "give the number of GPUs",
            removing("num_processes"),
        )
    if machines > 1 and count and count > 0 and count % machines:
        message = f"num_processes={count}, of all machines together, cannot be split over num_machines={machines}"
        yield run.clash(
            "num_processes",
            message,
            f"give {machines} x the GPUs of one machine",
            setting("num_processes", count * machines),
        )
    if rank >= machines:
        message = f"machine_rank={rank} with num_machines={machines}: ranks count from 0"
        yield run.clash("machine_rank", message, f"give 0 to {machines - 1}", setting("machine_rank", 0))
    if machines > 1 and not run.tree.get("main_process_ip"):
        message = f"num_machines={machines} without main_process_ip: the others do not find the first one"
        yield run.hint("main_process_ip", message, "give it here or on the command line", severity=Severity.WARNING)
    ids = run.tree.get("gpu_ids")
    if isinstance(ids, str) and ids not in ("all", "") and run.kind == "MULTI_GPU" and machines == 1 and "," not in ids:
        yield run.clash(
            "gpu_ids",
            f"gpu_ids={ids} is one GPU, but distributed_type is MULTI_GPU",
            "give several or 'all'",
            setting("gpu_ids", "all"),
        )


def precision(run: AccelerateRun) -> Iterator[Finding]:
    """Number formats."""
    shards = run.kind == "FSDP" or run.is_flat or run.kind.startswith("MULTI_")
    if "mixed_precision" not in run.tree and shards and not run.has_arguments:
        message = "mixed_precision is not given: everything runs in fp32 unless the program says otherwise"
        yield run.say(Severity.NOTE, Topic.INCOMPLETE, "mixed_precision", message, "give bf16, fp16 or 'no'")
    value = run.tree.get("mixed_precision")
    if value == "no" and (run.kind == "FSDP" or run.is_flat) and not run.has_arguments:
        yield run.hint(
            "mixed_precision",
            "mixed_precision is 'no': weights, gradients and activations in fp32",
            "give bf16 where the GPU has it",
        )
    linear = get(run.tree, "fp8_config.override_linear_precision", None) or get(
        run.tree, "fp8_config.fp8_override_linear_precision", None
    )
    if isinstance(linear, str):
        message = f"override_linear_precision={shown(linear)} is text: accelerate takes its first three characters"
        yield run.hint(
            "fp8_config.override_linear_precision", message, "give a list of three", severity=Severity.WARNING
        )


def parallelism(run: AccelerateRun) -> Iterator[Finding]:
    """Sizes of several kinds of parallelism at once."""
    name = "parallelism_config"
    if not block(run.tree, name):
        return
    sizes = {each: run.size(each) for each in SIZES}
    total, count = prod(sizes.values()), run.world_size
    if count and total > 1 and total != count:
        product = " x ".join(f"{each}={size}" for each, size in sizes.items() if size > 1)
        message = f"{product} = {total} is not num_processes={count}"
        yield run.clash(name, message, f"start {total} processes, or change the sizes", setting("num_processes", total))
    if sizes["cp"] > 1 and sizes["sp"] > 1:
        yield run.clash(
            name,
            "cp_size and sp_size are both above 1: accelerate takes one of them only",
            "set one to 1",
            setting(f"{name}.{name}_cp_size", 1),
        )
    if (sizes["tp"] > 1 or sizes["cp"] > 1) and sizes["dp_replicate"] > 1 and sizes["dp_shard"] == 1:
        message = "tensor or context parallelism with dp_replicate_size above 1 needs dp_shard_size above 1"
        yield run.clash(name, message, "raise dp_shard_size", setting(f"{name}.{name}_dp_replicate_size", 1))
    if sizes["sp"] > 1 or sizes["tp"] > 1 or sizes["cp"] > 1:
        data = sizes["dp_replicate"] * sizes["dp_shard"]
        yield run.hint(
            name, f"{run.non_data_ranks} ranks see the same data: the data-parallel size is {data}, not {total}"
        )


KIND_RULES: tuple[Rule, ...] = (kind, processes, precision, parallelism)


def is_on(value: Any, default: bool) -> bool:
    """Whether a flag of the launcher is true once it is text."""
    return default if value is None else is_true(value)
