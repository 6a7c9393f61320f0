"""Can this process run the plan exactly as it is? Everything that can be said before processes meet is said here."""

from __future__ import annotations

import importlib.util
import json
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from scaling.auto_classes import TRAINED
from scaling.errors import EngineError, LaunchError, ModelError
from scaling.launch_env import LaunchEnvironment
from strategies.cluster import Gpu
from strategies.decision import Decision
from strategies.emit.deepspeed import STAGES, deepspeed_config
from strategies.emit.files import DEEPSPEED_FILE
from strategies.errors import PlanError, ScalingError, SpecError
from strategies.estimate import Level
from strategies.job import Attention, OptimizerName, Precision
from strategies.memory.predict import predict
from strategies.model_spec import ModelSpec
from strategies.offload import require_possible_offload
from strategies.plan import Framework, OffloadDevice, Plan, StrategyName, accumulation_steps
from strategies.serialize import numbers, short
from strategies.units import format_bytes

ACCELERATE_CONFIG = "ACCELERATE_DEEPSPEED_CONFIG_FILE"
ESTIMATE_TOLERANCE = 0.01
"""Of the peak: below what any edit of batch, sequence, strategy or checkpointing changes it by."""
_RAM = (OffloadDevice.NONE, OffloadDevice.CPU)
"""Where states can rest in training."""
FROM_BITSANDBYTES = (OptimizerName.ADAMW_8BIT, OptimizerName.LION)
_TORCH = (OptimizerName.ADAMW, OptimizerName.SGD)
_OPTIMIZERS = {
    # Adafactor sums rows and columns, which DeepSpeed's flat partitions have lost.
    StrategyName.DDP: tuple(OptimizerName),
    **dict.fromkeys(STAGES, (*_TORCH, *FROM_BITSANDBYTES)),
    StrategyName.FSDP2: _TORCH,
}
LARGEST = 2**63
"""Of a whole number in a plan: what its frameworks count in."""

logger = logging.getLogger(__name__)


def check_plan(decision: Decision, *, plan_path: Path, launch: LaunchEnvironment, environ: Mapping[str, str]) -> None:
    """Refuse a plan that these processes cannot run exactly as it is written.

    Raises:
        ScalingError: names what differs, with both values.
    """
    _check_world_size(decision, launch)
    check_batch(decision)
    require_trainable(decision)
    require_installed(decision)
    check_accelerate(decision, environ)
    beside = plan_path.parent / DEEPSPEED_FILE
    if beside.is_file():
        check_deepspeed_file(decision, beside)
    if named := environ.get(ACCELERATE_CONFIG):
        check_deepspeed_file(decision, Path(named))


def check_estimate(decision: Decision, spec: ModelSpec) -> None:
    """Warn where the plan's closed-form estimate is not that of its own settings: some of them were edited by hand.

    Not refused, since a newer version of the formulas may differ too.

    Raises:
        PlanError: the estimate is no number of bytes, or some number of the plan is beyond any computer's.
        JobError: the sequence is longer than the model's positions.
    """
    for name, number in numbers(decision):
        if isinstance(number, int) and abs(number) > LARGEST:
            raise PlanError(f"the plan has {name}={short(number)}, which is beyond {LARGEST}; plan again")
    written = decision.estimate.peak_allocated_bytes if decision.estimate.memory.phases else 0
    if written <= 0:
        raise PlanError(f"the plan's estimate has peak_allocated_bytes={written}, which must be above zero; plan again")
    try:
        computed = predict(spec, cluster=decision.cluster, job=decision.job, plan=decision.plan).peak_allocated_bytes
    except (SpecError, PlanError):
        return  # a family or setting without closed forms: only the level that made the estimate could repeat it
    if decision.estimate.level is Level.INSTANT and abs(computed - written) > ESTIMATE_TOLERANCE * written:
        logger.warning(
            "the plan's estimate says a peak of %s, but its settings give %s (%d and %d bytes): it was edited or made "
            "by another version; plan again",
            format_bytes(written),
            format_bytes(computed),
            written,
            computed,
        )


def check_num_params(decision: Decision, num_params: int) -> None:
    """Refuse a model with another number of parameters than was planned for: its memory would be another.

    Raises:
        ModelError: names both numbers.
    """
    if num_params != decision.num_params:
        raise ModelError(
            f"model {decision.model} has num_params={num_params}, but the plan was made for num_params="
            f"{decision.num_params}; plan again for the model as it is now"
        )


def check_deepspeed_file(decision: Decision, path: Path) -> None:
    """Refuse a DeepSpeed JSON that says something else than the plan: two sources must not contradict each other.

    Raises:
        LaunchError: names the first setting that differs and both values.
    """
    try:
        given = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise LaunchError(f"cannot read {path}: {error}; write it again with `scaling plan --out`") from error
    planned = deepspeed_config(decision)
    if planned is None:
        raise LaunchError(
            f"{path} configures DeepSpeed, but the plan's strategy is {decision.plan.strategy}; "
            f"remove the file, or plan again with --strategy zero1, zero2 or zero3"
        )
    for name, in_file, in_plan in _differences(given, planned):
        raise LaunchError(
            f"{name} is {in_file} in {path} but {in_plan} in the plan; "
            f"change the plan with `scaling plan`, which writes both files"
        )


def _check_world_size(decision: Decision, launch: LaunchEnvironment) -> None:
    if launch.world_size != decision.cluster.gpus:
        raise LaunchError(
            f"the plan is for gpus={decision.cluster.gpus}, but world_size={launch.world_size} processes were started; "
            f"start {decision.cluster.gpus}, or plan again with --gpus {launch.world_size}"
        )


def check_batch(decision: Decision) -> None:
    """Refuse a plan whose passes do not add up to its global batch: it was edited.

    Raises:
        PlanError: names all four numbers.
    """
    job, plan = decision.job, decision.plan
    steps = accumulation_steps(
        global_batch_size=job.global_batch_size,
        micro_batch_size=plan.micro_batch_size,
        data_parallel_size=decision.cluster.gpus,
    )
    if steps != plan.gradient_accumulation_steps:
        raise PlanError(
            f"gradient_accumulation_steps={plan.gradient_accumulation_steps} in the plan, but global_batch_size="
            f"{job.global_batch_size} / (micro_batch_size={plan.micro_batch_size} * gpus={decision.cluster.gpus}) = "
            f"{steps}; plan again"
        )


def require_trainable(decision: Decision) -> None:
    """Refuse what can be planned but not run by PyTorch's engines.

    Raises:
        EngineError: names the setting and what runs instead.
    """
    job, plan = decision.job, decision.plan
    if plan.strategy.framework is Framework.TENSORFLOW:
        raise EngineError(
            f"strategy={plan.strategy} is TensorFlow's: train it with python -m scaling.tensorflow.train; only "
            f"strategies of PyTorch are run, measured and traced here"
        )
    require_possible_offload(plan)
    _refuse_nvme(plan)
    for name, value, runs in (
        ("precision", job.precision, _precisions(plan.strategy, decision.cluster.gpu)),
        ("offload_optimizer", plan.offload_optimizer, _RAM),
        ("offload_param", plan.offload_param, _RAM),
        ("optimizer", job.optimizer, _OPTIMIZERS[plan.strategy]),
        ("fused_optimizer", job.fused_optimizer, _fused(decision)),
        ("attention", job.attention, (Attention.FLASH,)),
    ):
        if value not in runs:
            raise EngineError(
                f"{name}={value} cannot be trained under {plan.strategy} yet, only planned; "
                f"plan again with {' or '.join(map(str, runs))}"
            )


def _refuse_nvme(plan: Plan) -> None:
    for name, device in (("offload_optimizer", plan.offload_optimizer), ("offload_param", plan.offload_param)):
        if device is OffloadDevice.NVME:
            raise EngineError(
                f"{name}=nvme can be planned but not trained: DeepSpeed 0.19.8 needs its async_io operator (Debian's "
                f"libaio-dev), which hung in the first step on a CPU, and checkpoints do not read states from its "
                f"files; plan again with {name}=cpu"
            )


def why_not_trainable(decision: Decision) -> str | None:
    """Return why our trainer cannot run the decision's plan, None where it can."""
    try:
        require_trainable(decision)
    except ScalingError as error:
        return str(error)
    return None


def require_trainable_model(spec: ModelSpec) -> None:
    """Refuse a model that can be planned but not trained here.

    Raises:
        EngineError: names what it is trained to do.
    """
    if spec.task not in TRAINED:
        raise EngineError(
            f"model {spec.name} is made for task={spec.task}: it can be planned without --out, and not be trained here"
        )


def _precisions(strategy: StrategyName, gpu: Gpu) -> tuple[Precision, ...]:
    """Return what the strategy's engine trains in on such a GPU."""
    # DeepSpeed 0.19.8 keeps a second copy of the weights at every precision, so pure bf16 would be pure in name only.
    # Stage 3 shares them if ``tensor.device == self.device``, and that is a text (zero/stage3.py, line 1162).
    by_engine = [each for each in Precision if strategy not in STAGES or each is not Precision.BF16_PURE]
    return tuple(filter(gpu.computes_in, by_engine))


def _fused(decision: Decision) -> tuple[bool, ...]:
    """Return which kernels can be had.

    torch 2.13 does not know how the fused one of SGD runs on FSDP2's shards; bitsandbytes has none but fused ones.
    """
    if decision.job.optimizer in FROM_BITSANDBYTES:
        return (True,)
    is_unknown = decision.plan.strategy is StrategyName.FSDP2 and decision.job.optimizer is OptimizerName.SGD
    return (False,) if is_unknown else (True, False)


def require_installed(decision: Decision) -> None:
    if decision.job.optimizer in FROM_BITSANDBYTES and importlib.util.find_spec("bitsandbytes") is None:
        raise EngineError(
            f"optimizer={decision.job.optimizer} needs bitsandbytes, which is not installed; "
            f"pip install 'memory-scaling[optimizers]'"
        )
    if decision.plan.strategy in STAGES and importlib.util.find_spec("deepspeed") is None:
        raise EngineError(
            f"strategy={decision.plan.strategy} needs DeepSpeed, which is not installed; "
            f"pip install 'memory-scaling[deepspeed]'"
        )


def check_accelerate(decision: Decision, environ: Mapping[str, str]) -> None:
    """Refuse settings of ``accelerate launch`` that would have no effect: the engine follows the plan alone."""
    precision = environ.get("ACCELERATE_MIXED_PRECISION", "no")
    if precision not in ("no", decision.job.precision.value):
        raise LaunchError(
            f"accelerate was told mixed_precision={precision}, but the plan says precision={decision.job.precision}; "
            f"set it to 'no' in the accelerate config, or plan again with --precision"
        )
    for framework in {"DEEPSPEED", "FSDP"} - ({"DEEPSPEED"} if decision.plan.strategy in STAGES else set()):
        if environ.get(f"ACCELERATE_USE_{framework}", "false").lower() == "true":
            raise LaunchError(
                f"accelerate was told to use {framework}, but the plan's strategy is {decision.plan.strategy}; "
                f"launch with the accelerate.yaml that `scaling plan --out` writes"
            )


def _differences(given: Any, planned: Any, name: str = "") -> Iterator[tuple[str, str, str]]:
    """Yield (dotted name, value in the file, value in the plan) for every setting that is not the same in both."""
    if isinstance(given, dict) and isinstance(planned, dict):
        for key in sorted(given.keys() | planned.keys()):
            inner = f"{name}.{key}" if name else str(key)
            yield from _differences(given.get(key, _ABSENT), planned.get(key, _ABSENT), inner)
    elif given != planned or isinstance(given, bool) != isinstance(planned, bool):
        yield name or "the whole file", _shown(given), _shown(planned)


class _Absent:
    """Stands for a setting that one side does not have."""


_ABSENT = _Absent()


def _shown(value: Any) -> str:
    return "absent" if value is _ABSENT else json.dumps(value)
