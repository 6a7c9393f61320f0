"""Sentences that go with an estimate."""

from __future__ import annotations

import json
from typing import Any

import pytest

from strategies.cases import answer_line

BASE: dict[str, Any] = {
    "id": 1,
    "model": "llama-3.2-1b",
    "cluster": {"gpu": "H100-80GB-SXM", "gpus": 8},
    "job": {"seq_len": 1024, "global_batch_size": 8},
    "plan": {"strategy": "zero3", "micro_batch_size": 1},
}


def warnings(**changes: Any) -> list[str]:
    """Return the warnings of the case with some parts replaced."""
    answer = json.loads(answer_line(json.dumps(BASE | changes), number=1))
    found: list[str] = answer["warnings"]
    return found


def test_an_ordinary_plan_has_none() -> None:
    assert warnings() == []


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"cluster": {"gpu": "V100-32GB-SXM2", "gpus": 8}}, "V100-32GB-SXM2 has no bf16 arithmetic"),
        ({"model": "bloom-560m"}, "no fused attention for model_type=bloom"),
        ({"model": "mixtral-8x7b"}, "zero3 keeps all experts gathered"),
        (
            {
                "job": {"seq_len": 1024, "global_batch_size": 8, "lora": {"rank": 8}},
                "plan": {"strategy": "ddp", "micro_batch_size": 1},
            },
            "DDP makes them fp32",
        ),
    ],
)
def test_surprises_are_said(changes: dict[str, Any], words: str) -> None:
    (warning,) = warnings(**changes)
    assert words in warning
