"""Planning as a library call: what ``scaling plan`` decides, for a program that trains with a loop of its own."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from strategies.errors import PlanError, SpecError
from strategies.job import Attention, Job, LossImplementation, OptimizerName, Precision
from strategies.keywords import checks_keywords
from strategies.plan import ActivationCheckpointing, Framework, OffloadDevice, Plan, StrategyName
from strategies.trained import ALL_LINEAR, Lora

if TYPE_CHECKING:  # what a call brings: `import strategies` stays fast
    from strategies.cluster import Cluster
    from strategies.decision import Decision

Choice = TypeVar("Choice", bound=StrEnum)
OPEN = "auto"
"""A loss that is left to the search."""


class Runner(StrEnum):
    """Whose training loop is to run the plan, where it is not ``scaling.train``."""

    ACCELERATE = "accelerate"
    """One's own, around ``accelerate.Accelerator``."""
    TRANSFORMERS = "transformers"
    """``transformers.Trainer``."""


class HuggingFaceConfig(Protocol):
    """What transformers' ``PretrainedConfig`` has that planning needs."""

    def to_dict(self) -> dict[str, Any]: ...


@checks_keywords
def plan(
    model: str | os.PathLike[str] | Mapping[str, Any] | HuggingFaceConfig,
    *,
    seq_len: int,
    global_batch_size: int,
    gpus: int | None = None,
    gpu: str = "auto",
    gpus_per_node: int | None = None,
    gpu_memory_gib: float | None = None,
    host_memory_gib: float | None = None,
    precision: str = Precision.BF16,
    gradient_clipping: float = 1.0,
    optimizer: str = OptimizerName.ADAMW,
    attention: str = Attention.FLASH,
    loss: str = OPEN,
    framework: str | None = None,
    strategy: str | None = None,
    activation_checkpointing: str | None = None,
    checkpoint_every: int | None = None,
    micro_batch_size: int | None = None,
    reshard_after_forward: bool | None = None,
    sync_each_batch: bool | None = None,
    offload_optimizer: str | None = None,
    offload_param: str | None = None,
    lora_rank: int | None = None,
    lora_targets: str | Sequence[str] | None = None,
    freeze: Sequence[str] | None = None,
    safety: float = 0.9,
    runs_in: str | None = None,
) -> Decision:
    """Return the decision that ``scaling plan`` prints for the flags of the same names.

    ``model``: a preset, a folder, a config.json, a hub id, the content of a config.json, or a transformers config.
    ``gpu`` and ``gpus``: this machine's where left out. What fixes a part of the plan is obeyed or refused; the rest is
    searched. ``lora_targets``: names with commas between them, or a list as in PEFT. ``runs_in``: ``accelerate`` or
    ``transformers``, to choose among the plans that they can run.

    Raises:
        ScalingError: an argument is of the wrong type or impossible, arguments contradict each other, or nothing fits
            (NoPlanFitsError).
    """
    from strategies.detect import build_cluster
    from strategies.load_model import model_spec, resolve_model
    from strategies.search import FixedParts, named_strategy
    from strategies.select import decide

    resolved = resolve_model(_named(model))
    cluster = build_cluster(
        gpu=gpu,
        gpus=gpus,
        gpus_per_node=gpus_per_node,
        gpu_memory_gib=gpu_memory_gib,
        host_memory_gib=host_memory_gib,
    )
    return decide(
        model_spec(resolved),
        # A path is stored whole: training may start in another folder.
        model=str(Path(resolved.name).expanduser().resolve()) if resolved.is_local else resolved.name,
        cluster=cluster,
        job=Job(
            seq_len=seq_len,
            global_batch_size=global_batch_size,
            precision=_choice(Precision, "precision", precision),
            gradient_clipping=gradient_clipping,
            optimizer=_choice(OptimizerName, "optimizer", optimizer),
            attention=_choice(Attention, "attention", attention),
            loss=LossImplementation.STANDARD if loss == OPEN else _choice(LossImplementation, "loss", loss),
            lora=_lora(lora_rank, lora_targets),
            freeze=tuple(freeze or ()),
        ),
        fixed=FixedParts(
            strategy=named_strategy(
                _optional(Framework, "framework", framework), _optional(StrategyName, "strategy", strategy)
            ),
            activation_checkpointing=_optional(
                ActivationCheckpointing, "activation_checkpointing", activation_checkpointing
            ),
            micro_batch_size=micro_batch_size,
            checkpoint_every=checkpoint_every,
            reshard_after_forward=reshard_after_forward,
            sync_each_batch=sync_each_batch,
            offload_optimizer=_optional(OffloadDevice, "offload_optimizer", offload_optimizer),
            offload_param=_optional(OffloadDevice, "offload_param", offload_param),
            searches_loss=loss == OPEN,
        ),
        safety=safety,
        why_not=_why_not(_optional(Runner, "runs_in", runs_in), cluster=cluster),
    )


def _named(model: str | os.PathLike[str] | Mapping[str, Any] | HuggingFaceConfig) -> str | Mapping[str, Any]:
    """Return the model as the name, the path or the content of its config."""
    if isinstance(model, (str, Mapping)):
        return model
    if isinstance(model, os.PathLike):
        return os.fspath(model)
    if not hasattr(model, "to_dict"):
        raise SpecError(
            f"model is a {type(model).__name__}; give a preset, a folder, a config.json, a hub id, or its config"
        )
    return model.to_dict()


def _lora(rank: int | None, targets: str | Sequence[str] | None) -> Lora | None:
    """Return the adapters that are trained.

    Raises:
        PlanError: targets are given and no rank.
    """
    if rank is None and targets is None:
        return None
    if rank is None:
        raise PlanError(f"lora_targets={targets!r} names layers for adapters; give their lora_rank too")
    if targets is None:
        return Lora(rank=rank, target_modules=(ALL_LINEAR,))
    names = targets.split(",") if isinstance(targets, str) else targets
    return Lora(rank=rank, target_modules=tuple(name.strip() for name in names))


def _optional(kind: type[Choice], name: str, value: str | None) -> Choice | None:
    return None if value is None else _choice(kind, name, value)


def _choice(kind: type[Choice], name: str, value: str) -> Choice:
    """Return the member of ``kind`` that ``value`` is the text of.

    Raises:
        PlanError: names the argument and what it can be.
    """
    try:
        return kind(value)
    except ValueError:
        raise PlanError(f"{name}={value!r} is not known; give {', '.join(kind)}") from None


def _why_not(runner: Runner | None, *, cluster: Cluster) -> Callable[[Job, Plan], str | None] | None:
    """Return why ``runner`` cannot run a plan, as a function of it; None where everything may be planned."""
    from strategies.emit import accelerator, training_arguments

    if runner is None:
        return None
    module = accelerator if runner is Runner.ACCELERATE else training_arguments
    return partial(_untold, module.require_told, cluster)


def _untold(require_told: Callable[..., None], cluster: Cluster, job: Job, plan: Plan) -> str | None:
    try:
        require_told(job, plan, cluster=cluster)
    except PlanError as error:
        return str(error)
    return None
