"""Going through a pass once more without repeating what was already said to the other ranks in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, final

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

from scaling.collectives import completed

Counts = Mapping[str, int]
"""Collectives by the name of their group."""


def collectives_begun() -> Counts:
    """Return how many collectives this process has begun in each of its groups, by the groups' own count."""
    groups: Any = dist.distributed_c10d._world.pg_map  # torch 2.13 has no public list of them
    return {group.group_name: group._get_sequence_number_for_group() for group in groups}


def collectives_since(before: Counts) -> Counts:
    """Return how many collectives have been begun since `collectives_begun` returned ``before``."""
    return {name: count - before.get(name, 0) for name, count in collectives_begun().items()}


@final
class SilentAtFirst(TorchDispatchMode):  # type: ignore[no-untyped-call]  # used as a context
    """Context in which the first collectives of each group are left out, because this rank has begun them before.

    A pass that failed half-way has taken part in some of its collectives and not in the others, for which the other
    ranks wait. The same pass in this context takes part in exactly those. What it computes is of no use.
    """

    def __init__(self, begun: Counts) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._left = dict(begun)

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        group = _group_of(args) if func.namespace == "c10d" else None
        if group is None or not self._left.get(group):
            return func(*args, **(kwargs or {}))
        self._left[group] -= 1
        handle = completed(args[0])
        return (args[0], handle) if len(func._schema.returns) > 1 else handle


def _group_of(args: tuple[Any, ...]) -> str | None:
    for each in args:
        if isinstance(each, torch.ScriptObject) and each._type().name() == "ProcessGroup":  # type: ignore[attr-defined]
            return str(dist.ProcessGroup.unbox(each).group_name)
    return None
