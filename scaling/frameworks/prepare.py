"""One plan for each framework, and the weights that both start from."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from scaling.check_plan import require_trainable
from scaling.errors import EngineError
from scaling.tensorflow_extra import require_tensorflow
from strategies.decision import Decision
from strategies.job import Attention, Job, LossImplementation
from strategies.load_model import model_spec, resolve_model
from strategies.memory.predict import predict
from strategies.mirrored_limits import as_run
from strategies.plan import Framework, Plan, StrategyName
from strategies.registry import STRATEGIES


def plans_of_both(decision: Decision) -> dict[Framework, Decision]:
    """Return the decision as each framework runs it; the other one than its own keeps everything on every device.

    Micro batches, accumulation and activation checkpointing are the same, and so is the number format: where the plan
    is TensorFlow's, or PyTorch's with 16-bit weights, both keep fp32 weights.

    Raises:
        ScalingError: TensorFlow is not installed, or one of the two cannot run such a plan.
    """
    require_tensorflow()
    job = replace(as_run(decision.job, StrategyName.MIRRORED), loss=LossImplementation.STANDARD)
    own = decision.plan.strategy
    torch_strategy = own if own.framework is Framework.PYTORCH else StrategyName.DDP
    found = {
        Framework.PYTORCH: _with(decision, torch_strategy, replace(job, attention=Attention.FLASH)),
        Framework.TENSORFLOW: _with(decision, StrategyName.MIRRORED, job),
    }
    require_trainable(found[Framework.PYTORCH])
    return found


def _with(decision: Decision, strategy: StrategyName, job: Job) -> Decision:
    """Return the decision under another strategy, with the closed forms' estimate of it.

    Raises:
        ScalingError: the strategy cannot run it.
    """
    spec = model_spec(resolve_model(decision.model))
    plan: Plan = replace(decision.plan, strategy=strategy)
    if strategy is not decision.plan.strategy:
        plan = replace(plan, buckets=STRATEGIES[strategy].buckets(spec, job))
    return Decision(
        model=decision.model,
        num_params=decision.num_params,
        cluster=decision.cluster,
        job=job,
        plan=plan,
        estimate=predict(spec, cluster=decision.cluster, job=job, plan=plan),
    )


def write_first_weights(decision: Decision, *, seed: int, folder: Path) -> None:
    """Write the plan's model to ``folder`` without dropout, whose noise differs between frameworks.

    Its weights are the pretrained ones where the model has some, else those that ``seed`` draws.

    Raises:
        ScalingError: the model cannot be built or written.
    """
    from scaling.models import build_config, build_model, choose_weights
    from scaling.parity.own_model import switch_dropout_off
    from scaling.train_config import Init
    from strategies.job import Precision

    resolved = resolve_model(decision.model)
    config = build_config(resolved)
    switch_dropout_off(config)
    in_fp32 = replace(decision, job=replace(decision.job, precision=Precision.FP32))
    model = build_model(config, choose_weights(resolved, init=Init.AUTO), decision=in_fp32, seed=seed)
    try:
        model.save_pretrained(folder)  # type: ignore[operator]  # build_model returns transformers' class
    except OSError as error:
        raise EngineError(f"cannot write the first weights to {folder}: {error}; give another --out") from error
