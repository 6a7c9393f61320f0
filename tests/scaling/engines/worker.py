"""Runs in every rank: hand-made windows under every engine. Rank 0 writes what all ranks saw as JSON.

python -m tests.scaling.engines.worker OUT (under torchrun for several ranks)
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import scaling.engines.ddp
import scaling.engines.deepspeed
import scaling.engines.fsdp2
from scaling.batch import weightless
from scaling.checkpoint.random_states import random_states
from scaling.engines.base import Engine
from scaling.engines.build import build_engine
from scaling.engines.loss_scale import UpdateState
from scaling.engines.optimizer import OptimizerSettings
from scaling.launch_env import end_process_group, join_process_group, read_launch_environment
from scaling.loop import accumulate_gradients, evaluate, train_step
from scaling.meter import NoMeter
from scaling.models import DTYPES
from scaling.nonfinite import Repeatable, first_nonfinite
from scaling.schedule import LearningRate, ScheduleName
from scaling.train_config import TrainConfig
from strategies.job import Job, Precision
from strategies.plan import OffloadDevice
from tests.scaling.decisions import toy_decision
from tests.scaling.engines.toy import LN_2, Gradient, Tokens, Toy

CPU = OffloadDevice.CPU
SHARDED_PLACES: dict[str, tuple[str, dict[str, Any]]] = {
    "zero2-cpu-optimizer": ("zero2", {"offload_optimizer": CPU}),
    "zero3-cpu-both": ("zero3", {"offload_optimizer": CPU, "offload_param": CPU}),
    "fsdp2-cpu": ("fsdp2", {"offload_param": CPU}),
    "fsdp2-whole-gradients": ("fsdp2", {"sync_each_batch": False}),
}
"""Engines whose states rest elsewhere, or whose gradients are reduced at another time."""
STRATEGIES = ("ddp", "zero1", "zero2", "zero3", "fsdp2", *SHARDED_PLACES)
MicroBatch = Sequence[Gradient]
Window = Sequence[MicroBatch]


@dataclass(frozen=True, kw_only=True)
class Case:
    """Windows of micro batches, the same on every rank unless `per_rank` says otherwise."""

    windows: Sequence[Window] = ()
    per_rank: Sequence[Sequence[Window]] = ()
    max_norm: float = 0.0
    learning_rate: float = 0.0
    """Of plain SGD: the weights move by minus this times the clipped gradient."""
    loss: float = LN_2
    precision: Precision = Precision.FP32
    scale: float | None = None
    """Of the loss, at the start."""

    def of_rank(self, rank: int) -> Sequence[Window]:
        return self.per_rank[rank] if self.per_rank else self.windows


@dataclass(kw_only=True)
class Seen:
    """What one rank saw in one case."""

    norms: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    weights: list[float] = field(default_factory=list)
    """Of the scorer after the last window."""
    names: list[str] = field(default_factory=list)
    """Of all gathered parameters."""
    outcomes: list[str] = field(default_factory=list)
    scale: float = 1.0
    """After the last window."""
    num_updates: int = 0


ONE, FOUR = (1.0,), (4.0,)
CASES = {
    "tokens_in_micro_batches": Case(windows=[[[FOUR], [ONE, ONE, ONE]]]),
    "one_batch_of_all_tokens": Case(windows=[[[FOUR, ONE, ONE, ONE]]]),
    "identical_micro_batches": Case(windows=[[[(2.0,)]] * 4]),
    "loss_accumulation_1": Case(windows=[[[ONE]]], loss=3.0),
    "loss_accumulation_2": Case(windows=[[[ONE]] * 2], loss=3.0),
    "loss_accumulation_8": Case(windows=[[[ONE]] * 8, [[ONE]] * 3], loss=3.0),
    "clipped_once": Case(windows=[[[(3.0, 4.0)], [(-3.0, 4.0)]]], max_norm=1.0, learning_rate=1.0),
    "clipped_shards": Case(windows=[[[(3.0, 0.0, 4.0, 0.0)]]], max_norm=1.0, learning_rate=1.0),
    "not_clipped": Case(windows=[[[(3.0, 0.0, 4.0, 0.0)]]], max_norm=10.0, learning_rate=1.0),
    "short_last_window": Case(windows=[[[(i,)] for i in window] for window in ((1, 2, 3, 4), (5, 6, 7, 8), (9, 10))]),
    "micro_batch_without_labels": Case(windows=[[[FOUR], []], [[], [ONE]]]),
}
BY_PRECISION = {
    f"{name}_{precision}": replace(case, precision=precision, scale=1024.0)
    for precision in (Precision.FP16, Precision.FP16_AUTOCAST)
    for name, case in {
        "unscaled_before_clipping": Case(windows=[[[(3.0, 4.0)]]], max_norm=1.0, learning_rate=1.0),
        "clipped_once": CASES["clipped_once"],
    }.items()
}
CASES |= BY_PRECISION
TWO_RANK_CASES = {"tokens_on_ranks": Case(per_rank=[[[[FOUR]]], [[[ONE, ONE, ONE]]]])}
TOO_LARGE = (200.0,)
"""Times a loss scale of 1024 beyond the largest fp16 number, 65504, also after a mean over two ranks."""
INFINITE = (float("inf"),)
# The first window is bad on one rank; in the good one that follows a first step of AdamW moves by its learning rate.
AFTER_A_BAD_WINDOW = {
    "overflow_fp16": Case(windows=[[[TOO_LARGE]], [[ONE]]], precision=Precision.FP16, scale=1024.0),
    "overflow_fp16-autocast": Case(windows=[[[TOO_LARGE]], [[ONE]]], precision=Precision.FP16_AUTOCAST, scale=1024.0),
    "infinite_fp32": Case(windows=[[[INFINITE]], [[ONE]]]),
    "infinite_bf16": Case(windows=[[[INFINITE]], [[ONE]]], precision=Precision.BF16),
    "infinite_fp16": Case(windows=[[[INFINITE]], [[ONE]]], precision=Precision.FP16, scale=1.0),
}


def main(out: Path) -> None:
    launch = read_launch_environment(os.environ)
    join_process_group(launch, device=torch.device("cpu"), timeout_s=120)
    cases = CASES | (TWO_RANK_CASES if launch.world_size == 2 else {})
    mine: dict[str, Any] = {}
    for strategy in STRATEGIES:
        with_sgd()
        mine[strategy] = {name: asdict(run_case(case, strategy)) for name, case in cases.items()}
        mine[strategy]["evaluation"] = run_evaluation(strategy)
        mine[strategy]["schedule"] = run_schedule(strategy)
        with_adamw()
        mine[strategy] |= {
            name: asdict(run_case(on_rank_0(case), strategy)) for name, case in AFTER_A_BAD_WINDOW.items()
        }
        mine[strategy]["slow_weights"] = run_slow_weights(strategy)
        mine[strategy]["not_finite"] = run_not_finite(strategy)
        mine[strategy]["nonfinite_gradients"] = run_nonfinite_gradients(strategy)
        mine[strategy]["named"] = run_named(strategy)
    all_ranks: list[Any] = [None] * launch.world_size
    dist.all_gather_object(all_ranks, mine)
    if launch.is_main:
        out.write_text(json.dumps(all_ranks))
    end_process_group()


def run_case(case: Case, strategy: str) -> Seen:
    tokens, seen = Tokens(), Seen()
    windows_of_all = [window for rank in case.per_rank for window in reversed(rank)]  # padding is no bad token
    for gradient in (gradient for window in windows_of_all for micro in window for gradient in micro):
        tokens.id(gradient)  # the same table on every rank
    windows = [[tokens.batch(micro) for micro in window] for window in case.of_rank(dist.get_rank())]
    accumulation = max(len(window) for window in windows)
    model = Toy(tokens.gradients, loss=case.loss).to(DTYPES[case.precision])
    engine = make_engine(model, strategy, accumulation, max_norm=case.max_norm, precision=case.precision)
    engine.set_learning_rate(case.learning_rate)
    if case.scale:
        engine.load_update_state(UpdateState(scale=case.scale))
    for window in windows:
        result = train_step(engine, window)
        seen.losses.append(float(result.mean_loss))
        seen.norms.append(float(result.grad_norm))
        seen.outcomes.append(result.outcome)
    seen.scale, seen.num_updates = engine.update_state.scale, engine.update_state.num_updates
    for name, parameter in engine.gathered_parameters():
        seen.names.append(name)
        if name == "scorer.weight":
            seen.weights = parameter.flatten().tolist()
    engine.close()
    return seen


def run_evaluation(strategy: str) -> dict[str, float]:
    """Four tokens with a loss of ln 2 in one batch, one with a loss of 3 in another; the second rank has none."""
    tokens = Tokens()
    lost = (math.log(math.exp(3.0) - 1) / 2,)  # x = -2 * this, so the score is -ln(e**3 - 1) and the loss ln(e**3)
    batches = [tokens.batch([(0.0,)] * 4), tokens.batch([lost], num_padding=5)]
    model = Toy(tokens.gradients)
    torch.nn.init.ones_(model.scorer.weight)
    engine = make_engine(model, strategy, 1)
    mine = batches if dist.get_rank() == 0 else [weightless(batch) for batch in batches]
    result = evaluate(engine, mine)
    engine.close()
    return {"loss": result.mean_loss, "tokens": result.num_loss_units}


def run_schedule(strategy: str) -> dict[str, list[float]]:
    """Ten updates by SGD, of four equal micro batches each: the rates that were used, and the weight at the end."""
    tokens = Tokens()
    window = [tokens.batch([ONE])] * 4
    engine = make_engine(Toy(tokens.gradients), strategy, 4)
    config = TrainConfig(
        plan=Path("plan.json"), out=Path("run"), steps=10, learning_rate=1.0, schedule=ScheduleName.LINEAR
    )
    rate, rates = LearningRate(config), []
    for _ in range(10):
        engine.set_learning_rate(rate.at(engine.update_state.num_updates))
        rates.append(engine.learning_rates[0])
        train_step(engine, window)
    weights = [p.detach().flatten().tolist() for name, p in engine.gathered_parameters() if name == "scorer.weight"]
    engine.close()
    return {"rates": rates, "weight": weights[0]}


def run_slow_weights(strategy: str) -> list[float]:
    """A bf16 weight of one that AdamW lowers by a thousandth a step; the weight after every step."""
    tokens = Tokens()
    batch = tokens.batch([(1.0,)])
    model = Toy(tokens.gradients).to(torch.bfloat16)
    torch.nn.init.ones_(model.scorer.weight)
    engine = make_engine(model, strategy, 1, precision=Precision.BF16)
    engine.set_learning_rate(1e-3)
    weights = []
    for _ in range(8):
        train_step(engine, [batch])
        weights += [float(p.detach()) for name, p in engine.gathered_parameters() if name == "scorer.weight"]
    engine.close()
    return weights


def run_not_finite(strategy: str) -> float:
    """Return the norm that a step with an infinite gradient reports, which is no number the trainer goes on with."""
    tokens = Tokens()
    batch = tokens.batch([(float("inf"),)])
    engine = make_engine(Toy(tokens.gradients), strategy, 1, max_norm=1.0)
    norm = float(train_step(engine, [batch]).grad_norm)
    engine.close()
    return norm


def on_rank_0(case: Case) -> Case:
    """Return the case with its first window on rank 0 only; other ranks have two good tokens there."""
    bad, *good = case.windows
    others = [[[ONE] for _ in bad], *good]
    return replace(case, learning_rate=0.25, per_rank=[case.windows] + [others] * (dist.get_world_size() - 1))


def run_nonfinite_gradients(strategy: str) -> list[str]:
    """Return which gradients are named after a window whose last micro batch has an infinite one."""
    tokens = Tokens()
    micro_batches = [tokens.batch([(1.0,)]), tokens.batch([INFINITE])]
    engine = make_engine(Toy(tokens.gradients), strategy, 2)
    accumulate_gradients(engine, micro_batches)
    names = engine.nonfinite_gradients()
    engine.close()
    return names


def run_named(strategy: str) -> str:
    """Return what is said about a window whose last micro batch has an infinite token on the last rank."""
    tokens = Tokens()
    good, bad = tokens.batch([ONE]), tokens.batch([INFINITE])
    engine = make_engine(Toy(tokens.gradients), strategy, 2)
    is_bad = dist.get_rank() == dist.get_world_size() - 1
    repeatable = Repeatable(
        micro_batches=[good, bad if is_bad else good], random_states=random_states(torch.device("cpu"))
    )
    text = first_nonfinite(engine, repeatable)
    engine.close()
    return text


def make_engine(
    model: torch.nn.Module,
    strategy: str,
    accumulation: int,
    *,
    max_norm: float = 0.0,
    precision: Precision = Precision.FP32,
) -> Engine:
    name, changes = SHARDED_PLACES.get(strategy, (strategy, {}))
    decision = toy_decision(
        name, world_size=dist.get_world_size(), accumulation=accumulation, max_norm=max_norm, precision=precision
    )
    decision = replace(decision, plan=replace(decision.plan, **changes))
    settings = OptimizerSettings(weight_decay=0.0)
    return build_engine(model, decision=decision, settings=settings, device=torch.device("cpu"), meter=NoMeter())


MAKE_OPTIMIZER = scaling.engines.ddp.make_optimizer
ENGINE_MODULES: tuple[Any, ...] = (scaling.engines.ddp, scaling.engines.deepspeed, scaling.engines.fsdp2)


def with_sgd() -> None:
    """Let every engine use plain SGD, whose update shows the gradient."""

    def make_sgd(decayed: Any, undecayed: Any, settings: OptimizerSettings, *, job: Job) -> Any:
        return torch.optim.SGD([{"params": decayed}, {"params": undecayed}], lr=0.0)

    for module in ENGINE_MODULES:
        module.make_optimizer = make_sgd


def with_adamw() -> None:
    for module in ENGINE_MODULES:
        module.make_optimizer = MAKE_OPTIMIZER


if __name__ == "__main__":
    main(Path(sys.argv[1]))
