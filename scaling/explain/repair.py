"""Apply repairs to a configuration."""

from __future__ import annotations

from collections.abc import Iterable
from copy import deepcopy

from scaling.explain.findings import Action, Finding, Repair, Severity
from scaling.explain.tree import MISSING, Tree, drop, get, put


def repaired(tree: Tree, repairs: Iterable[Repair]) -> Tree:
    """Return a copy of ``tree`` with the repairs done. A new name that is taken already keeps its value."""
    found = deepcopy(tree)
    for each in repairs:
        if each.action is Action.SET:
            put(found, each.key, deepcopy(each.value))
        elif each.action is Action.REMOVE:
            drop(found, each.key)
        else:
            _rename(found, each.key, each.value)
    return found


def _rename(tree: Tree, key: str, new: str) -> None:
    value = get(tree, key)
    if value is MISSING:
        return
    if get(tree, new) is not MISSING:
        drop(tree, key)
    elif key.rpartition(".")[0] == new.rpartition(".")[0]:  # in its place
        parent = get(tree, key.rpartition(".")[0]) if "." in key and key not in tree else tree
        old_name, new_name = key, new
        if parent is not tree:
            old_name, new_name = key.rpartition(".")[2], new.rpartition(".")[2]
        items = [(new_name if name == old_name else name, each) for name, each in parent.items()]
        parent.clear()
        parent.update(items)
    else:
        drop(tree, key)
        put(tree, new, value)


def as_meant(tree: Tree, findings: Iterable[Finding]) -> Tree:
    """Return the tree with misspelt keys and wrong types corrected: the rules look at it, so that a slip is told once.

    A key that would only be taken out stays: what is there instead is not known.
    """
    return repaired(
        tree,
        (
            repair
            for each in findings
            for repair in each.repairs
            if each.severity is not Severity.ERROR or repair.action is not Action.REMOVE
        ),
    )


def as_read(tree: Tree, findings: Iterable[Finding]) -> Tree:
    """Return the tree as the reader takes it: old forms as the new ones, values converted."""
    return repaired(
        tree, (repair for each in findings if each.severity is not Severity.ERROR for repair in each.repairs)
    )
