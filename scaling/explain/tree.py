"""Nested dictionaries by dotted path. A key that has a dot itself is written with it: the longest match is taken."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

Tree = dict[str, Any]
MISSING = object()
"""What `get` returns where there is no such key; not None, which files may hold."""
AUTO = "auto"


def get(tree: Any, path: str, default: Any = MISSING) -> Any:
    """Return the value at ``path``, ``default`` where there is none."""
    if not isinstance(tree, dict):
        return default
    if path in tree:
        return tree[path]
    head, _, rest = path.partition(".")
    return get(tree[head], rest, default) if rest and head in tree else default


def has(tree: Any, path: str) -> bool:
    """Whether there is a value at ``path``."""
    return get(tree, path) is not MISSING


def put(tree: Tree, path: str, value: Any) -> None:
    """Give ``path`` a value; blocks on the way that are missing, or no blocks, are made."""
    head, _, rest = path.partition(".")
    if path in tree or not rest:
        tree[path] = value
        return
    if not isinstance(tree.get(head), dict):
        tree[head] = {}
    put(tree[head], rest, value)


def drop(tree: Any, path: str) -> None:
    """Take out the value at ``path``, if there is one."""
    if not isinstance(tree, dict):
        return
    head, _, rest = path.partition(".")
    if path in tree:
        del tree[path]
    elif rest and head in tree:
        drop(tree[head], rest)


def block(tree: Any, path: str) -> Tree:
    """Return the block at ``path``, an empty one where there is none."""
    found = get(tree, path)
    return found if isinstance(found, dict) else {}


def leaves(tree: Tree, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every value that is no block, with its dotted path; an empty block counts as a value."""
    for key, value in tree.items():
        path = f"{prefix}{key}"
        if isinstance(value, dict) and value:
            yield from leaves(value, f"{path}.")
        else:
            yield path, value


def without_nulls(tree: Tree) -> Tree:
    """Return a configuration without keys that hold nothing, as accelerate's ``nvme_path`` of an offload to the CPU."""
    return {
        name: without_nulls(value) if isinstance(value, dict) else value
        for name, value in tree.items()
        if value is not None
    }


def is_true(value: Any) -> bool:
    """Whether DeepSpeed's readers take a value for true (pydantic's words)."""
    return (
        value is True
        or (isinstance(value, str) and value.strip().lower() in ("true", "1", "yes", "on", "t", "y"))
        or (isinstance(value, int | float) and not isinstance(value, bool) and value == 1)
    )


def whole(value: Any) -> int | None:
    """Return a value as a whole number, None where it is none (what is true or false is none)."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, str) and value.strip().lstrip("+-").isdecimal() and len(value) < 20:
        return int(value)
    return None


def shown(value: Any, *, longest: int = 60) -> str:
    """Return a value as it would stand in JSON, cut where it is long."""
    try:
        text = json.dumps(value, default=str)
    except (ValueError, TypeError, RecursionError):
        text = repr(type(value))
    return text if len(text) <= longest else f"{text[:longest]}..."
