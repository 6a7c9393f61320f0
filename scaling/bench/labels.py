"""Short names for cells: what differs between them, and what is the same in all."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from scaling.bench.result import CellResult, Choice
from strategies.plan import ActivationCheckpointing, OffloadDevice

Axis = tuple[str, Callable[[Choice], str]]

AXES: tuple[Axis, ...] = (
    ("plan", lambda choice: choice.plan_name),
    ("strategy", lambda choice: choice.strategy.value),
    ("activation checkpointing", lambda choice: choice.activation_checkpointing.value),
    ("micro batch", lambda choice: str(choice.micro_batch_size)),
    ("sequence", lambda choice: str(choice.seq_len)),
    ("accumulation", lambda choice: str(choice.gradient_accumulation_steps)),
    ("optimizer on", lambda choice: choice.offload_optimizer.value),
    ("parameters on", lambda choice: choice.offload_param.value),
    ("launcher", lambda choice: choice.launcher.value),
)
_USUAL = {
    "plan": "",
    "activation checkpointing": ActivationCheckpointing.NONE.value,
    "optimizer on": OffloadDevice.NONE.value,
    "parameters on": OffloadDevice.NONE.value,
}
"""What goes without saying where it is the same everywhere."""


def varied(cells: Sequence[CellResult]) -> tuple[Axis, ...]:
    """Return the settings in which cells differ; the strategy always."""
    return tuple(
        (name, value)
        for name, value in AXES
        if name == "strategy" or len({value(each.cell.choice) for each in cells}) > 1
    )


def labels(cells: Sequence[CellResult]) -> list[str]:
    """Return a name for each cell that tells it from the others: ``zero2, micro batch 4``."""
    axes = varied(cells)
    return [", ".join(_words(name, value(each.cell.choice)) for name, value in axes) for each in cells]


def shared(cells: Sequence[CellResult]) -> str:
    """Return what is the same in all cells, as a phrase."""
    differing = {name for name, _ in varied(cells)}
    same = [
        _words(name, value(cells[0].cell.choice))
        for name, value in AXES
        if name not in differing and value(cells[0].cell.choice) != _USUAL.get(name)
    ]
    return ", ".join(same)


def _words(axis: str, value: str) -> str:
    return value if axis in ("plan", "strategy", "launcher") else f"{axis} {value}"
