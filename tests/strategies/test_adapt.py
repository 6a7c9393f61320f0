"""What is trained of a model: counts that PEFT and the LoRA paper publish, and what is refused."""

from __future__ import annotations

import pytest

from strategies.adapt import as_trained
from strategies.errors import JobError
from strategies.job import Job
from strategies.load_model import load_model_spec
from strategies.trained import Lora, is_frozen

GPT3 = {
    "model_type": "gpt2",
    "vocab_size": 50257,
    "n_embd": 12288,
    "n_layer": 96,
    "n_head": 96,
    "n_positions": 2048,
}


def job(**parts: object) -> Job:
    return Job(seq_len=128, global_batch_size=1, **parts)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("model", "rank", "targets", "trained"),
    [
        # PEFT's own print_trainable_parameters: documentation of Llama-2-7B with its default layers
        ("llama-2-7b", 8, ("q_proj", "v_proj"), 4_194_304),
        ("llama-2-7b", 16, ("q_proj", "v_proj"), 8_388_608),
        ("llama-2-7b", 16, ("all-linear",), 39_976_960),
        ("llama-2-7b", 64, ("all-linear",), 159_907_840),
        ("llama-2-13b", 8, ("q_proj", "v_proj"), 6_553_600),
        ("mistral-7b", 8, ("q_proj", "v_proj"), 3_407_872),
        ("mistral-7b", 16, ("all-linear",), 41_943_040),
        ("llama-3-8b", 16, ("all-linear",), 41_943_040),
        ("gpt2", 8, ("c_attn",), 294_912),
    ],
)
def test_adapters_are_as_many_as_peft_counts(model: str, rank: int, targets: tuple[str, ...], trained: int) -> None:
    spec = load_model_spec(model)
    adapted = as_trained(spec, job(lora=Lora(rank=rank, target_modules=targets)))
    assert adapted.num_trained_params == trained
    assert adapted.num_params == spec.num_params + trained


def test_all_parameters_are_as_many_as_peft_prints() -> None:
    """``trainable params: 4,194,304 || all params: 6,742,609,920`` (PEFT's documentation, Llama-2-7B, r=8)."""
    adapted = as_trained(load_model_spec("llama-2-7b"), job(lora=Lora(rank=8, target_modules=("q_proj", "v_proj"))))
    assert adapted.num_params == 6_742_609_920


@pytest.mark.parametrize(("rank", "millions"), [(1, 4.7), (8, 37.7)])
def test_gpt3_trains_as_many_as_in_the_paper(rank: int, millions: float) -> None:
    """Two of the four square matrices of attention (arXiv:2106.09685, table 4 and section 5.1).

    GPT-2's code holds the first three as one, so that the adapter of the fourth is counted, twice.
    """
    square = as_trained(load_model_spec(GPT3), job(lora=Lora(rank=rank, target_modules=("attn.c_proj",))))
    assert 2 * square.num_trained_params / 1e6 == pytest.approx(millions, abs=0.05)


def test_head_alone_and_all_but_the_embedding() -> None:
    spec = load_model_spec("llama-2-7b")
    head = as_trained(spec, job(freeze=("*", "!lm_head")))
    assert head.num_trained_params == 32000 * 4096
    assert head.num_trained_layers == 0
    rest = as_trained(spec, job(freeze=("embed_tokens",)))
    assert rest.num_trained_params == spec.num_params - 32000 * 4096
    assert rest.num_frozen_layers == 0


def test_backward_ends_at_the_first_trained_block() -> None:
    lower = ("embed_tokens", "model.layers.?", "model.layers.1?")
    spec = as_trained(load_model_spec("llama-2-7b"), job(freeze=lower))
    assert spec.num_frozen_layers == 20
    assert [tensor.name for tensor in spec.tensors()] == [
        tensor.name for tensor in load_model_spec("llama-2-7b").tensors()
    ]


def test_the_last_pattern_that_fits_decides() -> None:
    assert is_frozen("model.layers.3.mlp.up_proj.weight", ("*", "!mlp", "up_proj"))
    assert not is_frozen("model.layers.3.mlp.down_proj.weight", ("*", "!mlp", "up_proj"))
    assert is_frozen("model.embed_tokens.weight", ("embed_tokens",))
    assert not is_frozen("model.embed_tokens_2.weight", ("embed_tokens",))


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"freeze": ("embed",)}, "has no such parameter"),
        ({"freeze": ("*",)}, "freezes every parameter"),
        ({"freeze": ("!lm_head",)}, "freezes no parameter"),
        ({"lora": Lora(target_modules=("c_attn",))}, "have no linear layer of that name; they have down_proj"),
        ({"lora": Lora(target_modules=("q_proj", "c_attn"))}, r"\['c_attn'\]"),
    ],
)
def test_names_that_the_model_does_not_have_are_refused(parts: dict[str, object], message: str) -> None:
    with pytest.raises(JobError, match=message):
        as_trained(load_model_spec("llama-2-7b"), job(**parts))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"rank": 0}, "rank=0"),
        ({"alpha": 0.0}, "alpha=0.0"),
        ({"target_modules": ()}, "names no layer"),
        ({"target_modules": ("all-linear", "q_proj")}, "give it alone"),
    ],
)
def test_impossible_adapters_are_refused(fields: dict[str, object], message: str) -> None:
    with pytest.raises(JobError, match=message):
        Lora(**fields)  # type: ignore[arg-type]


def test_adapters_and_patterns_together_are_refused() -> None:
    with pytest.raises(JobError, match="leave one of them out"):
        job(lora=Lora(), freeze=("embed_tokens",))
