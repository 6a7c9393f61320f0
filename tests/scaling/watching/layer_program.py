"""Runs in every rank: one step of a small llama under every engine, with a look at the gradients of its layers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
import transformers

from scaling.batch import Batch, causal_batch
from scaling.engines.build import build_engine
from scaling.engines.optimizer import OptimizerSettings
from scaling.loop import train_step
from scaling.meter import NoMeter
from scaling.models import DTYPES
from scaling.watching.layer_stats import LayerStats
from scaling.watching.records import LayerRecord
from strategies.job import Precision
from strategies.plan import OffloadDevice
from tests.scaling.decisions import TINY_LLAMA, toy_decision

MAX_NORM = 0.05
"""Far below the norm, so that statistics after clipping would be seen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One engine and its setting."""

    strategy: str
    offload_optimizer: OffloadDevice = OffloadDevice.NONE
    precision: Precision = Precision.FP32


VARIANTS = {
    **{strategy: Variant(strategy=strategy) for strategy in ("ddp", "zero1", "zero2", "zero3", "fsdp2")},
    "zero2-offload": Variant(strategy="zero2", offload_optimizer=OffloadDevice.CPU),
    "zero3-offload": Variant(strategy="zero3", offload_optimizer=OffloadDevice.CPU),
    "ddp-fp16": Variant(strategy="ddp", precision=Precision.FP16),
    "zero2-fp16": Variant(strategy="zero2", precision=Precision.FP16),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What one rank saw of one step."""

    grad_norm: float
    record: LayerRecord
    before: LayerRecord | None
    """Of a step in which nothing was to be looked at."""


class Looking:
    """An observer of steps that looks at layers."""

    def __init__(self, stats: LayerStats) -> None:
        self._stats = stats
        self.step = 0

    def before_update(self) -> None:
        self._stats.look(self.step)

    def tell(self) -> Sequence[float]:
        return ()


def look_at_every_engine(device: torch.device) -> dict[str, Seen]:
    """Return by variant what this rank saw."""
    return {name: look(variant, device) for name, variant in VARIANTS.items()}


def look(variant: Variant, device: torch.device) -> Seen:
    decision = toy_decision(
        variant.strategy,
        world_size=dist.get_world_size(),
        accumulation=2,
        max_norm=MAX_NORM,
        precision=variant.precision,
    )
    decision = replace(decision, plan=replace(decision.plan, offload_optimizer=variant.offload_optimizer))
    model = small_model().to(DTYPES[variant.precision])
    settings = OptimizerSettings(weight_decay=0.0)
    engine = build_engine(model, decision=decision, settings=settings, device=device, meter=NoMeter())
    engine.set_learning_rate(0.0)
    stats = LayerStats(engine, every=2)
    looking = Looking(stats)
    looking.step = 1
    train_step(engine, batches(dist.get_rank()), observer=looking)
    before = stats.record()
    looking.step = 2
    numbers = train_step(engine, batches(dist.get_rank()), observer=looking).read()
    record = stats.record()
    assert record is not None
    engine.close()
    return Seen(grad_norm=numbers.grad_norm, record=record, before=before)


def small_model() -> Any:
    torch.manual_seed(0)
    sizes = {**TINY_LLAMA, "num_hidden_layers": 3}
    config = transformers.AutoConfig.for_model(sizes.pop("model_type"), **sizes)
    return transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)


def batches(rank: int) -> list[Batch]:
    """Return two micro batches, other ones on every rank."""
    random = torch.Generator().manual_seed(rank + 1)
    return [causal_batch(torch.randint(0, 288, (1, 8), generator=random)) for _ in range(2)]


def gradients_by_layer(world_size: int) -> dict[str, tuple[float, float]]:
    """Return (norm, largest element) of every layer by plain torch in one process, over all ranks' batches."""
    model = small_model()
    of_all = [batch for rank in range(world_size) for batch in batches(rank)]
    ids = torch.cat([batch.inputs["input_ids"] for batch in of_all])
    model(input_ids=ids, labels=ids).loss.backward()
    found: dict[str, tuple[float, float]] = {}
    layers = ["model.embed_tokens", *(f"model.layers.{number}" for number in range(3)), "model.norm", "lm_head"]
    for layer in layers:
        gradients = [p.grad.double() for name, p in model.named_parameters() if name.startswith(f"{layer}.")]
        norm = math.sqrt(sum(float(gradient.square().sum()) for gradient in gradients))
        found[layer] = (norm, max(float(gradient.abs().max()) for gradient in gradients))
    return found
