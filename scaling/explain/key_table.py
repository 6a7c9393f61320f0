"""The keys that a package reads from its configuration, with type, default and bounds."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Any

BLOCK = "block"
OPEN = "dict"
"""A block whose keys are the user's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """One key that is read."""

    path: str
    """Dotted, under its main name."""
    kind: str
    """``bool``, ``int``, ``float``, ``str``, ``list``, ``list of text``, ``dict``, ``block`` or ``any``; alternatives
    with a bar. The choices of a list are those of what is in it."""
    default: Any = None
    nullable: bool = False
    choices: tuple[Any, ...] = ()
    at_least: float | None = None
    above: float | None = None
    at_most: float | None = None
    below: float | None = None
    names: tuple[str, ...] = ()
    """Other names under which the same block may hold it."""
    deprecated_for: str | None = None
    """The key that took its place; empty where there is none."""

    @property
    def name(self) -> str:
        return self.path.rpartition(".")[2]

    @property
    def block(self) -> str:
        return self.path.rpartition(".")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyTable:
    """All keys of one package."""

    package: str
    version: str
    keys: Mapping[str, Key]
    """By every dotted path that is accepted, other names included."""
    strict: frozenset[str]
    """Blocks in which an unknown key is an error; elsewhere it is passed over."""
    by_block: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Names in each block."""
    removed: Mapping[str, str] = field(default_factory=dict)
    """Keys that the package itself refuses as removed, with its words."""

    @property
    def label(self) -> str:
        return f"{self.package} {self.version}"

    def nearest(self, block: str, name: str) -> str | None:
        """Return the known name in ``block`` that is spelt most like ``name``, None where none is near."""
        return nearest(name, self.by_block.get(block, ()))

    def is_open(self, block: str) -> bool:
        """Whether the keys of ``block`` are the user's own."""
        return block in self.keys and OPEN in self.keys[block].kind.split("|")


def nearest(name: str, known: Iterable[str], *, cutoff: float = 0.78) -> str | None:
    """Return the known name that is spelt most like ``name``: case, dashes and blanks aside, else by letters."""
    names = list(known)
    folded = {_folded(each): each for each in names}
    if _folded(name) in folded:
        return folded[_folded(name)]
    found = difflib.get_close_matches(_folded(name)[:80], list(folded), n=1, cutoff=cutoff)
    return folded[found[0]] if found else None


def _folded(name: str) -> str:
    return name.strip().casefold().replace("-", "_").replace(" ", "_")


@cache
def shipped_table(package: str) -> KeyTable:
    """Return the table of ``deepspeed``, ``accelerate`` or ``transformers`` that comes with this program."""
    text = (resources.files("scaling.explain") / "tables" / f"{package}.json").read_text(encoding="utf-8")
    return table_of(json.loads(text))


def table_of(data: Mapping[str, Any]) -> KeyTable:
    """Return the table that `scaling.explain.generate` wrote as ``data``."""
    keys: dict[str, Key] = {}
    by_block: dict[str, list[str]] = {}
    for row in data["keys"]:
        lists = {name: tuple(row[name]) for name in ("choices", "names") if name in row}
        key = Key(**{**row, **lists})
        for name in (key.name, *key.names):
            keys[f"{key.block}.{name}" if key.block else name] = key
            by_block.setdefault(key.block, []).append(name)
    return KeyTable(
        package=data["package"],
        version=data["version"],
        keys=keys,
        strict=frozenset(data["strict"]),
        by_block={block: tuple(names) for block, names in by_block.items()},
        removed=data.get("removed", {}),
    )
