"""Classes of a classifier, as config.json gives them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from strategies.architectures.config import CheckedConfig, shown

LABEL_SIZES: Mapping[str, int | None] = {"num_labels": None}
LABEL_KEYS: Mapping[str, Any] = {"id2label": None}
"""What `num_labels` reads, for `Architecture.optional_sizes` and `Architecture.other`."""


def num_labels(config: CheckedConfig) -> int:
    """Return the number of classes, from ``id2label`` or ``num_labels``; 2, as transformers does, without both."""
    names, number = config.other["id2label"], config.optional_sizes["num_labels"]
    if names is None:
        return number or 2
    if not isinstance(names, dict) or not names:
        raise config.problem(f"id2label={shown(names)} must be an object with one entry a class")
    if number is not None and number != len(names):
        raise config.problem(
            f"num_labels={number} contradicts the {len(names)} entries of id2label; remove one of them"
        )
    return len(names)
