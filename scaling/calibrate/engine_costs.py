"""What each engine adds to the bare model on CPU ranks: its Python, its copies and its messages.

Three models under each engine, with one and with several micro batches a step: the difference is what a micro batch
costs, the rest what a step does. A thin model and one three times as deep tell the cost of a hook from that of any
step, a wide one shows the cost of a parameter.
"""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from scaling.batch import causal_batch
from scaling.calibrate.model_costs import BareModel, random_ids, reference_model
from scaling.calibrate.reference_models import DEEP, FEW_TOKENS, THIN, WIDE, WIDE_TOKENS, decision_for, spec_of
from scaling.calibrate.timing import Stopwatch
from scaling.engines.base import Engine
from scaling.engines.build import build_engine
from scaling.engines.optimizer import OptimizerSettings
from scaling.loop import train_step
from scaling.meter import NoMeter
from strategies.emit.deepspeed import STAGES
from strategies.plan import PYTORCH_STRATEGIES, ActivationCheckpointing, StrategyName
from strategies.time.calibrated import num_tensors, num_units
from strategies.time.calibration import EngineCost

MICRO_BATCHES = 4
"""Of the longer of two steps."""
LEARNING_RATE = 1e-5
SECONDS = tuple(field.name for field in fields(EngineCost) if "_s" in field.name and field.type == "float")
"""Names of what an engine costs."""
TURNS = 16
"""Of `split`: each leaves about a tenth of the error of the one before; exact to the digits of a float."""
Triple = tuple[float, ...]
"""A number of the thin, the deep and the wide model."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """An engine to measure."""

    strategy: StrategyName
    reshards: bool = True
    syncs_each_batch: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCost:
    """Seconds under an engine, the model's own included."""

    micro_batch_s: float
    step_s: float


def engine_costs(watch: Stopwatch, bare: BareModel) -> tuple[EngineCost, ...]:
    """Return the costs of every engine that is installed, with each kind of activation checkpointing."""
    found = [cost for kind in _kinds() for cost in _costs(watch, kind, bare)]
    return (*found, *_reduced_once(watch, bare, found))


def _kinds() -> Iterator[Kind]:
    has_deepspeed = importlib.util.find_spec("deepspeed") is not None
    if not has_deepspeed:
        logger.warning("DeepSpeed is not installed: there will be no times for %s", ", ".join(STAGES))
    for strategy in PYTORCH_STRATEGIES:
        if has_deepspeed or strategy not in STAGES:
            yield Kind(strategy=strategy)
    yield Kind(strategy=StrategyName.FSDP2, reshards=False)


def _costs(watch: Stopwatch, kind: Kind, bare: BareModel) -> Iterator[EngineCost]:
    none = ActivationCheckpointing.NONE
    thin = {
        checkpointing: _step_cost(watch, THIN, kind, checkpointing, repeats=4)
        for checkpointing in ActivationCheckpointing
    }
    plain = _plain_cost(watch, kind, bare, thin[none])
    units = num_units(spec_of(THIN), kind.strategy)
    for checkpointing, cost in thin.items():
        # A block that is computed again meets the engine's hooks again.
        more = (cost.micro_batch_s - bare.thin[checkpointing]) - (thin[none].micro_batch_s - bare.thin[none])
        yield replace(
            plain,
            activation_checkpointing=checkpointing,
            micro_batch_s_per_unit=max(0.0, plain.micro_batch_s_per_unit + more / units),
        )


def _reduced_once(watch: Stopwatch, bare: BareModel, found: Sequence[EngineCost]) -> Iterator[EngineCost]:
    """Yield FSDP2's costs where gradients are reduced once a step: what one such engine differs in, for all of them."""
    kind = Kind(strategy=StrategyName.FSDP2, syncs_each_batch=False)
    once = _plain_cost(watch, kind, bare, _step_cost(watch, THIN, kind, ActivationCheckpointing.NONE, repeats=4))
    of_fsdp2 = [each for each in found if each.strategy is StrategyName.FSDP2]
    each_batch = next(
        each
        for each in of_fsdp2
        if each.reshard_after_forward and each.activation_checkpointing is ActivationCheckpointing.NONE
    )
    for cost in of_fsdp2:
        changed = {
            name: max(0.0, getattr(cost, name) + getattr(once, name) - getattr(each_batch, name)) for name in SECONDS
        }
        yield replace(cost, sync_each_batch=False, **changed)


def _plain_cost(watch: Stopwatch, kind: Kind, bare: BareModel, thin: StepCost) -> EngineCost:
    """Return the engine's costs without activation checkpointing; ``thin`` is what the thin model costs."""
    none = ActivationCheckpointing.NONE
    # A block of FSDP2 costs milliseconds: what is left beside its blocks is smaller than what two runs differ by.
    is_all_blocks = kind.strategy is StrategyName.FSDP2
    deep = None if is_all_blocks else _step_cost(watch, DEEP, kind, none, repeats=3)
    wide = _step_cost(watch, WIDE, kind, none, repeats=3, seq_len=WIDE_TOKENS)
    specs = [spec_of(config) for config in (THIN, DEEP, WIDE)]
    num_params = tuple(spec.num_params for spec in specs)
    micro = split(
        (
            max(0.0, thin.micro_batch_s - bare.thin[none]),
            max(0.0, deep.micro_batch_s - bare.deep) if deep else None,
            max(0.0, wide.micro_batch_s - bare.wide),
        ),
        parts=tuple(num_units(spec, kind.strategy) for spec in specs),
        num_params=num_params,
    )
    step = split(
        (thin.step_s, deep.step_s if deep else None, wide.step_s),
        parts=tuple(map(num_tensors, specs)),
        num_params=num_params,
    )
    return EngineCost(
        strategy=kind.strategy,
        reshard_after_forward=kind.reshards,
        sync_each_batch=kind.syncs_each_batch,
        activation_checkpointing=none,
        micro_batch_s=micro.fixed_s,
        micro_batch_s_per_unit=micro.s_per_part,
        micro_batch_s_per_param=micro.s_per_param,
        step_s=step.fixed_s,
        step_s_per_tensor=step.s_per_part,
        step_s_per_param=step.s_per_param,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """What three models cost, as seconds of any model, of one of its parts (hooks or tensors) and of a parameter."""

    fixed_s: float
    s_per_part: float
    s_per_param: float


def split(seconds: tuple[float, float | None, float], *, parts: Triple, num_params: Triple) -> Split:
    """Return the costs that give ``seconds`` of the thin, the deep and the wide model; none is below zero.

    Solved by turns, since the thin and the deep model have next to no parameters: parts from these two, then
    parameters from the wide one. Where a cost would be below zero it is none, and the thin model keeps its time.
    Without a time of the deep model nothing is fixed: all is the parts' and the parameters'.
    """
    thin, deep, wide = seconds
    s_per_param = fixed_s = s_per_part = 0.0
    for _ in range(TURNS):
        rest_thin = thin - s_per_param * num_params[0]
        slope = rest_thin / parts[0]
        if deep is not None:
            slope = (deep - s_per_param * num_params[1] - rest_thin) / (parts[1] - parts[0])
        s_per_part = min(max(0.0, slope), max(0.0, rest_thin) / parts[0])
        fixed_s = max(0.0, rest_thin - s_per_part * parts[0])
        s_per_param = max(0.0, wide - fixed_s - s_per_part * parts[2]) / num_params[2]
    return Split(fixed_s=fixed_s, s_per_part=s_per_part, s_per_param=s_per_param)


def _step_cost(
    watch: Stopwatch,
    config: dict[str, Any],
    kind: Kind,
    checkpointing: ActivationCheckpointing,
    *,
    repeats: int,
    seq_len: int = FEW_TOKENS,
) -> StepCost:
    """Return the cost of a micro batch and of a step: what changes with the micro batches of a step, and what does not.

    Steps of both lengths take turns, so that a disturbance does not hit one of them alone.
    """
    decision = decision_for(
        config,
        num_ranks=watch.num_ranks,
        strategy=kind.strategy,
        checkpointing=checkpointing,
        reshards=kind.reshards,
        syncs_each_batch=kind.syncs_each_batch,
        seq_len=seq_len,
        steps=MICRO_BATCHES,
    )
    engine = build_engine(
        reference_model(config, decision),
        decision=decision,
        settings=OptimizerSettings(weight_decay=0.1),
        device=watch.device,
        meter=NoMeter(),
    )
    engine.set_learning_rate(LEARNING_RATE)
    batch = causal_batch(random_ids(decision, config))
    try:
        short = long = float("inf")
        for turn in range(watch.repeats(repeats)):
            short = min(short, _seconds(watch, engine, [batch], is_first=turn == 0))
            long = min(long, _seconds(watch, engine, [batch] * MICRO_BATCHES, is_first=False))
    finally:
        engine.close()
    return step_cost(short, long)


def step_cost(short: float, long: float) -> StepCost:
    """Return the cost of a micro batch and of a step whose sums take ``short`` with one and ``long`` with several.

    Where further micro batches cost more than a whole short step, or nothing, there is no cost of the other kind; the
    one that is left then misses both by the same share, or is the short step.
    """
    micro = (long - short) / (MICRO_BATCHES - 1)
    if micro <= 0:
        return StepCost(micro_batch_s=0.0, step_s=short)
    if micro > short:
        return StepCost(micro_batch_s=2 * short * long / (long + MICRO_BATCHES * short), step_s=0.0)
    return StepCost(micro_batch_s=micro, step_s=short - micro)


def _seconds(watch: Stopwatch, engine: Engine, batches: list[Any], *, is_first: bool) -> float:
    """Return the seconds of a step; states appear in the first two of an engine, which do not count."""
    return watch.seconds(lambda: train_step(engine, batches), repeats=1, warm_up=2 if is_first else 0)
