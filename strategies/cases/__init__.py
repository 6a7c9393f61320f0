"""Batch estimates: one JSON object a line in, one a line out (the format is in docs/cases.md)."""

from strategies.cases.answer import answer, answer_line
from strategies.cases.case import Case, read_case

__all__ = ["Case", "answer", "answer_line", "read_case"]
