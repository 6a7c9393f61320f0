"""The data of a run: where token stores go, and that a second run finds them."""

from __future__ import annotations

from pathlib import Path

from scaling.models import build_config
from scaling.train_config import TrainConfig
from scaling.training_data import open_training_data
from strategies.load_model import resolve_model
from tests.scaling.decisions import toy_decision


def test_token_store_goes_to_the_cache_folder_and_is_made_once(tmp_path: Path) -> None:
    text, cache = tmp_path / "text.txt", tmp_path / "cache"
    text.write_text("all work and no play makes jack a dull boy\n" * 200)
    config = TrainConfig(plan=tmp_path / "plan.json", out=tmp_path / "out", steps=1, data=str(text), cache_dir=cache)
    decision = toy_decision("ddp", world_size=2, accumulation=3)

    first = open_training_data(
        config, decision, model_config=build_config(resolve_model("llama-demo")), show_progress=False
    )
    made = {path: path.stat().st_mtime_ns for path in cache.rglob("*") if path.is_file()}
    again = open_training_data(
        config, decision, model_config=build_config(resolve_model("llama-demo")), show_progress=False
    )

    assert made
    assert {path: path.stat().st_mtime_ns for path in made} == made
    assert again.content_hash == first.content_hash
    # 200 lines of 43 bytes and one separator, cut into samples of 8 tokens
    assert len(first.train) == (200 * 43 + 1) // 8
    assert [batch.inputs["input_ids"].shape for batch in first.micro_batches(0, rank=1, world_size=2)] == [(1, 8)] * 3
