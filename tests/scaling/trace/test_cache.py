"""The cache on disk: same key, same log; whatever is damaged or of other code is made again."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from benchmarks.trace_families import family_batch, family_config
from scaling.trace import (
    Recompute,
    SingleDevice,
    TraceError,
    TraceLog,
    TraceOptions,
    cache_key,
    cached,
    fused_adamw,
    trace_config,
)
from scaling.trace import cache as module
from tests.scaling.trace.builders import BACKWARD, FORWARD, freed, log_of, made, resized

LOG = log_of(
    [(FORWARD, [made(0, 1 << 40), made(1, 5), resized(1, 3)]), (BACKWARD, [freed(0, 1 << 40)])], streams={1: 2}
)


def _counting(log: TraceLog = LOG) -> tuple[Callable[[], TraceLog], list[int]]:
    calls: list[int] = []

    def trace() -> TraceLog:
        calls.append(1)
        return log

    return trace, calls


def test_log_is_made_once_and_read_back_equal(tmp_path: Path) -> None:
    trace, calls = _counting()
    first, second = cached("key", trace, folder=tmp_path), cached("key", trace, folder=tmp_path)
    assert len(calls) == 1
    assert first.equals(second)
    assert first.ops == second.ops


@pytest.mark.parametrize("damage", ["empty", "cut", "changed", "other"])
def test_damaged_file_is_made_again(damage: str, tmp_path: Path) -> None:
    trace, calls = _counting()
    cached("key", trace, folder=tmp_path)
    file = tmp_path / "key.npz"
    content = file.read_bytes()
    file.write_bytes(
        {
            "empty": b"",
            "cut": content[: len(content) // 2],
            "changed": content[:-40] + bytes([content[-40] ^ 1]) + content[-39:],
            "other": b"not a log",
        }[damage]
    )
    assert cached("key", trace, folder=tmp_path).equals(LOG)
    assert len(calls) == 2
    assert file.read_bytes()[:32] == content[:32], "a good file is in its place again"


def test_nothing_but_the_log_is_left_behind(tmp_path: Path) -> None:
    cached("key", _counting()[0], folder=tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["key.npz"]


def test_folder_that_cannot_be_written_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    with caplog.at_level(logging.WARNING):
        assert cached("key", _counting()[0], folder=blocked / "traces").equals(LOG)
    assert "traces are not kept" in caplog.text


PARTS = {
    "config": family_config("llama", num_layers=2),
    "batch": family_batch("llama"),
    "options": TraceOptions(),
    "engine": SingleDevice(),
}


def test_key_is_the_same_for_the_same_parts() -> None:
    again = {**PARTS, "config": family_config("llama", num_layers=2), "batch": family_batch("llama")}
    assert cache_key(**PARTS) == cache_key(**again)


@pytest.mark.parametrize(
    "changed",
    [
        {"config": family_config("llama", num_layers=3)},
        {"config": family_config("qwen2", num_layers=2)},
        {"batch": family_batch("llama", micro_batch_size=3)},
        {"batch": {**PARTS["batch"], "attention_mask": torch.ones(2, 64)}},
        {"options": replace(PARTS["options"], activation_checkpointing=Recompute.FULL)},
        {"engine": SingleDevice(optimizer=fused_adamw)},
        {"engine": SingleDevice(gradient_clipping=1.0)},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_key_differs_with_every_part(changed: dict[str, object]) -> None:
    assert cache_key(**PARTS) != cache_key(**{**PARTS, **changed})


def test_key_tells_padded_from_full_masks() -> None:
    full, padded = torch.ones(2, 8), torch.ones(2, 8)
    padded[0, 5:] = 0
    assert cache_key(attention_mask=full) != cache_key(attention_mask=padded)


def test_key_differs_with_versions_and_code(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = [cache_key(**PARTS)]
    monkeypatch.setattr(module, "package_version", lambda package: "another")
    keys.append(cache_key(**PARTS))
    monkeypatch.setattr(module, "_code_digest", lambda: "changed")
    keys.append(cache_key(**PARTS))
    assert len(set(keys)) == 3


def test_nameless_function_cannot_be_part_of_a_key() -> None:
    with pytest.raises(TraceError, match="cannot be part of a cache key"):
        cache_key(loss=lambda output: output)


def test_configured_trace_is_kept(tmp_path: Path) -> None:
    config, batch = family_config("llama", num_layers=2), family_batch("llama", seq_len=16)
    first = trace_config(config, batch, TraceOptions(), cache_folder=tmp_path)
    (file,) = tmp_path.iterdir()
    written = file.stat().st_mtime_ns
    assert trace_config(config, batch, TraceOptions(), cache_folder=tmp_path).equals(first)
    assert file.stat().st_mtime_ns == written
    assert trace_config(config, batch, TraceOptions(), use_cache=False).equals(first)
