"""What contradicts itself in the DeepSpeed and FSDP blocks of an accelerate file. Sources: `accelerate_rules`."""

from __future__ import annotations

from collections.abc import Iterator

from scaling.explain.accelerate_rules import AccelerateRun, Rule, is_on, names_file
from scaling.explain.findings import Finding, Severity, Topic, removing, setting
from scaling.explain.key_table import nearest
from scaling.explain.tree import shown, whole

REFUSED_BESIDE_FILE = (
    "gradient_accumulation_steps",
    "gradient_clipping",
    "zero_stage",
    "offload_optimizer_device",
    "offload_param_device",
    "offload_param_nvme_path",
    "offload_optimizer_nvme_path",
    "zero3_save_16bit_model",
)
"""DeepSpeedPlugin._deepspeed_config_checks; mixed_precision, which stands elsewhere, as well."""
DEVICES = ("none", "cpu", "nvme")


def beside_file(run: AccelerateRun) -> Iterator[Finding]:
    """Settings that accelerate refuses beside a DeepSpeed JSON."""
    if run.kind != "DEEPSPEED" or not names_file(run.deepspeed):
        return
    twice = [f"deepspeed_config.{name}" for name in REFUSED_BESIDE_FILE if name in run.deepspeed]
    if run.tree.get("mixed_precision") is not None:
        twice.append("mixed_precision")
    if twice:
        names = ", ".join(name.removeprefix("deepspeed_config.") for name in twice)
        message = (
            f"deepspeed_config_file stands beside {names}: accelerate refuses settings in both places (0.16 and later)"
        )
        fix = f"take {names} out here; the DeepSpeed JSON decides"
        yield run.clash(", ".join(twice), message, fix, *map(removing, twice))


def flat_offload(run: AccelerateRun) -> Iterator[Finding]:
    """Offloading by the flat keys: where to, at which stage, and the path that is lost."""
    if not run.is_flat:
        return
    for name, least in (("param", 3), ("optimizer", 1)):
        key = f"deepspeed_config.offload_{name}_device"
        given = run.deepspeed.get(f"offload_{name}_device", "none")
        device = given.lower() if isinstance(given, str) else "none"
        if device not in DEVICES:
            near = nearest(device, DEVICES, cutoff=0.5)
            message = f"{key}={shown(given)} should be one of {', '.join(DEVICES)}"
            fix = f"write {near}" if near else "give one of them"
            yield run.say(Severity.ERROR, Topic.WRONG_TYPE, key, message, fix, setting(key, near or "none"))
        elif device != "none" and run.has_stage and run.stage < least:
            needs = "stage 3" if least == 3 else "ZeRO"
            message = f"{key}={device} at zero_stage {run.stage}: only {needs} offloads that"
            yield run.clash(key, message, f"write none, or set zero_stage={least}", setting(key, "none"))
        yield from _nvme_path(run, name, device)


def _nvme_path(run: AccelerateRun, name: str, device: str) -> Iterator[Finding]:
    key = f"deepspeed_config.offload_{name}_nvme_path"
    path = run.deepspeed.get(f"offload_{name}_nvme_path")
    if device == "nvme":
        told = f"{shown(path)} is" if path else "is not given, and a path here would be"
        message = (
            f"{key} {told} lost: accelerate launch does not hand it on (1.15), DeepSpeed swaps to a folder called none"
        )
        fix = "give it in a DeepSpeed JSON named by deepspeed_config_file (--fix and --to deepspeed write one)"
        yield run.clash(key, message, fix)
    elif path and str(path).lower() != "none":
        yield run.hint(
            key, f"{key}={shown(path)} does nothing: the device is {device}", f"take {key} out", removing(key)
        )


def zero_stage(run: AccelerateRun) -> Iterator[Finding]:
    """The stage and what only stage 3 looks at."""
    if not run.is_flat:
        return
    key, given = "deepspeed_config.zero_stage", run.deepspeed.get("zero_stage", 2)
    stage = whole(given)
    if stage is None:
        return  # the type is told already
    if not 0 <= stage <= 3:
        message = f"{key}={shown(given)} should be 0, 1, 2 or 3"
        yield run.say(Severity.ERROR, Topic.WRONG_TYPE, key, message, "give one of them", setting(key, 2))
        return
    init = run.deepspeed.get("zero3_init_flag")
    if stage == 3 and init is not None and not is_on(init, True):
        message = "zero3_init_flag is false at stage 3: every process loads the whole model into host memory first"
        fix = "set zero3_init_flag: true"
        flag = "deepspeed_config.zero3_init_flag"
        yield run.clash(flag, message, fix, setting(flag, True), severity=Severity.WARNING)
    if stage == 3 and not is_on(run.deepspeed.get("zero3_save_16bit_model"), False):
        message = "zero3_save_16bit_model is not set: save_model writes no whole 16-bit model at stage 3"
        yield run.hint("deepspeed_config.zero3_save_16bit_model", message, "set it to true where you save a model")
    for name in ("zero3_init_flag", "zero3_save_16bit_model"):
        if stage < 3 and is_on(run.deepspeed.get(name), False):
            yield run.hint(f"deepspeed_config.{name}", f"{name} at stage {stage} does nothing: it is for stage 3")


STRATEGIES = ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD", "HYBRID_SHARD_ZERO2")
OF_FSDP1 = (
    "fsdp_sharding_strategy",
    "fsdp_use_orig_params",
    "fsdp_backward_prefetch",
    "fsdp_sync_module_states",
    "fsdp_forward_prefetch",
)


def fsdp(run: AccelerateRun) -> Iterator[Finding]:
    """The FSDP block: which version reads what."""
    if run.kind != "FSDP":
        return
    given = run.fsdp
    is_second = whole(given.get("fsdp_version", 1)) == 2
    strategy = given.get("fsdp_sharding_strategy")
    if (number := whole(strategy)) is not None:
        key = "fsdp_config.fsdp_sharding_strategy"
        if 1 <= number <= len(STRATEGIES):
            message = f"fsdp_sharding_strategy={number} is {STRATEGIES[number - 1]} by its former number"
            fix, word = f"write {STRATEGIES[number - 1]}", STRATEGIES[number - 1]
            yield run.say(Severity.WARNING, Topic.DEPRECATED, key, message, fix, setting(key, word))
        else:
            message = f"fsdp_sharding_strategy={number} should be one of {', '.join(STRATEGIES)}"
            yield run.say(Severity.ERROR, Topic.WRONG_TYPE, key, message, "give one of them", removing(key))
    idle = [name for name in (OF_FSDP1 if is_second else ("fsdp_reshard_after_forward",)) if name in given]
    if idle:
        message = f"{', '.join(idle)} {'do' if len(idle) > 1 else 'does'} nothing with FSDP {2 if is_second else 1}"
        yield run.hint(f"fsdp_config.{idle[0]}", message, "take it out" if is_second else "set fsdp_version: 2")
    yield from _fsdp_clashes(run, is_second)


def _fsdp_clashes(run: AccelerateRun, is_second: bool) -> Iterator[Finding]:
    given = run.fsdp
    sync = "fsdp_config.fsdp_sync_module_states"
    efficient = given.get("fsdp_cpu_ram_efficient_loading", True)
    if efficient and given.get("fsdp_sync_module_states", True) is False:
        message = (
            "fsdp_sync_module_states is false with fsdp_cpu_ram_efficient_loading (default: true): accelerate stops"
        )
        yield run.clash(
            sync, message, "set it to true, or switch fsdp_cpu_ram_efficient_loading off", setting(sync, True)
        )
    if is_second and str(given.get("fsdp_state_dict_type", "")).upper() == "LOCAL_STATE_DICT":
        key = "fsdp_config.fsdp_state_dict_type"
        yield run.clash(
            key,
            "LOCAL_STATE_DICT is not possible with FSDP 2",
            "write SHARDED_STATE_DICT",
            setting(key, "SHARDED_STATE_DICT"),
        )
    key = "fsdp_config.fsdp_activation_checkpointing_offload"
    is_possible = is_second and is_on(given.get("fsdp_activation_checkpointing"), False)
    if is_on(given.get("fsdp_activation_checkpointing_offload"), False) and not is_possible:
        message = "fsdp_activation_checkpointing_offload needs fsdp_activation_checkpointing and fsdp_version 2"
        yield run.clash(key, message, f"take {key} out", removing(key))
    policy = str(given.get("fsdp_auto_wrap_policy", "NO_WRAP")).upper()
    if policy == "NO_WRAP":
        message = "no fsdp_auto_wrap_policy: the whole model is one unit and is gathered at once"
        yield run.hint(
            "fsdp_config.fsdp_auto_wrap_policy", message, "write TRANSFORMER_BASED_WRAP", severity=Severity.WARNING
        )


ENGINE_RULES: tuple[Rule, ...] = (beside_file, flat_offload, zero_stage, fsdp)
