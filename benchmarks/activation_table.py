"""The table of `benchmarks.activation_check`: the largest error by family and by what is varied."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol


class Checked(Protocol):
    """What a row of the check tells."""

    @property
    def family(self) -> str: ...
    @property
    def device(self) -> str: ...
    @property
    def number_format(self) -> str: ...
    @property
    def attention(self) -> str: ...
    @property
    def every(self) -> int: ...
    @property
    def loss(self) -> str: ...
    @property
    def batch(self) -> int: ...
    @property
    def worst(self) -> float: ...


def _is_plain(row: Checked) -> bool:
    return row.device == "cuda" and row.attention == "flash" and row.every == 1 and row.loss == "standard"


COLUMNS: dict[str, Callable[[Checked], bool]] = {
    "16-bit": lambda row: _is_plain(row) and row.number_format == "16bit",
    "autocast": lambda row: _is_plain(row) and row.number_format == "autocast",
    "fp32": lambda row: _is_plain(row) and row.number_format == "fp32",
    "eager": lambda row: row.attention == "eager",
    "window": lambda row: row.attention == "windowed",
    "every 2nd": lambda row: row.every == 2,
    "chunked": lambda row: row.loss == "chunked",
    "fused loss": lambda row: row.loss == "fused",
    "CPU": lambda row: row.device == "cpu",
}


def table(rows: Sequence[Checked]) -> str:
    """Return Markdown with the largest error of every family, in %, several samples and one sample apart."""
    lines = ["# Forms of activations against traces they were not fitted on", "", _SUMMARY.format(**_counts(rows)), ""]
    for title, chosen in (
        ("Several samples", [row for row in rows if row.batch > 1]),
        ("One sample", [row for row in rows if row.batch == 1]),
    ):
        lines += [f"## {title}", "", "| family | " + " | ".join(COLUMNS) + " |", "|---" * (len(COLUMNS) + 1) + "|"]
        for family in dict.fromkeys(row.family for row in rows):
            own = [row for row in chosen if row.family == family]
            cells = (_worst(row for row in own if belongs(row)) for belongs in COLUMNS.values())
            lines.append(f"| {family} | " + " | ".join(cells) + " |")
        lines.append("")
    return "\n".join(lines)


_SUMMARY = """\
Largest |predicted / traced - 1| in % of the highest moments of forward and of backward, activations and logits alone
(model states, which are larger, left out). {number} traces of five blocks, with the MLP as wide as in published models;
{exact} of them are within 0.01 %, {close} within 0.5 %. A dash: the library's model has no such mode, or no form was
made. With one sample, views need fewer copies than the forms, which are fitted with several, count."""


def _counts(rows: Sequence[Checked]) -> dict[str, int]:
    return {
        "number": len(rows),
        "exact": sum(row.worst <= 1e-4 for row in rows),
        "close": sum(row.worst <= 5e-3 for row in rows),
    }


def _worst(rows: Iterable[Checked]) -> str:
    errors = [row.worst for row in rows]
    return f"{100 * max(errors):.2f}" if errors else "-"
