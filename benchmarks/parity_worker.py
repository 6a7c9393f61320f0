"""Runs in every rank: the same steps under every strategy. Rank 0 stores the trajectories.

python -m benchmarks.parity_worker SETTING.json OUT.pt (under torchrun for several ranks)
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.plain_loop import Trajectory, train_plainly
from scaling.batch import Batch, causal_batch
from scaling.data.order import SampleOrder
from scaling.data.packed import PackedDataset
from scaling.data.source import open_source
from scaling.data.token_store import build_token_store
from scaling.data.tokenizer import load_tokenizer
from scaling.engines.build import build_engine
from scaling.engines.optimizer import OptimizerSettings
from scaling.launch_env import end_process_group, join_process_group, read_launch_environment
from scaling.loop import train_step
from scaling.meter import NoMeter
from scaling.models import InitialWeights, build_config, build_model
from scaling.schedule import ScheduleName, learning_rate_at
from strategies.cluster import CPU_NAME, Cluster, Gpu
from strategies.decision import Decision
from strategies.job import Job, Precision
from strategies.load_model import load_model_spec, resolve_model
from strategies.plan import ActivationCheckpointing, StrategyName
from strategies.search import FixedParts
from strategies.select import decide
from strategies.serialize import read_json
from strategies.units import GIB

COMPARED_STRATEGIES = (StrategyName.DDP, StrategyName.ZERO1, StrategyName.ZERO2, StrategyName.ZERO3)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What is trained, equal for every strategy and number of ranks."""

    model: str
    seq_len: int
    global_batch_size: int
    micro_batch_size: int
    num_steps: int
    precision: Precision = Precision.FP32
    activation_checkpointing: ActivationCheckpointing = ActivationCheckpointing.NONE
    learning_rate: float = 3e-3
    warmup_steps: int = 2
    weight_decay: float = 0.1
    max_norm: float = 1.0
    """Low enough that clipping is active, so that a norm counted wrongly would show."""
    seed: int = 7


def main(setting_path: Path, out: Path) -> None:
    setting = read_json(Setting, setting_path)
    launch = read_launch_environment(os.environ)
    join_process_group(launch, device=torch.device("cpu"), timeout_s=300)
    samples = Samples(setting)
    found = {str(strategy): run(strategy, setting, samples) for strategy in COMPARED_STRATEGIES}
    if launch.is_main:
        torch.save({name: (one.losses, one.norms, one.parameters) for name, one in found.items()}, out)
    end_process_group()


def run(strategy: StrategyName, setting: Setting, samples: Samples) -> Trajectory:
    """Return the trajectory under one strategy, with the planner's own buckets."""
    return train(plan(strategy, setting, num_ranks=dist.get_world_size()), setting, samples)


def train(decision: Decision, setting: Setting, samples: Samples) -> Trajectory:
    """Return the trajectory of this rank under ``decision``."""
    config = build_config(resolve_model(setting.model))
    engine = build_engine(
        build_model(config, InitialWeights(folder=None), decision=decision, seed=setting.seed),
        decision=decision,
        settings=OptimizerSettings(weight_decay=setting.weight_decay),
        device=torch.device("cpu"),
        meter=NoMeter(),
    )
    losses, norms = [], []
    for step in range(setting.num_steps):
        engine.set_learning_rate(
            learning_rate_at(
                step,
                peak=setting.learning_rate,
                schedule=ScheduleName.COSINE,
                warmup_steps=setting.warmup_steps,
                num_steps=setting.num_steps,
            )
        )
        result = train_step(engine, samples.micro_batches(step, rank=engine.rank, world_size=engine.data_parallel_size))
        losses.append(float(result.mean_loss))
        norms.append(float(result.grad_norm))
    parameters = torch.cat([parameter.detach().float().flatten() for _, parameter in engine.gathered_parameters()])
    engine.close()
    return Trajectory(losses=losses, norms=norms, parameters=parameters)


def plan(strategy: StrategyName, setting: Setting, *, num_ranks: int) -> Decision:
    return decide(
        load_model_spec(setting.model),
        cluster=Cluster(gpu=Gpu(name=CPU_NAME, memory_bytes=16 * GIB), gpus=num_ranks, gpus_per_node=num_ranks),
        job=Job(
            seq_len=setting.seq_len,
            global_batch_size=setting.global_batch_size,
            precision=setting.precision,
            gradient_clipping=setting.max_norm,
        ),
        fixed=FixedParts(
            strategy=strategy,
            activation_checkpointing=setting.activation_checkpointing,
            micro_batch_size=setting.micro_batch_size,
        ),
        model=setting.model,
    )


def reference(setting: Setting, *, rule: Callable[..., torch.optim.Optimizer] = torch.optim.AdamW) -> Trajectory:
    """Return the trajectory of plain PyTorch on the same samples."""
    config: Any = build_config(resolve_model(setting.model))
    return train_plainly(
        config,
        Samples(setting).global_batch,
        num_steps=setting.num_steps,
        learning_rate=setting.learning_rate,
        warmup_steps=setting.warmup_steps,
        weight_decay=setting.weight_decay,
        max_norm=setting.max_norm,
        seed=setting.seed,
        rule=rule,
    )


class Samples:
    """Python's standard library in bytes, where the first tokens of each sample, more or fewer, have no label.

    So micro batches and ranks differ in their number of tokens, as they do with padding or masked prompts.
    """

    def __init__(self, setting: Setting) -> None:
        store = build_token_store(open_source("builtin:python"), load_tokenizer("bytes"), show_progress=False)
        self._setting = setting
        self._data = PackedDataset(store, seq_len=setting.seq_len, split="train", eval_fraction=0.0)
        self._order = SampleOrder(
            num_samples=len(self._data), global_batch_size=setting.global_batch_size, seed=setting.seed
        )

    def global_batch(self, step: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return ids and labels of the whole global batch."""
        return self._rows(self._order.global_batch(step))

    def micro_batches(self, step: int, *, rank: int, world_size: int) -> list[Batch]:
        """Return the micro batches of one rank."""
        all_ids = self._order.rank_micro_batches(
            step, rank=rank, world_size=world_size, micro_batch_size=self._setting.micro_batch_size
        )
        rows = [self._rows(ids) for ids in all_ids]
        return [causal_batch(tokens, labels=labels) for tokens, labels in rows]

    def _rows(self, ids: Any) -> tuple[torch.Tensor, torch.Tensor]:
        tokens = self._data.batch(ids)
        labels = tokens.clone()
        for row, sample in enumerate(ids.tolist()):
            labels[row, : sample * 7 % (3 * self._setting.seq_len // 4)] = -100
        return tokens, labels


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
