"""What a bench varies, as flags give it: lists with commas, and every combination of their entries."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from itertools import product
from typing import TypeVar

from scaling.bench.result import Choice
from strategies.emit.commands import LauncherName
from strategies.emit.deepspeed import STAGES
from strategies.errors import PlanError
from strategies.job import MAX_SIZE
from strategies.plan import PYTORCH_STRATEGIES, ActivationCheckpointing, OffloadDevice, StrategyName

MAX_SHOWN = 60
"""Characters of what was given."""

E = TypeVar("E", bound=StrEnum)


@dataclass(frozen=True, slots=True, kw_only=True)
class Axes:
    """What is varied; every combination is a cell."""

    strategies: tuple[StrategyName, ...]
    activation_checkpointing: tuple[ActivationCheckpointing, ...]
    micro_batch_sizes: tuple[int, ...]
    seq_lens: tuple[int, ...]
    gradient_accumulation_steps: tuple[int, ...]
    offload_optimizer: tuple[OffloadDevice, ...]
    offload_param: tuple[OffloadDevice, ...]
    launchers: tuple[LauncherName, ...]

    def choices(self) -> Iterator[Choice]:
        """Yield the places of the matrix; what is cheapest to compare by eye, the strategy, varies fastest."""
        for launcher, seq_len, micro, steps, checkpointing, optimizer, param, strategy in product(
            self.launchers,
            self.seq_lens,
            self.micro_batch_sizes,
            self.gradient_accumulation_steps,
            self.activation_checkpointing,
            self.offload_optimizer,
            self.offload_param,
            self.strategies,
        ):
            yield Choice(
                strategy=strategy,
                activation_checkpointing=checkpointing,
                micro_batch_size=micro,
                seq_len=seq_len,
                gradient_accumulation_steps=steps,
                offload_optimizer=optimizer,
                offload_param=param,
                launcher=launcher,
            )


def words_of(kind: type[E], text: str, *, flag: str) -> tuple[E, ...]:
    """Return the choices that ``text`` names, with commas between.

    Raises:
        PlanError: one is unknown.
    """
    words = list(dict.fromkeys(word.strip() for word in text.split(",") if word.strip()))
    unknown = ", ".join(word for word in words if word not in list(kind))
    if unknown or not words:
        raise PlanError(f"{flag} {unknown!r} is unknown; give one or more of {', '.join(kind)}, with commas between")
    return tuple(kind(word) for word in words)


def numbers_of(text: str, *, flag: str) -> tuple[int, ...]:
    """Return the whole numbers from 1 to `MAX_SIZE` that ``text`` names, with commas between.

    Raises:
        PlanError: one is none.
    """
    words = list(dict.fromkeys(word.strip() for word in text.split(",") if word.strip()))
    if not words or not all(word.isascii() and word.isdigit() and 0 < int(word[:20]) <= MAX_SIZE for word in words):
        shown = text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}..."
        raise PlanError(
            f"{flag} {shown!r} must be whole numbers above zero, none above {MAX_SIZE}; give one or more, with commas "
            f"between"
        )
    return tuple(int(word) for word in words)


def strategies_here() -> tuple[StrategyName, ...]:
    """Return the strategies whose engine is installed."""
    has_deepspeed = importlib.util.find_spec("deepspeed") is not None
    return tuple(name for name in PYTORCH_STRATEGIES if has_deepspeed or name not in STAGES)
