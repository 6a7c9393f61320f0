"""Take three steps on one CPU rank with a configuration file, as the program of a user would, and print the losses.

``python -m tests.scaling.explain.three_steps KIND FILE``; KIND is deepspeed, accelerate or training-args.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from scaling.engines.deepspeed import import_deepspeed
from scaling.launch_env import end_process_group


class Line(nn.Module):
    """A model whose output is its loss, as Hugging Face's are."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 1)

    def forward(self, inputs: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": (self.inner(inputs) - labels).float().square().mean()}


def samples() -> list[dict[str, torch.Tensor]]:
    torch.manual_seed(0)
    return [{"inputs": torch.randn(8), "labels": torch.randn(1)} for _ in range(12)]


def by_deepspeed(path: str) -> Iterator[float]:
    deepspeed = import_deepspeed(torch.device("cpu"))
    engine, *_ = deepspeed.initialize(model=Line(), model_parameters=None, config=path, optimizer=_optimizer)
    for sample in samples()[:3]:
        dtype = next(engine.module.parameters()).dtype
        loss = engine(**{name: value.to(dtype)[None] for name, value in sample.items()})["loss"]
        engine.backward(loss)
        engine.step()
        yield float(loss.detach())


def _optimizer(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=0.1)


def by_accelerate(path: str) -> Iterator[float]:
    import_deepspeed(torch.device("cpu"))
    from accelerate import Accelerator
    from accelerate.utils import InitProcessGroupKwargs

    accelerator = Accelerator(kwargs_handlers=[InitProcessGroupKwargs(backend="gloo")])
    model = Line()
    loader = torch.utils.data.DataLoader(samples(), batch_size=2)
    model, optimizer, loader = accelerator.prepare(model, _optimizer(model.parameters()), loader)
    for _, batch in zip(range(3), loader, strict=False):
        dtype = next(model.parameters()).dtype
        loss = model(**{name: value.to(dtype) for name, value in batch.items()})["loss"]
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        yield float(loss.detach())


def by_trainer(path: str) -> Iterator[float]:
    from transformers import Trainer, TrainingArguments

    arguments = TrainingArguments(**json.loads(Path(path).read_text()))
    trainer = Trainer(model=Line(), args=arguments, train_dataset=samples())
    trainer.train()
    yield from (entry["loss"] for entry in trainer.state.log_history if "loss" in entry)


PROGRAMS = {"deepspeed": by_deepspeed, "accelerate": by_accelerate, "training-args": by_trainer}


def main() -> None:
    print("losses", json.dumps(list(PROGRAMS[sys.argv[1]](sys.argv[2]))))
    if dist.is_initialized():
        end_process_group()


if __name__ == "__main__":
    main()
