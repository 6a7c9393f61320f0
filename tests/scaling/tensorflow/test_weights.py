"""Weights out of and into a folder that transformers opens."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from safetensors import safe_open

from scaling.errors import ExportError, ModelError
from scaling.tensorflow.decoder import build_decoder
from scaling.tensorflow.weights import load_hugging_face, parameters_by_name, save_hugging_face
from strategies.load_model import resolve_model
from tests.scaling.tensorflow.models import resolved, tokens, torch_model

pytestmark = pytest.mark.tensorflow


@pytest.mark.parametrize("name", ["llama", "llama-tied", "qwen3", "gpt2", "gpt2-untied"])
def test_saved_folder_opens_in_transformers_with_the_same_logits(name: str, tmp_path: Path) -> None:
    model = build_decoder(resolved(name))
    save_hugging_face(model, tmp_path / "final")
    opened = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "final").eval()
    ids = tokens((2, 9))
    with torch.no_grad():
        theirs = opened(input_ids=torch.from_numpy(ids).long()).logits.numpy()
    assert np.abs(model(ids).numpy() - theirs).max() <= 1e-4
    with safe_open(tmp_path / "final" / "model.safetensors", framework="numpy") as file:
        assert set(file.keys()) == set(parameters_by_name(model))  # a tied head is stored once
    again = build_decoder(resolved(name))
    load_hugging_face(again, tmp_path / "final")
    assert np.array_equal(again(ids).numpy(), model(ids).numpy())


def test_settings_of_generation_stay_with_the_model(tmp_path: Path) -> None:
    save_hugging_face(build_decoder(resolved("llama")), tmp_path / "first")
    transformers.GenerationConfig(do_sample=True, temperature=0.3).save_pretrained(tmp_path / "first")
    save_hugging_face(build_decoder(resolve_model(str(tmp_path / "first"))), tmp_path / "second")
    assert transformers.GenerationConfig.from_pretrained(tmp_path / "second").temperature == 0.3


def test_saving_over_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="already exists"):
        save_hugging_face(build_decoder(resolved("llama")), tmp_path)


def test_weights_of_another_model_are_refused() -> None:
    model = build_decoder(resolved("llama"))
    with pytest.raises(ModelError, match=r"mlp.gate_proj.weight has shape \(64, 32\), but model .* has \(48, 32\)"):
        load_hugging_face(model, torch_model(resolved("llama", intermediate_size=64)))
    with pytest.raises(ModelError, match=r"lack model.embed_tokens.weight, .* \(20 tensors in all\)"):
        load_hugging_face(model, torch_model(resolved("gpt2")))
