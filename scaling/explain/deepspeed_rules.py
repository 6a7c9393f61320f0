"""What contradicts itself, fails later or does nothing in a DeepSpeed configuration: stages, offload and precision.

Source, where nothing else is said: deepspeed 0.19.8, runtime/config.py, runtime/zero/config.py and runtime/engine.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scaling.explain.findings import Finding, Repair, Severity, Topic, removing, setting
from scaling.explain.sources import Launcher
from scaling.explain.tree import AUTO, Tree, block, get, is_true, shown, whole

ZERO = "zero_optimization"
DEFAULT_BUFFER = 10**8
"""Elements: ``offload_param.buffer_size`` (runtime/zero/offload_config.py)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeepSpeedRun:
    """A DeepSpeed configuration as it is read, and where it runs."""

    tree: Tree
    """With old forms as the new ones."""
    file: str
    launcher: Launcher
    ranks: int | None
    """Data-parallel; None where not known."""
    largest_parameter: int | None = None
    """Elements of the model's largest tensor, where a model was named."""

    @property
    def stage(self) -> int:
        """The stage of ZeRO; 0 where none is given, or none that is a number."""
        return whole(get(self.tree, f"{ZERO}.stage", 0)) or 0

    @property
    def has_stage(self) -> bool:
        """Whether the stage is known here, if only by its default."""
        return whole(get(self.tree, f"{ZERO}.stage", 0)) is not None

    @property
    def is_tuned(self) -> bool:
        """Whether DeepSpeed's autotuner is to choose."""
        return is_true(get(self.tree, "autotuning.enabled", False))

    def value(self, key: str, default: Any = None) -> Any:
        return get(self.tree, key, default)

    def device(self, name: str) -> str:
        """Return where ``offload_optimizer`` or ``offload_param`` puts things."""
        place = get(self.tree, f"{ZERO}.{name}.device", "none")
        return place.lower() if isinstance(place, str) else "none"

    def say(self, severity: Severity, topic: Topic, key: str, message: str, fix: str = "", *repairs: Repair) -> Finding:
        return Finding(
            severity=severity, topic=topic, file=self.file, key=key, message=message, fix=fix, repairs=repairs
        )

    def clash(self, key: str, message: str, fix: str, *repairs: Repair) -> Finding:
        """Return the finding of a contradiction."""
        return self.say(Severity.ERROR, Topic.CONTRADICTION, key, message, fix, *repairs)

    def hint(
        self, key: str, message: str, fix: str = "", *repairs: Repair, severity: Severity = Severity.NOTE
    ) -> Finding:
        """Return the finding of something that does not change the verdict."""
        return self.say(severity, Topic.HINT, key, message, fix, *repairs)


Rule = Callable[[DeepSpeedRun], Iterator[Finding]]


def rule_findings(run: DeepSpeedRun, rules: tuple[Rule, ...]) -> list[Finding]:
    """Return what every rule finds."""
    return [finding for rule in rules for finding in rule(run)]


def precision(run: DeepSpeedRun) -> Iterator[Finding]:
    """Both 16-bit formats at once, and flags that need others."""
    fp16, bf16 = (is_true(run.value(f"{name}.enabled", False)) for name in ("fp16", "bf16"))
    if fp16 and bf16:
        message = "fp16 and bf16 are both enabled: DeepSpeed stops (they cannot be on together)"
        fix = "keep bf16 where the GPU has it (Ampere and later): fp16.enabled=false"
        yield run.clash("fp16.enabled, bf16.enabled", message, fix, setting("fp16.enabled", False))
    for key in (
        "fp16.fp16_master_weights_and_grads",
        "bf16.bf16_master_weights_and_grads",
        "bf16.bf16_optimizer_states",
    ):
        if is_true(run.value(key, False)) and run.has_stage and run.stage == 0:
            yield run.clash(
                key, f"{key} needs ZeRO stage 1, 2 or 3, the stage is {run.stage}", f"take {key} out", removing(key)
            )
    states, masters = "bf16.bf16_optimizer_states", "bf16.bf16_master_weights_and_grads"
    if is_true(run.value(states, False)) and not is_true(run.value(masters, False)):
        yield run.clash(states, f"{states} requires {masters}", f"set {masters}", setting(masters, True))
    for key in ("fp16.loss_scale_window", "fp16.min_loss_scale"):
        least = whole(run.value(key, 1))  # None where it is no number, which is told as such
        if fp16 and not run.value("fp16.loss_scale", 0) and least is not None and least < 1:
            message = f"{key}={shown(run.value(key))} must be above zero where the loss scale adapts"
            yield run.clash(key, message, f"take {key} out", removing(key))
    power = whole(run.value("fp16.initial_scale_power", 16)) or 0
    if power > 24 and run.value("fp16.enabled") is not False and not run.value("fp16.loss_scale", 0):
        message = (
            f"the first loss scale is 2^{power}: steps overflow and are skipped until it has come down (usual: 16)"
        )
        yield run.hint("fp16.initial_scale_power", message, "give 16")
    scale = run.value("fp16.loss_scale", 0)
    if fp16 and isinstance(scale, int | float) and 0 < scale < 64:
        message = f"a fixed loss scale of {scale:g} lets small fp16 gradients become zero; 0 lets it adapt"
        yield run.hint("fp16.loss_scale", message, "give 0")


def offload(run: DeepSpeedRun) -> Iterator[Finding]:
    """Offloading that the stage does not do, and paths that are missing."""
    for name, least in (("offload_param", 3), ("offload_optimizer", 1)):
        key, device = f"{ZERO}.{name}", run.device(name)
        if device not in ("cpu", "nvme") or run.is_tuned or not run.has_stage:
            continue
        if run.stage < least:
            needs = "stage 3" if least == 3 else "ZeRO (stage 1, 2 or 3)"
            message = f"{name}.device={device} at stage {run.stage}: only {needs} offloads {_what(name)}"
            yield run.clash(key, message, f"take {name} out, or set {ZERO}.stage={least}", removing(key))
        elif device == "nvme":
            yield from _nvme(run, key)
    for name in ("super_offload", "ratio"):
        key = f"{ZERO}.offload_optimizer.{name}"
        value = run.value(key)
        is_part = isinstance(value, int | float) and not isinstance(value, bool) and value < 1
        wants = is_true(value) if name == "super_offload" else is_part
        if wants and run.stage != 3:
            yield run.clash(
                key, f"{key}={shown(value)} needs stage 3, the stage is {run.stage}", f"take {key} out", removing(key)
            )


def _what(name: str) -> str:
    return "parameters" if name == "offload_param" else "optimizer states"


def _nvme(run: DeepSpeedRun, key: str) -> Iterator[Finding]:
    path = run.value(f"{key}.nvme_path")
    if path is None or (isinstance(path, str) and not path.strip()):
        message = f"{key}.device=nvme without nvme_path: there is no place to write to"
        fix = f"give {key}.nvme_path, a folder on the NVMe drive, or device cpu"
        yield run.clash(f"{key}.nvme_path", message, fix, setting(f"{key}.device", "cpu"), removing(f"{key}.nvme_path"))
    elif isinstance(path, str) and path != AUTO and not _is_folder(path):
        yield run.hint(
            f"{key}.nvme_path", f"{path} does not exist on this machine", "make sure that it does where it runs"
        )


def _is_folder(path: str) -> bool:
    try:
        return Path(path).is_dir()
    except (OSError, ValueError):
        return False


def nvme_buffer(run: DeepSpeedRun) -> Iterator[Finding]:
    """Swap buffers of parameters that are smaller than a tensor (runtime/swap_tensor/partitioned_param_swapper.py)."""
    key = f"{ZERO}.offload_param.buffer_size"
    if run.device("offload_param") != "nvme" or run.stage != 3:
        return
    size = whole(run.value(key, DEFAULT_BUFFER)) or DEFAULT_BUFFER
    largest = run.largest_parameter
    if largest is None and size <= DEFAULT_BUFFER:
        message = (
            f"buffer_size={size:,} elements{'' if run.value(key) else ' (the default)'}: a larger tensor, as most "
            f"embeddings are (vocabulary x hidden size), fails an assertion when it is swapped"
        )
        topic = Topic.HINT if run.value(key) else Topic.WILL_FAIL  # a size that was chosen may be right for its model
        yield run.say(Severity.WARNING, topic, key, message, "give the elements of the largest tensor (--model tells)")
    elif largest is not None and largest > size:
        message = f"buffer_size={size:,} elements, but the model's largest tensor has {largest:,}: swapping it fails"
        yield run.say(Severity.ERROR, Topic.WILL_FAIL, key, message, f"give {largest:,}", setting(key, largest))


def stage_three_only(run: DeepSpeedRun) -> Iterator[Finding]:
    """Keys that other stages do not read."""
    zero = block(run.tree, ZERO)
    if run.is_tuned or run.stage == 3 or not run.has_stage:
        return
    named = [name for name in zero if name.startswith("stage3_") or name in ("max_live_parameters", "sub_group_size")]
    if named:
        message = f"at stage {run.stage} these do nothing: {', '.join(named)}"
        yield run.hint(f"{ZERO}.{named[0]}", message)
    sharded = [name for name in ("zero_quantized_weights", "zero_hpz_partition_size") if _is_on(zero.get(name))]
    if sharded:
        names = ", ".join(f"{ZERO}.{name}" for name in sharded)
        repairs = [removing(f"{ZERO}.{name}") for name in sharded]
        yield run.clash(
            names,
            f"{', '.join(sharded)} at stage {run.stage}: only stage 3 gathers weights",
            f"take {names} out",
            *repairs,
        )


def _is_on(value: Any) -> bool:
    return is_true(value) or (whole(value) or 0) > 1


def zero_values(run: DeepSpeedRun) -> Iterator[Finding]:
    """Values inside zero_optimization that contradict others or are odd."""
    zero = block(run.tree, ZERO)
    if zero and "stage" not in zero and not run.is_tuned:
        message = "stage is left out: it is 0, so that ZeRO is off and the rest of the block does nothing"
        yield run.hint(f"{ZERO}.stage", message, "give the stage", severity=Severity.WARNING)
    odd = [
        f"{name}=0"
        for name in _ODD_AT_ZERO
        if run.stage == 3 and zero.get(name) in (0, 0.0) and zero.get(name) is not False
    ]
    if odd:
        message = (
            f"{', '.join(odd)}: every weight is released at once and gathered again for each use; slow, least memory"
        )
        yield run.say(
            Severity.WARNING,
            Topic.SUSPICIOUS,
            f"{ZERO}.{odd[0][:-2]}",
            message,
            "leave them out, or give numbers of elements",
        )
    partition = whole(zero.get("zero_hpz_partition_size")) or 1
    if run.ranks and partition > 1 and run.ranks % min(partition, run.ranks):
        key = f"{ZERO}.zero_hpz_partition_size"
        yield run.clash(
            key, f"{key}={partition} does not divide {run.ranks} ranks", f"give a divisor of {run.ranks}", removing(key)
        )
    if zero.get("compute_grad_norm") is False and run.has_stage and run.stage not in (1, 2):
        key = f"{ZERO}.compute_grad_norm"
        yield run.clash(
            key, f"{key}=false is for stages 1 and 2, the stage is {run.stage}", f"take {key} out", removing(key)
        )
    group = whole(zero.get("sub_group_size"))
    if run.stage == 3 and group and group > 10**10:
        yield run.hint(
            f"{ZERO}.sub_group_size", f"{group:,}: one group for all, so that the step's fp32 temporaries are whole"
        )


_ODD_AT_ZERO = (
    "stage3_max_live_parameters",
    "max_live_parameters",
    "stage3_max_reuse_distance",
    "max_reuse_distance",
    "sub_group_size",
)


def reduction(run: DeepSpeedRun) -> Iterator[Finding]:
    """How gradients are added up."""
    key = "gradient_allreduce_op"
    if run.value(key) == "sum" and (run.stage == 3 or run.value(f"{ZERO}.zenflow")):
        why = "stage 3" if run.stage == 3 else "zenflow"
        yield run.clash(key, f'{key}="sum" is not possible with {why}', f"take {key} out", removing(key))
    scatter = run.value(f"{ZERO}.reduce_scatter", True) is not False
    if run.stage == 3 and scatter and is_true(run.value("prescale_gradients", False)):
        message = "prescale_gradients is not possible at stage 3 with reduce_scatter"
        yield run.clash("prescale_gradients", message, "take prescale_gradients out", removing("prescale_gradients"))


STAGE_RULES: tuple[Rule, ...] = (precision, offload, nvme_buffer, stage_three_only, zero_values, reduction)
