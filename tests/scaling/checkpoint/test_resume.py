"""A run that goes on from a checkpoint, under the same and under other strategies and numbers of ranks."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from benchmarks.parity_models import Demo
from benchmarks.resume_pieces import Piece, largest_difference, train_pieces
from scaling.checkpoint.manifest import read_manifest
from scaling.checkpoint.names import find_checkpoints
from strategies.job import Precision
from tests.scaling.decisions import TINY_LLAMA

pytestmark = [pytest.mark.distributed, pytest.mark.deepspeed, pytest.mark.slow]

WAYS = ("ddp", "zero1", "zero3", "zero2-cpu-optimizer", "zero3-cpu-both", "fsdp2", "fsdp2-cpu")
FOUR_RANKS = ("ddp", "fsdp2")
"""Sums of more than two numbers depend on their order."""
SIXTEEN_BITS = ("ddp", "zero2", "zero3", "fsdp2")
DROPPING_GPT2 = {
    "model_type": "gpt2",
    "architectures": ["GPT2LMHeadModel"],
    "vocab_size": 287,
    "n_positions": 64,
    "n_embd": 36,
    "n_layer": 2,
    "n_head": 4,
    "attn_pdrop": 0.1,
    "embd_pdrop": 0.1,
    "resid_pdrop": 0.1,
}
"""With dropout, and sizes that two and three ranks do not divide evenly."""
HALF, WHOLE = 2, 4
"""Optimizer steps."""


@dataclass
class Run:
    """Pieces of training to be launched together, and the folders in which their checkpoints appear."""

    folder: Path
    pieces: list[Piece] = field(default_factory=list)

    def add(
        self,
        name: str,
        way: str,
        demo: Demo,
        *,
        until: int,
        start: Path | None = None,
        precision: Precision = Precision.FP32,
    ) -> Path:
        piece = Piece(
            way=way,
            demo=demo,
            num_steps=WHOLE,
            start=str(start) if start else None,
            until=until,
            out=str(self.folder / name),
            precision=precision,
        )
        self.pieces.append(piece)
        return self.folder / name / f"step-{until:08d}"

    def launch(self, num_ranks: int) -> None:
        train_pieces(self.pieces, num_ranks=num_ranks)
        self.pieces.clear()


@dataclass(frozen=True)
class Resumed:
    """Pairs of checkpoints that must hold the same."""

    same_way: dict[str, tuple[Path, Path]] = field(default_factory=dict)
    """Uninterrupted and interrupted, on the same ranks."""
    other_way: dict[str, tuple[Path, Path]] = field(default_factory=dict)
    """As one way has saved it, and as another has saved it again at once."""
    other_ranks: dict[str, tuple[Path, Path]] = field(default_factory=dict)
    """Trained to the end by DDP on two ranks, and begun under ZeRO-3 on two and ended otherwise on others."""


@pytest.fixture(scope="module")
def resumed(tmp_path_factory: pytest.TempPathFactory) -> Resumed:
    folder = tmp_path_factory.mktemp("resume")
    run, found = Run(folder), Resumed()
    gpt2, llama = _model(folder / "gpt2", DROPPING_GPT2), _model(folder / "llama", TINY_LLAMA)
    for way in FOUR_RANKS:
        half = run.add(f"four-{way}-half", way, gpt2, until=HALF)
        whole = run.add(f"four-{way}-whole", way, gpt2, until=WHOLE)
        found.same_way[f"four-{way}"] = whole, run.add(f"four-{way}-resumed", way, gpt2, until=WHOLE, start=half)
    run.launch(4)
    by_precision: dict[Precision, tuple[str, ...]] = {Precision.FP32: WAYS, Precision.BF16: SIXTEEN_BITS}
    for precision, ways in by_precision.items():
        halves = {}
        for way in ways:
            name = f"{precision.value}-{way}"
            halves[way] = half = run.add(f"{name}-half", way, gpt2, until=HALF, precision=precision)
            whole = run.add(f"{name}-whole", way, gpt2, until=WHOLE, precision=precision)
            again = run.add(f"{name}-resumed", way, gpt2, until=WHOLE, start=half, precision=precision)
            found.same_way[name] = whole, again
        for writer, reader in pairwise([*ways, ways[0]]):
            name, half = f"{precision.value}-{writer}-{reader}", halves[writer]
            found.other_way[name] = half, run.add(name, reader, gpt2, until=HALF, start=half, precision=precision)
    whole = run.add("llama-whole", "ddp", llama, until=WHOLE)
    half = run.add("llama-half", "zero3", llama, until=HALF)
    run.launch(2)
    uneven = found.same_way["fp32-zero3"][0]
    for num_ranks, readers in ((1, ("zero1", "zero3", "ddp")), (3, ("fsdp2",))):
        for way in readers:
            name = f"2-{num_ranks}-{way}"
            found.other_way[name] = uneven, run.add(name, way, gpt2, until=WHOLE, start=uneven)
        found.other_ranks[name] = whole, run.add(f"{name}-whole", way, llama, until=WHOLE, start=half)
        run.launch(num_ranks)
    return found


def _model(folder: Path, config: dict[str, Any]) -> Demo:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    return Demo(name=folder.name, config=str(folder / "config.json"))


def test_an_interrupted_run_ends_with_the_bits_of_an_uninterrupted_one(resumed: Resumed) -> None:
    # With dropout, so random numbers go on too; accelerate #2333, transformers #5605 and others.
    assert len(resumed.same_way) == len(WAYS) + len(SIXTEEN_BITS) + len(FOUR_RANKS)
    for name, (uninterrupted, interrupted) in resumed.same_way.items():
        differences = largest_difference(uninterrupted, interrupted)
        assert differences.keys() == {"weight", "step", "exp_avg", "exp_avg_sq"}, name
        assert set(differences.values()) == {0.0}, (name, differences)


def test_training_changes_what_is_compared(resumed: Resumed) -> None:
    _, interrupted = resumed.same_way["fp32-ddp"]
    half, _ = resumed.other_way["fp32-ddp-zero1"]
    assert min(largest_difference(half, interrupted).values()) > 0


def test_what_one_strategy_saves_another_has_bit_for_bit(resumed: Resumed) -> None:
    for name, (saved, saved_again) in resumed.other_way.items():
        assert set(largest_difference(saved, saved_again).values()) == {0.0}, name
        assert read_manifest(saved).updates == read_manifest(saved_again).updates, name


def test_training_goes_on_alike_on_other_ranks(resumed: Resumed) -> None:
    for name, (whole, elsewhere) in resumed.other_ranks.items():
        differences = largest_difference(whole, elsewhere)
        assert differences["step"] == 0.0
        # Sums over other cuts of the batch: fp32 rounding, amplified by AdamW where a gradient is near zero.
        assert differences["weight"] < 1e-5, (name, differences)
        assert differences["exp_avg"] < 1e-7


def test_each_rank_writes_its_share(resumed: Resumed) -> None:
    for name, (whole, _) in resumed.same_way.items():
        sizes = [entry.num_bytes for entry in read_manifest(whole).files]
        assert len(sizes) == (4 if name.startswith("four") else 2)
        assert max(sizes) < 1.1 * min(sizes), name


def test_a_checkpoint_is_found_by_its_folder(resumed: Resumed) -> None:
    whole, _ = resumed.same_way["fp32-ddp"]
    assert find_checkpoints(whole.parent) == [whole]
