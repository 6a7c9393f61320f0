"""The exported folder: opens, equals what was trained, is whole or absent."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
import transformers

import scaling.export
import scaling.model_folder
from scaling.data.tokenizer import load_tokenizer
from scaling.engines.base import Engine
from scaling.errors import ExportError
from scaling.export import export_engine, export_tensors, shell_of
from tests.scaling.checkpoint.alone import flip_bit
from tests.scaling.decisions import TINY_LLAMA
from tests.scaling.full_disk import file_size_limit

TIED = {**TINY_LLAMA, "tie_word_embeddings": True}
GPT2 = {"vocab_size": 288, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
EXPERTS = {
    **{name: value for name, value in TINY_LLAMA.items() if name not in ("model_type", "architectures")},
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "head_dim": 8,
}


class OneRank(Engine):
    """An engine that only gathers: one parameter at a time, invalid once the next one is asked for."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.model, self.rank = model, 0

    def gathered_parameters(self) -> Iterator[tuple[str, torch.Tensor]]:
        for name, parameter in self.model.named_parameters():
            lent = parameter.detach().clone()
            yield name, lent
            lent.fill_(float("nan"))

    def accumulate(self, *, is_last: bool) -> Any:
        return nullcontext()

    def owners(self) -> Any: ...

    can_repeat_steps = False

    def state_slices(self) -> Any: ...

    def create_moments(self) -> None: ...

    def state_restored(self) -> None: ...

    def gradient_shares(self) -> Any: ...

    def abandon_pass(self) -> None: ...

    def drop_gradients(self) -> None: ...

    def close(self) -> None: ...

    def _forward(self, input_ids: torch.Tensor) -> Any: ...

    def _optimizer_step(self) -> tuple[torch.Tensor, bool]:
        return torch.zeros(()), True


def make(model_type: str, settings: dict[str, Any], *, dtype: torch.dtype = torch.float32) -> Any:
    torch.manual_seed(0)
    settings = {name: value for name, value in settings.items() if name not in ("model_type", "architectures")}
    config = transformers.AutoConfig.for_model(model_type, **settings)
    model: Any = transformers.AutoModelForCausalLM.from_config(config, dtype=dtype)
    model.config.use_cache = False
    return model


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Export without a process group: what all ranks do together this one does alone."""
    monkeypatch.setattr(scaling.export, "together", lambda action: action())


def export(model: Any, folder: Path, *, max_shard_bytes: int = 10**9, dtype: torch.dtype | None = None) -> None:
    shell = shell_of(model.config, dtype=dtype or model.dtype)
    export_engine(OneRank(model), shell, load_tokenizer("bytes"), folder=folder, max_shard_bytes=max_shard_bytes)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    ("model_type", "settings"),
    [
        ("llama", TINY_LLAMA),
        ("llama", TIED),
        ("gpt2", GPT2),
        ("qwen3_moe", EXPERTS),
    ],
    ids=["llama", "llama-tied", "gpt2-tied", "experts"],
)
def test_exported_model_gives_the_same_logits(
    model_type: str, settings: dict[str, Any], dtype: torch.dtype, tmp_path: Path
) -> None:
    model = make(model_type, settings, dtype=dtype).eval()
    export(model, tmp_path / "final")
    opened: Any = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "final").eval()
    ids = torch.arange(12).reshape(2, 6)
    with torch.no_grad():
        assert torch.equal(opened(input_ids=ids).logits, model(input_ids=ids).logits)
    assert opened.dtype is dtype
    assert opened.config.use_cache
    assert not model.config.use_cache
    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(tmp_path / "final")
    assert tokenizer.decode(tokenizer("größer")["input_ids"], skip_special_tokens=True) == "größer"


def test_tied_weights_are_stored_once_and_stay_tied(tmp_path: Path) -> None:
    # transformers #30202, safetensors #265: a head that is missing, random, or stored twice.
    model = make("llama", TIED)
    export(model, tmp_path / "final")
    stored = safetensors.torch.load_file(tmp_path / "final" / "model.safetensors")
    assert "lm_head.weight" not in stored
    assert sum(tensor.numel() for tensor in stored.values()) == sum(p.numel() for p in model.parameters())
    opened: Any = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "final")
    assert opened.lm_head.weight is opened.model.embed_tokens.weight


def test_untied_weights_of_equal_value_are_both_stored(tmp_path: Path) -> None:
    model = make("llama", TINY_LLAMA)
    with torch.no_grad():
        model.lm_head.weight.copy_(model.model.embed_tokens.weight)
    export(model, tmp_path / "final")
    stored = safetensors.torch.load_file(tmp_path / "final" / "model.safetensors")
    assert torch.equal(stored["lm_head.weight"], stored["model.embed_tokens.weight"])


def test_an_existing_folder_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "final").mkdir()
    (tmp_path / "final" / "mine").write_text("kept")
    with pytest.raises(ExportError, match="already exists; move it away"):
        export(make("llama", TINY_LLAMA), tmp_path / "final")
    assert [path.name for path in (tmp_path / "final").iterdir()] == ["mine"]


def test_a_folder_without_a_name_is_an_existing_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ExportError, match=r"^\. already exists; move it away$"):
        export(make("llama", TINY_LLAMA), Path("."))
    assert list(tmp_path.parent.glob(f".{tmp_path.name}*")) == []


def test_weights_that_change_on_disk_are_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = make("llama", TINY_LLAMA)
    check = scaling.model_folder.check_export

    def damage(folder: Path, *args: Any, **options: Any) -> None:
        flip_bit(folder / "model.safetensors", at=-3)
        check(folder, *args, **options)

    monkeypatch.setattr(scaling.model_folder, "check_export", damage)
    with pytest.raises(ExportError, match=r"does not open as the model that was trained: different: "):
        export(model, tmp_path / "final")
    assert not (tmp_path / "final").exists()
    assert list(tmp_path.glob(".final.*"))  # to be looked at


def test_a_tensor_left_out_is_noticed(tmp_path: Path) -> None:
    model = make("llama", TINY_LLAMA)
    tensors = [each for each in model.named_parameters() if "layers.1.mlp.up_proj" not in each[0]]
    shell = shell_of(model.config, dtype=model.dtype)
    with pytest.raises(ExportError, match=r"it has no model\.layers\.1\.mlp\.up_proj\.weight"):
        export_tensors(tensors, shell, None, folder=tmp_path / "final")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("settings", [TINY_LLAMA, TIED, EXPERTS], ids=["llama", "llama-tied", "experts"])
def test_files_end_at_the_size_that_was_asked_for_and_open_as_one_model(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    model = make("qwen3_moe" if settings is EXPERTS else "llama", settings)
    export(model, tmp_path / "final", max_shard_bytes=20_000)
    files = sorted((tmp_path / "final").glob("*.safetensors"))
    assert len(files) > 3
    largest = max(parameter.numel() * 4 for parameter in model.parameters())
    assert all(path.stat().st_size < max(20_000, largest) + 4000 for path in files)
    index = json.loads((tmp_path / "final" / "model.safetensors.index.json").read_text())
    stored = {name: path.name for path in files for name in safetensors.torch.load_file(path)}
    assert index["weight_map"] == stored
    assert index["metadata"]["total_size"] == 4 * sum(parameter.numel() for parameter in model.parameters())
    opened: Any = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "final")
    assert all(torch.equal(tensor, model.state_dict()[name]) for name, tensor in opened.state_dict().items())


@pytest.mark.parametrize("settings", [TINY_LLAMA, TIED, GPT2, EXPERTS], ids=["llama", "llama-tied", "gpt2", "experts"])
def test_files_are_those_of_save_pretrained(settings: dict[str, Any], tmp_path: Path) -> None:
    kinds = {id(GPT2): "gpt2", id(EXPERTS): "qwen3_moe"}
    model = make(kinds.get(id(settings), "llama"), settings)
    export(model, tmp_path / "ours")
    model.save_pretrained(tmp_path / "theirs")
    ours, theirs = (safetensors.torch.load_file(tmp_path / each / "model.safetensors") for each in ("ours", "theirs"))
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(tensor, theirs[name]) for name, tensor in ours.items())


def test_weights_are_written_in_the_format_that_was_asked_for(tmp_path: Path) -> None:
    model = make("llama", TINY_LLAMA)
    export(model, tmp_path / "final", dtype=torch.bfloat16)
    opened: Any = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "final")
    assert opened.dtype is torch.bfloat16
    wanted = model.to(torch.bfloat16).state_dict()
    assert all(torch.equal(tensor, wanted[name]) for name, tensor in opened.state_dict().items())


def test_settings_of_generation_come_along(tmp_path: Path) -> None:
    model = make("llama", TINY_LLAMA)
    shell = shell_of(model.config, dtype=model.dtype, generation=transformers.GenerationConfig(max_new_tokens=77))
    export_tensors(model.named_parameters(), shell, None, folder=tmp_path / "final")
    opened: Any = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "final")
    assert opened.generation_config.max_new_tokens == 77


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ExportError, match="cannot write the model to"):
        export(make("llama", TINY_LLAMA), tmp_path / "file" / "final")


def test_what_another_process_is_writing_is_left_alone(tmp_path: Path) -> None:
    theirs = tmp_path / ".final.partial"
    theirs.mkdir()
    (theirs / "model.safetensors").write_text("half")
    export(make("llama", TINY_LLAMA), tmp_path / "final")
    assert [path.name for path in theirs.iterdir()] == ["model.safetensors"]


def test_a_disk_that_fills_up_is_told_and_leaves_nothing(tmp_path: Path) -> None:
    model = make("llama", TINY_LLAMA)
    with file_size_limit(20_000), pytest.raises(ExportError, match=r"cannot write the model to .*final: .*too large"):
        export(model, tmp_path / "final")
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_fills_up_with_the_tokenizer_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **options: Any) -> None:
        raise Exception("No space left on device (os error 28)")  # as the library of tokenizers says it

    model, tokenizer = make("llama", TINY_LLAMA), load_tokenizer("bytes")
    monkeypatch.setattr(tokenizer, "save_pretrained", refuse)
    shell = shell_of(model.config, dtype=model.dtype)
    with pytest.raises(ExportError, match=r"No space left .* free there\); free space or give"):
        export_tensors(model.named_parameters(), shell, tokenizer, folder=tmp_path / "final")
    assert list(tmp_path.iterdir()) == []
