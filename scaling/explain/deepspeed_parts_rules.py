"""What is wrong with the optimizer, the scheduler and the smaller blocks of a DeepSpeed configuration."""

from __future__ import annotations

from collections.abc import Iterator

from scaling.explain.deepspeed_rules import ZERO, DeepSpeedRun, Rule
from scaling.explain.findings import Finding, Severity, Topic, removing, renaming, setting
from scaling.explain.key_table import Key, nearest
from scaling.explain.sources import Launcher
from scaling.explain.tree import AUTO, MISSING, block, get, has, is_true, shown, whole
from scaling.explain.value_types import judge

OPTIMIZERS = ("Adam", "AdamW", "Adagrad", "Lamb", "Lion", "Muon", "MuAdam", "MuAdamW", "MuSGD")
"""deepspeed 0.19.8, runtime/config.py, DEEPSPEED_OPTIMIZERS; others are looked up in torch.optim by exact name."""
TORCH_OPTIMIZERS = (
    "SGD",
    "RMSprop",
    "Adadelta",
    "Adamax",
    "ASGD",
    "NAdam",
    "RAdam",
    "Rprop",
    "Adafactor",
    "SparseAdam",
    "LBFGS",
)
PARAMETERS = (
    *("lr", "bias_correction", "betas", "eps", "weight_decay", "amsgrad", "adam_w_mode", "adamw_mode", "torch_adam"),
    *("set_grad_none", "fp32_optimizer_states", "eps_inside_sqrt", "max_coeff", "min_coeff", "max_grad_norm"),
    *("foreach", "maximize", "capturable", "differentiable", "fused", "decoupled_weight_decay"),
    *("momentum", "dampening", "nesterov", "lr_decay", "initial_accumulator_value", "ns_method", "muon_lr", "adam_lr"),
)
"""Of those optimizers together; compared with the installed ones by a test."""
ONE_BIT = ("onebitadam", "zerooneadam", "onebitlamb")
SUPPORTED_BY_ZERO = ("adam", "adamw", "adagrad", "lion", "muon")
"""runtime/zero/utils.py, ZERO_SUPPORTED_OPTIMIZERS."""
WARM_UP = ("warmup_min_lr", "warmup_max_lr", "warmup_num_steps", "warmup_type", "last_batch_iteration")
SCHEDULERS = {
    "WarmupLR": WARM_UP,
    "WarmupDecayLR": ("total_num_steps", *WARM_UP),
    "WarmupCosineLR": (
        "total_num_steps",
        "warmup_min_ratio",
        "warmup_num_steps",
        "cos_min_ratio",
        "warmup_type",
        "last_batch_iteration",
    ),
    "OneCycle": (
        "cycle_min_lr",
        "cycle_max_lr",
        "decay_lr_rate",
        "cycle_first_step_size",
        "cycle_second_step_size",
        "cycle_first_stair_count",
        "cycle_second_stair_count",
        "decay_step_size",
        "cycle_momentum",
        "cycle_min_mom",
        "cycle_max_mom",
        "decay_mom_rate",
        "last_batch_iteration",
    ),
    "LRRangeTest": (
        "lr_range_test_min_lr",
        "lr_range_test_step_size",
        "lr_range_test_step_rate",
        "lr_range_test_staircase",
        "last_batch_iteration",
    ),
}
"""deepspeed 0.19.8, runtime/lr_schedules.py; compared with the installed version by a test."""


def optimizer(run: DeepSpeedRun) -> Iterator[Finding]:
    """The kind of the optimizer, and what it cannot be combined with."""
    name = run.value("optimizer.type")
    if has(run.tree, "optimizer.params.max_grad_norm"):
        message = (
            "max_grad_norm is no parameter of an optimizer: DeepSpeed stops where it makes the optimizer itself, and "
            "passes over it where the program brings its own"
        )
        key = "optimizer.params.max_grad_norm"
        moved = () if has(run.tree, "gradient_clipping") else (setting("gradient_clipping", get(run.tree, key)),)
        fix = "give gradient_clipping instead"
        yield run.hint(key, message, fix, removing(key), *moved, severity=Severity.WARNING)
    yield from _not_numbers(run, "optimizer.params", ("lr", "eps", "weight_decay"))
    if not isinstance(name, str) or name == AUTO:
        return
    if name.lower() in map(str.lower, (*OPTIMIZERS, "SGD")):  # those of others may be spelt much like these
        yield from _misspelt_parameters(run, name)
    if name.lower() in ONE_BIT:
        yield from _one_bit(run, name)
    elif name.lower() not in map(str.lower, OPTIMIZERS) and name not in TORCH_OPTIMIZERS:
        yield _unknown_optimizer(run, name)
    elif (
        run.stage
        and name.lower() not in SUPPORTED_BY_ZERO
        and not is_true(run.value("zero_allow_untested_optimizer", False))
    ):
        key = "zero_allow_untested_optimizer"
        message = f"optimizer {name} under ZeRO: DeepSpeed stops unless {key} is true"
        yield run.clash(key, message, f"set {key}=true", setting(key, True))


def _not_numbers(run: DeepSpeedRun, place: str, names: tuple[str, ...]) -> Iterator[Finding]:
    """Numbers that stand as something else: DeepSpeed hands them on as they are, the optimizer stops."""
    for name in names:
        key, value = f"{place}.{name}", get(run.tree, f"{place}.{name}", AUTO)
        is_list = isinstance(value, list)  # of the layers of parameters, which schedulers take
        if value == AUTO or is_list or (isinstance(value, int | float) and not isinstance(value, bool)):
            continue
        judged = judge(value, Key(path=key, kind="float"))
        repairs = () if judged.better is MISSING else (setting(key, judged.better),)
        fix = f"write {shown(judged.better)}" if repairs else "give a number"
        message = f"{key}={shown(value)} should be a number: DeepSpeed hands it on as it is"
        yield run.say(Severity.ERROR, Topic.WRONG_TYPE, key, message, fix, *repairs)


def _misspelt_parameters(run: DeepSpeedRun, optimizer: str) -> Iterator[Finding]:
    given = block(run.tree, "optimizer.params")
    for name in given:
        near = None if name in PARAMETERS else nearest(name, PARAMETERS)
        if near and near not in given:
            key = f"optimizer.params.{name}"
            message = f"{name} is no parameter of {optimizer}, the nearest is {near}: DeepSpeed stops where it makes it"
            repair = renaming(key, f"optimizer.params.{near}")
            yield run.say(Severity.ERROR, Topic.UNKNOWN_KEY, key, message, f"write {near}", repair)


def _one_bit(run: DeepSpeedRun, name: str) -> Iterator[Finding]:
    key = "optimizer.type"
    if run.stage:
        message = f"{name} does not work with ZeRO, the stage is {run.stage}"
        yield run.clash(key, message, f"take AdamW, or set {ZERO}.stage=0", setting(key, "AdamW"))
    message = f"{name}: deepspeed 0.19.8 has removed the 1-bit optimizers, earlier versions have them"
    yield run.hint(key, message, "take AdamW, or an earlier DeepSpeed", severity=Severity.WARNING)


def _unknown_optimizer(run: DeepSpeedRun, name: str) -> Finding:
    near = nearest(name, (*OPTIMIZERS, *TORCH_OPTIMIZERS), cutoff=0.7)
    fix = f"write {near}" if near else f"take one of {', '.join(OPTIMIZERS)} or a class of torch.optim"
    repairs = (setting("optimizer.type", near),) if near else ()
    message = f"optimizer.type={shown(name)} is neither one of DeepSpeed's nor of torch.optim"
    severity = Severity.ERROR if near else Severity.WARNING
    return run.say(severity, Topic.WRONG_TYPE if near else Topic.HINT, "optimizer.type", message, fix, *repairs)


def scheduler(run: DeepSpeedRun) -> Iterator[Finding]:
    """The kind of the scheduler and its parameters."""
    name = run.value("scheduler.type")
    if not isinstance(name, str) or name == AUTO:
        return
    if name not in SCHEDULERS:
        near = nearest(name, SCHEDULERS, cutoff=0.7)
        fix = f"write {near}" if near else f"take one of {', '.join(SCHEDULERS)}"
        repairs = (setting("scheduler.type", near),) if near else ()
        message = f"scheduler.type={shown(name)} is none of DeepSpeed's"
        yield run.say(Severity.ERROR, Topic.WRONG_TYPE, "scheduler.type", message, fix, *repairs)
        return
    if not isinstance(run.value("scheduler.params", {}), dict):
        return  # the type is told already
    known, given = SCHEDULERS[name], block(run.tree, "scheduler.params")
    yield from _not_numbers(run, "scheduler.params", ("warmup_min_lr", "warmup_max_lr"))
    for each in given:
        if each not in known:
            yield _unknown_parameter(run, name, each)
    meant = {*given, *(nearest(each, known) for each in given if each not in known)}
    if "total_num_steps" in known and "total_num_steps" not in meant:
        message = f"{name} needs total_num_steps"
        yield run.say(
            Severity.ERROR, Topic.CONTRADICTION, "scheduler.params.total_num_steps", message, "give the number of steps"
        )
    yield from _warm_up_steps(run)


def _unknown_parameter(run: DeepSpeedRun, scheduler: str, name: str) -> Finding:
    key, near = f"scheduler.params.{name}", nearest(name, SCHEDULERS[scheduler])
    message = f"{name} is no parameter of {scheduler}{f', the nearest is {near}' if near else ''}: DeepSpeed stops"
    repair = renaming(key, f"scheduler.params.{near}") if near else removing(key)
    return run.say(
        Severity.ERROR, Topic.UNKNOWN_KEY, key, message, f"write {near}" if near else f"take {name} out", repair
    )


def _warm_up_steps(run: DeepSpeedRun) -> Iterator[Finding]:
    key = "scheduler.params.warmup_num_steps"
    steps = run.value(key)
    if steps is None or steps == AUTO:
        return
    number = whole(steps)
    if number is not None and number <= 0:
        message = f"{key}={shown(steps)}: DeepSpeed 0.19.6 and later refuse it, earlier ones took 2"
        yield run.say(Severity.ERROR, Topic.VERSION, key, message, "give 1 for no warm-up", setting(key, 1))
    elif not isinstance(steps, int) or isinstance(steps, bool):
        repairs = () if number is None else (setting(key, number),)
        yield run.say(
            Severity.ERROR,
            Topic.WRONG_TYPE,
            key,
            f"{key}={shown(steps)} must be a whole number",
            "write it without a point",
            *repairs,
        )


def activation_checkpointing(run: DeepSpeedRun) -> Iterator[Finding]:
    """A block that configures DeepSpeed's own checkpoint function and switches nothing on."""
    name = "activation_checkpointing"
    if not block(run.tree, name):
        return
    message = (
        "this block configures DeepSpeed's own checkpoint function; it does not switch checkpointing on in a model"
    )
    yield run.hint(
        name, message, "for Hugging Face models: gradient_checkpointing in TrainingArguments or on the model"
    )
    contiguous = f"{name}.contiguous_memory_optimization"
    if is_true(run.value(contiguous, False)) and run.value(f"{name}.number_checkpoints") is None:
        message = "contiguous_memory_optimization without number_checkpoints: DeepSpeed's checkpoint function stops"
        yield run.hint(contiguous, message, f"give {name}.number_checkpoints", severity=Severity.WARNING)


def launcher(run: DeepSpeedRun) -> Iterator[Finding]:
    """What accelerate and the Trainer ask of a file."""
    if run.launcher is not Launcher.DEEPSPEED and not block(run.tree, ZERO) and not run.is_tuned:
        message = "no zero_optimization: accelerate 1.15 and so the Trainer stop (DeepSpeed itself runs without ZeRO)"
        fix = 'add "zero_optimization": {"stage": 0}'
        yield run.hint(ZERO, message, fix, setting(f"{ZERO}.stage", 0), severity=Severity.WARNING)
    brought = [name for name in ("optimizer", "scheduler") if has(run.tree, name)]
    if run.launcher is Launcher.ACCELERATE and brought:
        dummies = " and ".join({"optimizer": "DummyOptim", "scheduler": "DummyScheduler"}[name] for name in brought)
        message = (
            f"{' and '.join(brought)} in the file: accelerate stops unless the program gives prepare() a {dummies}"
        )
        yield run.hint(brought[0], message, "make them in the program, or there")
    for name in block(run.tree, "autotuning.arg_mappings"):
        if name != name.strip():
            message = f"autotuning.arg_mappings has {shown(name)} with a blank: it maps nothing"
            yield run.hint("autotuning.arg_mappings", message, f"write {shown(name.strip())}")


PART_RULES: tuple[Rule, ...] = (optimizer, scheduler, activation_checkpointing, launcher)
