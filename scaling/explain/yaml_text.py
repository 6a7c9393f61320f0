"""Configurations as YAML that version 1.1 and 1.2 readers take alike."""

from __future__ import annotations

from typing import Any

from scaling.explain.tree import Tree


def yaml_text(tree: Tree) -> str:
    """Return ``tree`` as YAML in the order of its keys; words that YAML 1.1 takes for true or false are quoted."""
    import yaml

    return str(yaml.safe_dump(_plain(tree), sort_keys=False, allow_unicode=True, width=120))


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(each) for key, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list | tuple) else value
