"""What a translated run loses, and what has to be filled in: told, not dropped in silence."""

from __future__ import annotations

from scaling.explain.key_table import shipped_table
from scaling.explain.settings import ZERO, Settings
from scaling.explain.sources import Target
from scaling.explain.tree import leaves, without_nulls
from strategies.plan import StrategyName


def lost_in(target: Target, settings: Settings) -> list[str]:
    """Return what the words of ``target`` cannot say of a run, and what the files themselves leave open."""
    left_out = [f"{name} has no word there and is left out" for name in settings.left_out]
    if target is Target.PLAN:
        return [*left_out, *_open(settings)]
    if target is Target.ACCELERATE:
        return [*left_out, *_open_precision(settings), *_without_flat_keys(settings)]
    kept = settings.deepspeed is not None  # as a whole
    return [*(() if kept else left_out), *(_open_precision(settings) if target is Target.TRAINING_ARGS else ())]


def _open(settings: Settings) -> list[str]:
    names = (
        "world_size",
        "global_batch_size",
        "micro_batch_size",
        "precision",
        "optimizer",
        "activation_checkpointing",
    )
    missing = [name for name in names if getattr(settings, name) is None]
    told = "; --model, --seq-len and --gpu make it a plan.json" if missing or settings.world_size is None else ""
    return [f"the files do not say: {', '.join(missing)}{told}"] if missing else []


def _open_precision(settings: Settings) -> list[str]:
    if settings.precision is not None:
        return []
    return ["the files do not say the precision, which is left out: add bf16 or fp16"]


FLAT = (
    *("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "gradient_clipping"),
    *("fp16.enabled", "fp16.auto_cast", "bf16.enabled", "steps_per_print"),
    *(f"{ZERO}.{name}" for name in ("stage", "offload_optimizer.device", "offload_param.device")),
    f"{ZERO}.stage3_gather_16bit_weights_on_model_save",
)
"""Of a DeepSpeed configuration, what an accelerate YAML says or the program does."""


def _without_flat_keys(settings: Settings) -> list[str]:
    found = []
    if settings.micro_batch_size is not None:
        is_flat = settings.strategy not in (StrategyName.DDP, StrategyName.FSDP2)
        kept = "gradient_accumulation_steps" if is_flat else "nothing of the batch"
        micro = f"micro_batch_size={settings.micro_batch_size}"
        found.append(f"{micro} is the batch_size of your DataLoader; the YAML keeps {kept}")
    if lost := _lost_keys(settings):
        found.append(f"flat keys have no word for {', '.join(lost)}; keep them in the JSON and name it there")
    return found


def _lost_keys(settings: Settings) -> list[str]:
    """Return what is set otherwise than by default and cannot be said: keys of numbers and of ZeRO, else blocks."""
    keys = shipped_table("deepspeed").keys
    lost = []
    for path, value in leaves(without_nulls(settings.deepspeed or {})):
        is_default = path in keys and keys[path].default == value
        if path not in FLAT and not is_default and not path.startswith(settings.left_out):
            lost.append(path if path.startswith((ZERO, "fp16", "bf16")) else path.partition(".")[0])
    return list(dict.fromkeys(lost))
