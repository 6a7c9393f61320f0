"""Who fills in "auto", and with what.

Sources: transformers 5.24.0, integrations/deepspeed.py, HfTrainerDeepSpeedConfig; accelerate 1.15.0, accelerator.py,
_prepare_deepspeed, and utils/dataclasses.py, DeepSpeedPlugin; deepspeed 0.19.8, runtime/config_utils.py, which drops
"auto" in the blocks that have a model and so takes their default.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from scaling.explain.batch import MICRO, STEPS, TOTAL
from scaling.explain.key_table import KeyTable
from scaling.explain.sources import Launcher
from scaling.explain.tree import AUTO, Tree, get
from scaling.explain.values import Fill

ZERO = "zero_optimization"
BY_HIDDEN_SIZE: Mapping[str, tuple[str, Callable[[int], int]]] = {
    f"{ZERO}.reduce_bucket_size": ("hidden_size * hidden_size", lambda size: size * size),
    f"{ZERO}.stage3_prefetch_bucket_size": ("0.9 * hidden_size * hidden_size", lambda size: int(0.9 * size * size)),
    f"{ZERO}.stage3_param_persistence_threshold": ("10 * hidden_size", lambda size: 10 * size),
}
"""Filled in by accelerate and the Trainer alike."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What is known about the run beside the DeepSpeed file."""

    launcher: Launcher
    arguments: Mapping[str, Any] | None = None
    """TrainingArguments with their defaults; None where no file of them was given."""
    yaml: Tree | None = None
    """The accelerate YAML, None where none was given."""
    world_size: int | None = None
    hidden_size: int | None = None


def wants_filling(path: str, value: Any, table: KeyTable) -> bool:
    """Whether a value is an "auto" that somebody has to fill in: some keys have it as a word of their own."""
    if value != AUTO:
        return False
    if path.startswith(("optimizer.params.", "scheduler.params.")):
        return True
    return path in table.keys and table.keys[path].default != AUTO


def fill(path: str, around: Surroundings, table: KeyTable) -> Fill | None:
    """Return what the "auto" at ``path`` becomes, None where nobody fills it in and DeepSpeed cannot take it."""
    if around.launcher is not Launcher.DEEPSPEED:
        found = _by_hidden_size(path, around) or (
            _by_trainer(path, around) if around.launcher is Launcher.TRAINER else _by_accelerate(path, around)
        )
        if found := found or _by_plugin(path):
            return found
    return _dropped(path, table)


def _dropped(path: str, table: KeyTable) -> Fill | None:
    key = table.keys.get(path)
    if key is None or not any(key.block == block or key.block.startswith(f"{block}.") for block in table.strict):
        return None
    return Fill(by=f'{table.label} drops "auto" here and takes its default', value=key.default)


def _by_hidden_size(path: str, around: Surroundings) -> Fill | None:
    if path not in BY_HIDDEN_SIZE:
        return None
    words, work_out = BY_HIDDEN_SIZE[path]
    who = "transformers Trainer" if around.launcher is Launcher.TRAINER else "accelerate"
    size = around.hidden_size
    return Fill(by=f"{who}: {words} of the model", value=None if size is None else work_out(size))


TRAINER_NAMES = {
    MICRO: "per_device_train_batch_size",
    STEPS: "gradient_accumulation_steps",
    "gradient_clipping": "max_grad_norm",
    "optimizer.params.lr": "learning_rate",
    "optimizer.params.eps": "adam_epsilon",
    "optimizer.params.weight_decay": "weight_decay",
    "scheduler.params.warmup_max_lr": "learning_rate",
    "fp16.enabled": "fp16",
    "bf16.enabled": "bf16",
}
"""Keys that the Trainer fills in from one argument; where they are numbers it demands the same number."""
OF_TRAINING = {
    "scheduler.params.total_num_steps": "the number of training steps",
    "scheduler.params.warmup_num_steps": "warmup_steps, at least 1",
}


def _by_trainer(path: str, around: Surroundings) -> Fill | None:
    arguments, who = around.arguments, "transformers Trainer"
    if path == TOTAL:
        return Fill(
            by=f"{who}: world size x per_device_train_batch_size x gradient_accumulation_steps", value=_total(around)
        )
    if path == "optimizer.params.betas":
        betas = None if arguments is None else [arguments.get("adam_beta1"), arguments.get("adam_beta2")]
        return Fill(by=f"{who}: adam_beta1, adam_beta2", value=betas)
    if path == "scheduler.params.warmup_min_lr":
        return Fill(by=who, value=0)
    if path in OF_TRAINING:
        return Fill(by=f"{who}: {OF_TRAINING[path]}")
    if (name := TRAINER_NAMES.get(path)) is None:
        return None
    value = None if arguments is None else arguments.get(name)
    if name in ("fp16", "bf16") and arguments is not None:
        value = bool(value) or bool(arguments.get(f"{name}_full_eval"))
    return Fill(by=f"{who}: {name}", value=value)


def _total(around: Surroundings) -> int | None:
    if around.arguments is None or around.world_size is None:
        return None
    sizes = [around.arguments.get(TRAINER_NAMES[name]) for name in (MICRO, STEPS)]
    if not all(isinstance(size, int) and not isinstance(size, bool) for size in sizes):
        return None
    return around.world_size * int(sizes[0] or 0) * int(sizes[1] or 0)


OF_ACCELERATE = {
    MICRO: "the batch size of the DataLoader given to prepare() (the smallest of several)",
    TOTAL: "micro batch x accumulation x processes",
    "optimizer.params.lr": "DummyOptim's lr",
    "optimizer.params.weight_decay": "DummyOptim's weight_decay",
    "scheduler.params.warmup_max_lr": "the optimizer's lr",
    "scheduler.params.warmup_num_steps": "DummyScheduler's warmup_num_steps, at least 1",
    "scheduler.params.total_num_steps": "DummyScheduler's total_num_steps / processes",
}


def _by_accelerate(path: str, around: Surroundings) -> Fill | None:
    who = "accelerate"
    if path == "scheduler.params.warmup_min_lr":
        return Fill(by=who, value=0)
    if path == STEPS:
        return Fill(by=f"{who}: Accelerator(gradient_accumulation_steps), 1 where not given", value=1)
    if path == "gradient_clipping":
        return Fill(by=who, value=1.0)
    if path in ("fp16.enabled", "bf16.enabled"):
        precision = get(around.yaml or {}, "mixed_precision", None)
        wanted = ("fp16",) if path.startswith("fp16") else ("bf16", "fp8")
        known = around.yaml is not None and precision is not None
        return Fill(by=f"{who}: mixed_precision", value=precision in wanted if known else None)
    return Fill(by=f"{who}: {OF_ACCELERATE[path]}") if path in OF_ACCELERATE else None


OF_PLUGIN: Mapping[str, Any] = {
    f"{ZERO}.stage": 2,
    f"{ZERO}.offload_optimizer.device": "none",
    f"{ZERO}.offload_param.device": "none",
    f"{ZERO}.offload_optimizer.nvme_path": "none",
    f"{ZERO}.offload_param.nvme_path": "none",
    f"{ZERO}.stage3_gather_16bit_weights_on_model_save": False,
}


def _by_plugin(path: str) -> Fill | None:
    if path not in OF_PLUGIN:
        return None
    return Fill(by="accelerate's DeepSpeedPlugin, where nothing else is set", value=OF_PLUGIN[path])
