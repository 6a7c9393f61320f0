"""Small models that strategies could train differently, on samples of unequal length."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import torch
from torch import nn

from scaling.batch import Batch, causal_batch
from scaling.data.order import SampleOrder
from scaling.data.packed import PackedDataset
from scaling.data.source import open_source
from scaling.data.token_store import build_token_store
from scaling.data.tokenizer import load_tokenizer
from scaling.losses import IGNORED_LABEL
from scaling.models import InitialWeights, build_config, build_model
from scaling.train_config import TrainConfig
from strategies.cluster import CPU_NAME, Cluster, Gpu
from strategies.decision import Decision
from strategies.job import Job
from strategies.load_model import load_model_spec, resolve_model
from strategies.search import FixedParts
from strategies.select import decide
from strategies.units import GIB

FOLDER = Path(__file__).parent / "models"
SEED = 7


class Change(StrEnum):
    """What is done to a library's model before it is trained."""

    NONE = "none"
    LAYER_TWICE = "layer twice"
    """The first block is the third one too: its weights are met twice in one forward."""
    UNUSED = "unused parameter"
    """A layer that no forward runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Demo:
    """A model by its config.json, changed or not; a `scaling.parity.ranks.Problem`."""

    name: str
    config: str
    """A preset, or the path of a config.json."""
    change: Change = Change.NONE
    seed: int = SEED

    def model(self, decision: Decision) -> nn.Module:
        config = build_config(resolve_model(self.config))
        model: Any = build_model(config, InitialWeights(folder=None), decision=decision, seed=self.seed)
        match self.change:
            case Change.LAYER_TWICE:
                model.model.layers[2] = model.model.layers[0]
            case Change.UNUSED:
                model.model.unused = nn.Linear(8, 8)
        changed: nn.Module = model
        return changed

    def data(self, decision: Decision) -> RaggedSamples:
        return RaggedSamples(decision, seed=self.seed)

    def task(self, decision: Decision) -> None:
        """Causal language modelling."""


MODELS = (
    Demo(name="llama", config=str(FOLDER / "tiny-llama.json")),
    Demo(name="gpt2, tied", config=str(FOLDER / "tiny-gpt2-tied.json")),
    Demo(name="llama, a layer used twice", config=str(FOLDER / "tiny-llama-3.json"), change=Change.LAYER_TWICE),
    Demo(name="llama, an unused parameter", config=str(FOLDER / "tiny-llama.json"), change=Change.UNUSED),
)


class RaggedSamples:
    """Python's standard library in bytes, in samples of a quarter to the whole length, padded to a batch's longest.

    The first tokens of every second sample have no label, as masked prompts have none. So micro batches and ranks
    differ in their numbers of tokens and in shape.
    """

    def __init__(self, decision: Decision, *, seed: int) -> None:
        store = build_token_store(open_source("builtin:python"), load_tokenizer("bytes"), show_progress=False)
        self._data = PackedDataset(store, seq_len=decision.job.seq_len, split="train", eval_fraction=0.0)
        self._order = SampleOrder(
            num_samples=len(self._data), global_batch_size=decision.job.global_batch_size, seed=seed
        )
        self._micro_batch_size = decision.plan.micro_batch_size

    def micro_batches(self, step: int, *, rank: int, world_size: int) -> Sequence[Batch]:
        """Return the micro batches of one rank in optimizer step ``step``."""
        all_ids = self._order.rank_micro_batches(
            step, rank=rank, world_size=world_size, micro_batch_size=self._micro_batch_size
        )
        return [self._batch(ids) for ids in all_ids]

    def _batch(self, ids: Any) -> Batch:
        tokens = self._data.batch(ids)
        width = tokens.shape[1]
        lengths = torch.tensor([width // 4 + sample * 7 % (width - width // 4 + 1) for sample in ids.tolist()])
        tokens = tokens[:, : int(lengths.max())]
        positions = torch.arange(tokens.shape[1])
        is_real = positions < lengths[:, None]
        prompts = torch.tensor([sample % 2 * (sample * 5 % (width // 8)) for sample in ids.tolist()])
        labels = tokens.masked_fill(~is_real | (positions < prompts[:, None]), IGNORED_LABEL)
        return causal_batch(tokens.masked_fill(~is_real, 0), labels=labels, attention_mask=is_real.long())


def planner(demo: Demo, job: Job, *, num_ranks: int) -> Any:
    """Return what plans ``job`` for the model with some parts given, on CPU ranks."""
    spec = load_model_spec(demo.config)
    cluster = Cluster(gpu=Gpu(name=CPU_NAME, memory_bytes=16 * GIB), gpus=num_ranks, gpus_per_node=num_ranks)

    def plan(fixed: FixedParts) -> Decision:
        return decide(spec, cluster=cluster, job=job, fixed=fixed, model=demo.config)

    return plan


def training(*, steps: int, learning_rate: float) -> TrainConfig:
    """Return the settings of a short run with warm-up and a falling rate, so that neither is constant."""
    return TrainConfig(
        plan=Path("-"), out=Path("-"), steps=steps, learning_rate=learning_rate, warmup_steps=2, weight_decay=0.1
    )
