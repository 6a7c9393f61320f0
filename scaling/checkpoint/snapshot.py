"""What one rank writes of a checkpoint: its share of the training state at one moment, live or copied to the host."""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from scaling.checkpoint.manifest import FORMAT, Manifest, TensorEntry, TrainingState
from scaling.checkpoint.meeting import Meeting
from scaling.checkpoint.names import RANDOM, key_of
from scaling.checkpoint.random_states import random_states
from scaling.checkpoint.tensor_file import PIECE_BYTES, NamedTensor
from scaling.engines.base import Engine
from scaling.engines.state import Holder, StateSlice
from scaling.versions import versions
from strategies.detect import host_memory

SPARE = 1.25
"""Of the host memory that copies are asked for: what else the node needs while they exist."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """What a checkpoint says about the run it is of."""

    strategy: str
    seed: int
    """Of the run; ranks that start their random numbers anew make theirs of it."""
    identity: Mapping[str, str]
    """What must be the same for the run that goes on: data, order, optimizer."""
    documents: Mapping[str, str] = field(default_factory=dict)
    """File name to text: the plan and the configuration, kept beside the tensors to be read by people."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """One rank's share, and what is said of the whole."""

    rank: int
    tensors: Sequence[NamedTensor]
    manifest: Manifest
    """Without its files."""

    @property
    def num_bytes(self) -> int:
        return sum(each.num_bytes for each in self.tensors)

    @property
    def copied_bytes(self) -> int:
        """What writing it copies to the host at a time: a piece of a tensor that is on another device."""
        elsewhere = (each.num_bytes for each in self.tensors if each.tensor.device.type != "cpu")
        return min(PIECE_BYTES, max(elsewhere, default=0))

    def copied(self) -> Snapshot:
        """Return the same numbers in host memory, which training does not change."""
        copies = [NamedTensor(key=each.key, tensor=each.tensor.to("cpu", copy=True)) for each in self.tensors]
        return replace(self, tensors=copies)


def take_snapshot(engine: Engine, state: TrainingState, facts: RunFacts) -> Snapshot:
    """Return this rank's share as live tensors: what is written of them is what they hold then."""
    slices = list(engine.state_slices())
    manifest = Manifest(
        format=FORMAT,
        state=state,
        updates=engine.update_state,
        identity=dict(facts.identity),
        strategy=facts.strategy,
        world_size=engine.data_parallel_size,
        tensors=tuple(map(_entry, slices)),
        files=(),
        versions=versions(),
    )
    return Snapshot(rank=engine.rank, tensors=[*_own_share(slices, engine), *_own_random(engine)], manifest=manifest)


def has_room_for_copies(snapshot: Snapshot, meeting: Meeting) -> bool:
    """Return, the same on all ranks, whether every node's memory has room for what its ranks would copy."""
    asked: Counter[str] = Counter()
    available: dict[str, int] = {}
    here = socket.gethostname()
    for host, num_bytes, free in meeting.gather(lambda: (here, snapshot.num_bytes, host_memory().free_bytes)):
        asked[host] += num_bytes
        available[host] = min(free, available.get(host, free))
    return all(num_bytes * SPARE <= available[host] for host, num_bytes in asked.items())


def _entry(each: StateSlice) -> TensorEntry:
    dtype = str(each.tensor.dtype).removeprefix("torch.")
    return TensorEntry(kind=each.kind, name=each.name, shape=each.shape, dtype=dtype)


def _own_share(slices: Sequence[StateSlice], engine: Engine) -> Iterator[NamedTensor]:
    """Yield what this rank writes; what all ranks hold they write in equal parts."""
    for each in slices:
        if each.holder is Holder.MAIN_RANK and engine.rank != 0:
            continue
        first, last = 0, each.tensor.numel()
        if each.holder is Holder.ALL_RANKS:
            first, last = (last * rank // engine.data_parallel_size for rank in (engine.rank, engine.rank + 1))
        if first < last:
            key = key_of(each.kind, each.name, each.start + first)
            yield NamedTensor(key=key, tensor=each.tensor[first:last])


def _own_random(engine: Engine) -> Iterator[NamedTensor]:
    for name, tensor in random_states(engine.device).items():
        yield NamedTensor(key=key_of(RANDOM, f"{name}.rank{engine.rank}", 0), tensor=tensor)
