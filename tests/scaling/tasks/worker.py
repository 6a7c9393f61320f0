"""Run by torchrun: every task under every strategy, one update beside plain PyTorch, then some training.

Writes what each rank saw as JSON: how far one update of gradient descent ends from that of one process that has the
whole batch and the library's own loss; the losses of a short training; what evaluations of uneven shares gave.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from scaling.engines.base import Engine
from scaling.engines.build import build_engine
from scaling.engines.optimizer import OptimizerSettings
from scaling.launch_env import end_process_group, join_process_group, read_launch_environment
from scaling.loop import evaluate, train_step
from scaling.lr_scales import LrScale
from scaling.meter import NoMeter
from scaling.models import InitialWeights, build_config, build_model
from scaling.train_config import TrainConfig
from scaling.training_data import TrainingData, open_training_data
from strategies.decision import Decision
from strategies.job import OptimizerName
from strategies.load_model import resolve_model
from tests.scaling.tasks.models import TINY, decision_for, write_model
from tests.scaling.tasks.plain import plain_evaluation, plain_update

STRATEGIES = ("ddp", "zero2")
PARITY_STRATEGIES = ("ddp", "zero2", "zero3", "fsdp2")
NUM_STEPS = 40
LEARNING_RATE = 2e-3
WORDS = {"animal": ("cat", "dog", "hen"), "place": ("park", "lake", "moor"), "tool": ("saw", "vice", "rasp")}
SCALES = (LrScale(pattern="*embed*", factor=0.0), LrScale(pattern="*classifier*", factor=0.5))


def main(folder: Path) -> None:
    launch = read_launch_environment(os.environ)
    join_process_group(launch, device=torch.device("cpu"), timeout_s=120)
    seen: dict[str, Any] = {}
    for task in TINY:
        model = write_model(folder / str(dist.get_rank()), task)
        for strategy in PARITY_STRATEGIES:
            seen[f"{task} {strategy} update"] = one_update(model, task, strategy)
        for strategy in STRATEGIES:
            seen[f"{task} {strategy} training"] = training(model, task, strategy)
    model = write_model(folder / str(dist.get_rank()), "sequence-classification")
    for strategy in PARITY_STRATEGIES:
        seen[f"lr scale {strategy}"] = scaled_update(model, strategy)
    (folder / f"seen.{dist.get_rank()}.json").write_text(json.dumps(seen))
    end_process_group()


def one_update(model: Path, task: str, strategy: str) -> dict[str, float]:
    """Two micro batches a rank of uneven weight, or one where samples are compared with each other."""
    accumulation = 1 if task == "contrastive" else 2
    decision = _sgd(model, task, strategy, accumulation=accumulation)
    data, engine = open_data(decision), make_engine(decision)
    before = _weights(engine)
    engine.set_learning_rate(1.0)
    world_size = dist.get_world_size()
    result = train_step(engine, data.micro_batches(0, rank=dist.get_rank(), world_size=world_size))
    after = _weights(engine)
    whole = [batch for index in range(accumulation) for batch in _pass(data, index, world_size)]
    plain = plain_update(decision, whole, before)
    engine.close()
    return {
        "loss": float(result.mean_loss),
        "plain_loss": plain.loss,
        "grad_norm": float(result.grad_norm),
        "plain_grad_norm": plain.grad_norm,
        "difference": max(float((after[name] - plain.weights[name]).abs().max()) for name in plain.weights),
        "largest_change": max(float((after[name] - before[name]).abs().max()) for name in before),
    }


def training(model: Path, task: str, strategy: str) -> dict[str, Any]:
    """Train on the built-in data and evaluate on an uneven number of samples."""
    decision = decision_for(model, task, strategy, world_size=dist.get_world_size(), micro_batch_size=8, accumulation=1)
    settings = {"image-classification": {"label_column": "colour"}, "sequence-classification": {"data": words(model)}}
    data = open_data(decision, eval_every=1, eval_batches=3, eval_fraction=0.05, **settings.get(task, {}))
    engine = make_engine(decision)
    losses = []
    for step in range(NUM_STEPS):
        engine.set_learning_rate(LEARNING_RATE)
        batches = data.micro_batches(step, rank=dist.get_rank(), world_size=dist.get_world_size())
        losses.append(float(train_step(engine, batches).mean_loss))
    uneven = replace(data, num_eval_samples=35)  # two passes of 16, and one of 3 on the first rank, none on the other
    result = evaluate(engine, uneven.evaluation_batches(rank=dist.get_rank(), world_size=dist.get_world_size()))
    plain = {}
    if task in ("sequence-classification", "image-classification"):
        whole = list(replace(data, num_eval_samples=35, micro_batch_size=35).evaluation_batches(rank=0, world_size=1))
        plain = plain_evaluation(decision, whole[0], _weights(engine))
    engine.close()
    found = {"eval_units": result.num_loss_units, "eval_loss": result.mean_loss, "metrics": dict(result.metrics)}
    return {"losses": losses, **found, "plain": plain}


def words(folder: Path) -> str:
    """Write texts that can be told apart by their words, with their classes by name."""
    file = folder / "words.jsonl"
    rows = [
        {"text": f"{word} number {index}", "label": kind}
        for index in range(100)
        for kind, members in WORDS.items()
        for word in members
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(file)


def scaled_update(model: Path, strategy: str) -> dict[str, float]:
    """Return how much the weights of three kinds move in one update, with a rate of their own and without."""
    decision = _sgd(model, "sequence-classification", strategy, accumulation=1)
    moved = {}
    for kind, scales in (("plain", ()), ("scaled", SCALES)):
        data, engine = open_data(decision), make_engine(decision, scales=scales)
        before = _weights(engine)
        engine.set_learning_rate(1.0)
        train_step(engine, data.micro_batches(0, rank=dist.get_rank(), world_size=dist.get_world_size()))
        after = _weights(engine)
        for name in ("bert.embeddings.word_embeddings.weight", "classifier.weight", "bert.pooler.dense.weight"):
            moved[f"{kind} {name}"] = float((after[name] - before[name]).norm())
        engine.close()
    return moved


def _sgd(model: Path, task: str, strategy: str, *, accumulation: int) -> Decision:
    return decision_for(
        model,
        task,
        strategy,
        world_size=dist.get_world_size(),
        micro_batch_size=4,
        accumulation=accumulation,
        optimizer=OptimizerName.SGD,
    )


def open_data(decision: Decision, **settings: Any) -> TrainingData:
    config = TrainConfig(plan=Path("plan.json"), out=Path("out"), steps=NUM_STEPS, **settings)
    model_config = build_config(resolve_model(decision.model))
    return open_training_data(config, decision, model_config=model_config, show_progress=False)


def make_engine(decision: Decision, *, scales: tuple[LrScale, ...] = ()) -> Engine:
    config = build_config(resolve_model(decision.model))
    return build_engine(
        build_model(config, InitialWeights(folder=None), decision=decision, seed=1),
        decision=decision,
        settings=OptimizerSettings(weight_decay=0.0, lr_scales=scales),
        device=torch.device("cpu"),
        meter=NoMeter(),
        task=open_data(decision).task,
    )


def _weights(engine: Engine) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().clone() for name, tensor in engine.gathered_parameters()}


def _pass(data: TrainingData, index: int, world_size: int) -> Iterator[Any]:
    """Yield the batches of one forward pass of all ranks, rank 0's first."""
    for rank in range(world_size):
        yield data.micro_batches(0, rank=rank, world_size=world_size)[index]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
