"""A process that ends at any moment of a save: the last whole checkpoint is found, nothing else is taken for one."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from scaling.checkpoint.names import PARTIAL
from tests.scaling.checkpoint.alone import checkpoints, numbers, same, start_engine, state, train

pytestmark = [pytest.mark.distributed, pytest.mark.usefixtures("_one_rank")]


def ending_at(call: int, *, first: bool) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return what makes functions end the process at their ``call``-th call in all, before or after they act."""
    calls = iter(range(1, 1000))

    def wrap(function: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **kwargs: Any) -> Any:
            is_last = next(calls) == call
            if is_last and first:
                os._exit(9)
            result = function(*args, **kwargs)
            if is_last:
                os._exit(9)
            return result

        return counted

    return wrap


def save_and_end(save: Callable[[], Any], *, call: int, first: bool) -> bool:
    """Run ``save`` in a copy of this process that ends at the call; return whether it ended there."""
    if child := os.fork():
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    try:
        wrap = ending_at(call, first=first)
        os.fsync, os.rename, Path.rename = wrap(os.fsync), wrap(os.rename), wrap(Path.rename)  # type: ignore[method-assign]
        save()
    finally:
        os._exit(0)


def moments() -> Iterator[tuple[int, bool]]:
    """Before and after every file is on the disk and every name is given. A save has fewer than 20 of them."""
    return ((call, first) for call in range(1, 20) for first in (True, False))


def test_whenever_a_save_ends_a_whole_checkpoint_is_gone_on_from(tmp_path: Path) -> None:
    # transformers #35782: the newest folder won, however much of it was written.
    engine = start_engine()
    train(engine, 1)
    checkpoints(tmp_path).save(engine, state(1))
    before = numbers(engine)
    train(engine, 1)
    after = numbers(engine)
    found = []
    for call, first in moments():
        saved = checkpoints(tmp_path, keep_last=0)
        if not save_and_end(lambda saved=saved: saved.save(engine, state(2)), call=call, first=first):  # type: ignore[misc]
            break
        restored = start_engine()
        loaded = checkpoints(tmp_path).load_latest(restored)
        assert loaded is not None
        assert same(numbers(restored), before if loaded.step == 1 else after)
        found.append(loaded.step)
        assert list(tmp_path.glob(f"*{PARTIAL}")) == []
    assert found[0] == 1
    assert found[-1] == 2
    assert len(found) > 8


def test_whenever_a_save_of_the_same_step_ends_one_of_them_is_whole(tmp_path: Path) -> None:
    engine = start_engine()
    train(engine, 1)
    checkpoints(tmp_path).save(engine, state(1))
    kept = [numbers(engine)]
    train(engine, 1)
    kept.append(numbers(engine))
    for call, first in moments():
        saved = checkpoints(tmp_path)
        if not save_and_end(lambda saved=saved: saved.save(engine, state(1)), call=call, first=first):  # type: ignore[misc]
            break
        restored = start_engine()
        assert checkpoints(tmp_path).load_latest(restored) == state(1)
        assert any(same(numbers(restored), each) for each in kept)


@pytest.mark.parametrize("call", [1, 2])
def test_whenever_a_removal_ends_what_is_left_of_it_does_not_count(tmp_path: Path, call: int) -> None:
    engine = start_engine()
    saved = checkpoints(tmp_path, keep_last=0)
    for step in (1, 2, 3):
        saved.save(engine, state(step))

    def prune() -> None:
        from scaling.checkpoint.retention import prune

        prune(tmp_path, keep_last=1, keep_best=0)

    assert save_and_end(prune, call=call, first=False)
    assert checkpoints(tmp_path).load_latest(engine) == state(3)
    assert list(tmp_path.glob(f".*{PARTIAL}")) == []
