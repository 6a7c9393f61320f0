"""Configurations at other depths: the lists with one entry a block follow."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.trace_families import THIRTEEN_FAMILIES, family_config
from scaling.trace import TraceError, read_config, token_batch
from scaling.trace.hugging_face import at_depth, depth, layer_period, model_factory
from strategies.model_spec import TaskKind

MODELS = Path(__file__).parents[3] / "configs" / "models"


@pytest.mark.parametrize("family", THIRTEEN_FAMILIES)
def test_config_at_another_depth_matches_config_made_with_it(family: str) -> None:
    shallow, wanted = at_depth(family_config(family, num_layers=13), 7), family_config(family, num_layers=7)
    assert depth(shallow) == 7
    assert getattr(shallow, "layer_types", None) == getattr(wanted, "layer_types", None)


@pytest.mark.parametrize(
    ("family", "period"), [("llama", 1), ("gemma2", 2), ("gemma3", 6), ("mistral-window", 1), ("t5", 1)]
)
def test_layer_period_matches_published_pattern(family: str, period: int) -> None:
    """Gemma 2 alternates local and global attention (arXiv:2408.00118), Gemma 3 has five local to one global
    (arXiv:2503.19786)."""
    assert layer_period(family_config(family, num_layers=26)) == period


def test_model_has_no_key_value_cache() -> None:
    model = model_factory(family_config("t5", num_layers=2), task=TaskKind.SEQ2SEQ_LM)()
    assert not any(
        getattr(module.config, "use_cache", False) for module in model.modules() if hasattr(module, "config")
    )


@pytest.mark.parametrize("name", ["llama-3-8b", "gemma-3-1b", "bert-base", "mixtral-8x7b"])
def test_preset_is_read_with_its_depth(name: str) -> None:
    """Depths as published: 32, 26, 12 and 32 blocks."""
    published = {"llama-3-8b": 32, "gemma-3-1b": 26, "bert-base": 12, "mixtral-8x7b": 32}
    assert depth(read_config(MODELS / f"{name}.json")) == published[name]


@pytest.mark.parametrize("num_layers", [0, 14])
def test_depth_beyond_the_model_is_refused(num_layers: int) -> None:
    with pytest.raises(TraceError, match=f"num_layers={num_layers} must be between 1 and the model's own 13"):
        at_depth(family_config("llama", num_layers=13), num_layers)


@pytest.mark.parametrize("content", ["no json", "{}", '{"model_type": "no such"}'])
def test_file_that_is_no_config_is_refused(content: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(TraceError, match="no configuration that can be traced"):
        read_config(tmp_path)


def test_tokens_for_an_image_model_are_refused() -> None:
    with pytest.raises(TraceError, match="use image_batch"):
        token_batch(micro_batch_size=1, seq_len=8, task=TaskKind.IMAGE_CLASSIFICATION)
