"""Hugging Face's Trainer, one optimizer step at a time: its callback runs what is to happen between two of them."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from typing import Any

import transformers

from benchmarks.step_time_loops import LEARNING_RATE, WEIGHT_DECAY, Samples, fresh_model
from strategies.decision import Decision


class _Between(transformers.TrainerCallback):  # type: ignore[misc]
    def __init__(self, action: Callable[[], None]) -> None:
        self._action = action

    def on_step_end(self, *arguments: Any, **named: Any) -> None:
        self._action()


def run_trainer(decision: Decision, *, steps: int, between: Callable[[], None] = lambda: None) -> None:
    """Train ``steps`` with the plan's settings, without logging, evaluation and saving; ``between`` runs after each.

    DDP gets what is fastest: no search for unused parameters, which the Trainer's default makes.
    """
    with tempfile.TemporaryDirectory() as folder:
        arguments = transformers.TrainingArguments(
            output_dir=folder,
            max_steps=steps,
            learning_rate=LEARNING_RATE,
            weight_decay=WEIGHT_DECAY,
            lr_scheduler_type="cosine",
            logging_strategy="no",
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            dataloader_pin_memory=False,
            **decision.training_arguments(),
        )
        trainer = transformers.Trainer(
            model=fresh_model(decision),  # type: ignore[arg-type]
            args=arguments,
            train_dataset=Samples(decision),
            callbacks=[_Between(between)],
        )
        trainer.train()
