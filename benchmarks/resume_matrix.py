"""Does every way of training go on from the checkpoint of every other, on any number of ranks?

Method: one small Llama, fp32, 3 optimizer steps and a checkpoint under each of six ways on 1, 2 and 4 ranks; then each
of the 18 goes on from each of the 18 checkpoints for 5 further steps, and what it ends with is compared with an
uninterrupted run of its own: the largest difference in weights and in AdamW's moments. On the diagonal (the same way,
the same ranks) it should be 0; elsewhere it is the order of sums of the first 3 steps. Run once, from a clone that
nobody edits: ranks import the program when they start, and one whose sums are rounded otherwise is another one.

Usage: ``python -m benchmarks.resume_matrix``; it writes ``benchmarks/results/resume_matrix.json`` and ``.md``.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.environment import environment
from benchmarks.parity_models import MODELS
from benchmarks.resume_pieces import Piece, largest_difference, train_pieces

RESULTS = Path(__file__).parent / "results"
WAYS = ("ddp", "zero1", "zero2", "zero3", "zero2-cpu-optimizer", "fsdp2")
RANKS = (1, 2, 4)
BEFORE, AFTER = 3, 5
"""Optimizer steps."""
Cell = tuple[str, int]
"""A way and a number of ranks."""


def cells() -> Iterator[Cell]:
    """Yield every way on every number of ranks."""
    return ((way, num_ranks) for num_ranks in RANKS for way in WAYS)


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for num_ranks in RANKS:
            train_pieces([piece for way in WAYS for piece in alone(folder, (way, num_ranks))], num_ranks=num_ranks)
        for num_ranks in RANKS:
            readers = [(way, num_ranks) for way in WAYS]
            pieces = [pair(folder, writer, reader) for reader in readers for writer in cells()]
            train_pieces(pieces, num_ranks=num_ranks)
        found: list[dict[str, object]] = [
            {
                "saved": label(writer),
                "resumed": label(reader),
                "difference": largest_difference(
                    checkpoint(folder, f"{label(writer)}-to-{label(reader)}"),
                    checkpoint(folder, f"{label(reader)}-whole"),
                ),
            }
            for writer in cells()
            for reader in cells()
        ]
    (RESULTS / "resume_matrix.json").write_text(
        json.dumps({"environment": environment(), "pairs": found}, indent=1) + "\n"
    )
    (RESULTS / "resume_matrix.md").write_text(table(found))


def alone(folder: Path, cell: Cell) -> list[Piece]:
    """Return the uninterrupted run of a cell, and its first steps."""
    return [
        piece(folder, f"{label(cell)}-whole", cell[0], start=None, until=BEFORE + AFTER),
        piece(folder, f"{label(cell)}-half", cell[0], start=None, until=BEFORE),
    ]


def pair(folder: Path, writer: Cell, reader: Cell) -> Piece:
    """Return what the reader does with the writer's checkpoint."""
    start = checkpoint(folder, f"{label(writer)}-half", BEFORE)
    return piece(folder, f"{label(writer)}-to-{label(reader)}", reader[0], start=start, until=BEFORE + AFTER)


def piece(folder: Path, name: str, way: str, *, start: Path | None, until: int) -> Piece:
    return Piece(
        way=way,
        demo=MODELS[0],
        num_steps=BEFORE + AFTER,
        start=None if start is None else str(start),
        until=until,
        out=str(folder / name),
    )


def checkpoint(folder: Path, name: str, step: int = BEFORE + AFTER) -> Path:
    return folder / name / f"step-{step:08d}"


def label(cell: Cell) -> str:
    return f"{cell[0]}-{cell[1]}"


def table(found: list[dict[str, object]]) -> str:
    """Return the largest difference of a weight for every pair, and a sentence for the rest, as Markdown."""
    by_pair = {(str(each["saved"]), str(each["resumed"])): each["difference"] for each in found}
    labels = [label(cell) for cell in cells()]
    lines = [["saved by, to the right: resumed by", *labels], ["---"] * (len(labels) + 1)]
    for saved in labels:
        lines.append([saved, *(f"{_of(by_pair[saved, resumed], 'weight'):.1e}" for resumed in labels)])
    text = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    diagonal = max(max(_all(by_pair[each, each])) for each in labels)
    others = {kind: max(_of(each, kind) for each in by_pair.values()) for kind in ("weight", "exp_avg", "exp_avg_sq")}
    worst = ", ".join(f"{kind} {number:.1e}" for kind, number in others.items())
    return (
        "# Going on under another strategy and another number of ranks\n\n"
        f"Method: `benchmarks/resume_matrix.py`. Largest difference of a weight, {AFTER} steps after the checkpoint, "
        "from an uninterrupted run\nof the way that resumes; names end with the number of ranks.\n\n"
        f"{text}\n\n"
        f"- The same way on the same ranks, the largest in weights and every state of the optimizer: {diagonal:.1e}.\n"
        f"  Equal bits: {', '.join(each for each in labels if max(_all(by_pair[each, each])) == 0.0)}.\n"
        f"- All pairs, the largest: {worst}.\n"
    )


def _of(difference: object, kind: str) -> float:
    assert isinstance(difference, dict)
    return float(difference[kind])


def _all(difference: object) -> list[float]:
    assert isinstance(difference, dict)
    return [float(each) for each in difference.values()]


if __name__ == "__main__":
    main()
