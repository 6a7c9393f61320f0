"""What each engine adds to the bare model on CPU ranks: its Python, its copies and its messages.

Three models under each engine, with one and with several micro batches a step: the difference is what a micro batch
costs, the rest what a step does. A thin model and one three times as deep tell the cost of a hook from that of any
step, a wide one shows the cost of a parameter.
"""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
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
from strategies.decision import Decision
from strategies.emit.deepspeed import STAGES
from strategies.plan import PYTORCH_STRATEGIES, ActivationCheckpointing, StrategyName
from strategies.time.calibrated import num_tensors, num_units
from strategies.time.calibration import EngineCost

MICRO_BATCHES = 4
"""Of the longer of two steps."""
LEARNING_RATE = 1e-5
SECONDS = tuple(field.name for field in fields(EngineCost) if "_s" in field.name and field.type == "float")
"""Names of what an engine costs."""
REPEATS = 3
"""Of a step, apart in time; the fastest counts."""
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


REDUCED_ONCE = Kind(strategy=StrategyName.FSDP2, syncs_each_batch=False)
"""FSDP2 that reduces gradients once a step, as accelerate runs it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCost:
    """Seconds under an engine, the model's own included."""

    micro_batch_s: float
    step_s: float


def engine_costs(watch: Stopwatch, bare: BareModel) -> tuple[EngineCost, ...]:
    """Return the costs of every engine that is installed, with each kind of activation checkpointing."""
    kinds, none = tuple(_kinds()), ActivationCheckpointing.NONE
    each_batch = [kind for kind in kinds if kind.syncs_each_batch]
    thin = {
        checkpointing: _step_costs(watch, THIN, kinds if checkpointing is none else each_batch, checkpointing)
        for checkpointing in ActivationCheckpointing
    }
    # A block of FSDP2 costs milliseconds: what is left beside its blocks is smaller than what two runs differ by.
    not_all_blocks = [kind for kind in kinds if kind.strategy is not StrategyName.FSDP2]
    deep = _step_costs(watch, DEEP, not_all_blocks, none)
    wide = _step_costs(watch, WIDE, kinds, none, seq_len=WIDE_TOKENS)
    plain = {
        kind: _plain_cost(kind, bare, thin=thin[none][kind], deep=deep.get(kind), wide=wide[kind]) for kind in kinds
    }
    found = [cost for kind in each_batch for cost in _with_checkpointing(plain[kind], kind, bare, thin)]
    return (*found, *_reduced_once(plain, found))


def _kinds() -> Iterator[Kind]:
    has_deepspeed = importlib.util.find_spec("deepspeed") is not None
    if not has_deepspeed:
        logger.warning("DeepSpeed is not installed: there will be no times for %s", ", ".join(STAGES))
    for strategy in PYTORCH_STRATEGIES:
        if has_deepspeed or strategy not in STAGES:
            yield Kind(strategy=strategy)
    yield Kind(strategy=StrategyName.FSDP2, reshards=False)
    yield REDUCED_ONCE


def _with_checkpointing(
    plain: EngineCost, kind: Kind, bare: BareModel, thin: Mapping[ActivationCheckpointing, Mapping[Kind, StepCost]]
) -> Iterator[EngineCost]:
    """Yield the engine's costs with each kind of activation checkpointing."""
    units = num_units(spec_of(THIN), kind.strategy)
    none = ActivationCheckpointing.NONE
    without = thin[none][kind].micro_batch_s - bare.thin[none]
    for checkpointing, costs in thin.items():
        # A block that is computed again meets the engine's hooks again.
        more = (costs[kind].micro_batch_s - bare.thin[checkpointing]) - without
        yield replace(
            plain,
            activation_checkpointing=checkpointing,
            micro_batch_s_per_unit=max(0.0, plain.micro_batch_s_per_unit + more / units),
        )


def _reduced_once(plain: Mapping[Kind, EngineCost], found: Sequence[EngineCost]) -> Iterator[EngineCost]:
    """Yield FSDP2's costs where gradients are reduced once a step: what one such engine differs in, for all of them."""
    once, each_batch = plain[REDUCED_ONCE], plain[Kind(strategy=StrategyName.FSDP2)]
    for cost in found:
        if cost.strategy is StrategyName.FSDP2:
            changed = {
                name: max(0.0, getattr(cost, name) + getattr(once, name) - getattr(each_batch, name))
                for name in SECONDS
            }
            yield replace(cost, sync_each_batch=False, **changed)


def _plain_cost(kind: Kind, bare: BareModel, *, thin: StepCost, deep: StepCost | None, wide: StepCost) -> EngineCost:
    """Return the engine's costs without activation checkpointing, from what the three models cost under it."""
    none = ActivationCheckpointing.NONE
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


def _step_costs(
    watch: Stopwatch,
    config: dict[str, Any],
    kinds: Sequence[Kind],
    checkpointing: ActivationCheckpointing,
    *,
    seq_len: int = FEW_TOKENS,
) -> dict[Kind, StepCost]:
    """Return under each engine what a micro batch costs, which every further one of a step does, and what a step costs.

    Engines, and steps of both lengths, take turns: what disturbs the machine for seconds then makes all of them
    slower, and not one engine alone.
    """
    shared = Shared(config=config, checkpointing=checkpointing, num_ranks=watch.num_ranks, seq_len=seq_len)
    batch = causal_batch(random_ids(shared.decision(Kind(strategy=StrategyName.DDP)), config))
    short, long = dict.fromkeys(kinds, float("inf")), dict.fromkeys(kinds, float("inf"))
    engines: dict[Kind, Engine] = {}
    with ExitStack() as open_engines:
        for kind in kinds:
            engines[kind] = _engine(watch, kind, shared)
            open_engines.callback(engines[kind].close)
        for turn in range(watch.repeats(REPEATS)):
            for kind, engine in engines.items():
                # States appear in the first two steps of an engine; later one step brings the engine into the caches.
                warm_up = 2 if turn == 0 else 1
                short[kind] = min(short[kind], _seconds(watch, engine, [batch], warm_up=warm_up))
                long[kind] = min(long[kind], _seconds(watch, engine, [batch] * MICRO_BATCHES))
    return {kind: step_cost(short[kind], long[kind]) for kind in kinds}


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """What the engines of one comparison have in common."""

    config: dict[str, Any]
    checkpointing: ActivationCheckpointing
    num_ranks: int
    seq_len: int

    def decision(self, kind: Kind) -> Decision:
        """Return how the model is trained under an engine."""
        return decision_for(
            self.config,
            num_ranks=self.num_ranks,
            strategy=kind.strategy,
            checkpointing=self.checkpointing,
            reshards=kind.reshards,
            syncs_each_batch=kind.syncs_each_batch,
            seq_len=self.seq_len,
            steps=MICRO_BATCHES,
        )


def _engine(watch: Stopwatch, kind: Kind, shared: Shared) -> Engine:
    decision = shared.decision(kind)
    engine = build_engine(
        reference_model(shared.config, decision),
        decision=decision,
        settings=OptimizerSettings(weight_decay=0.1),
        device=watch.device,
        meter=NoMeter(),
    )
    engine.set_learning_rate(LEARNING_RATE)
    return engine


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


def _seconds(watch: Stopwatch, engine: Engine, batches: list[Any], *, warm_up: int = 0) -> float:
    """Return the seconds of one step, after ``warm_up`` more that do not count."""
    return watch.seconds(lambda: train_step(engine, batches), repeats=1, warm_up=warm_up)
