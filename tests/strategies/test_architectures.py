"""Small, varied configs of every architecture family against the transformers model on the meta device."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest

from benchmarks.parameter_counts import meta_model, named_shapes
from strategies.architectures import ARCHITECTURES, spec_from_config
from strategies.architectures.config import Architecture

Config = dict[str, Any]

_LLAMA = {
    "vocab_size": 96,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}
_BERT = {
    "vocab_size": 96,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "max_position_embeddings": 64,
}
_VIT = {
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "image_size": 32,
    "patch_size": 8,
}
BASE: dict[str, Config] = {
    "bert": _BERT,
    "bloom": {"vocab_size": 96, "hidden_size": 48, "n_layer": 3, "n_head": 6},
    "clip": {"projection_dim": 24, "text_config": _BERT, "vision_config": _VIT},
    "cohere": _LLAMA,
    "falcon": {"vocab_size": 96, "hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 6},
    "gemma": {**_LLAMA, "head_dim": 16},
    "gemma2": {**_LLAMA, "head_dim": 16},
    "gemma3_text": {**_LLAMA, "head_dim": 16},
    "gpt2": {"vocab_size": 96, "n_embd": 48, "n_layer": 3, "n_head": 6, "n_positions": 64},
    "gpt_neox": {**_BERT, "num_attention_heads": 6},
    "gptj": {"vocab_size": 96, "n_embd": 48, "n_layer": 3, "n_head": 6, "n_positions": 64, "rotary_dim": 4},
    "granite": _LLAMA,
    "llama": _LLAMA,
    "mistral": _LLAMA,
    "mixtral": {**_LLAMA, "num_local_experts": 4},
    "mpt": {"vocab_size": 96, "d_model": 48, "n_layers": 3, "n_heads": 6},
    "olmo2": _LLAMA,
    "opt": {
        "vocab_size": 96,
        "hidden_size": 48,
        "ffn_dim": 80,
        "num_hidden_layers": 3,
        "num_attention_heads": 6,
        "max_position_embeddings": 64,
    },
    "phi": _LLAMA,
    "phi3": _LLAMA,
    "qwen2": _LLAMA,
    "qwen2_moe": {
        **_LLAMA,
        "num_experts": 4,
        "moe_intermediate_size": 24,
        "shared_expert_intermediate_size": 40,
        "num_hidden_layers": 5,
    },
    "qwen3": {**_LLAMA, "head_dim": 16},
    "qwen3_moe": {**_LLAMA, "num_experts": 4, "moe_intermediate_size": 24, "num_hidden_layers": 5},
    "roberta": _BERT,
    "stablelm": _LLAMA,
    "starcoder2": _LLAMA,
    "t5": {"vocab_size": 96, "d_model": 48, "d_kv": 8, "d_ff": 80, "num_layers": 3, "num_heads": 6},
    "vit": _VIT,
}
VARIATIONS: dict[str, list[Config]] = {
    "bert": [
        {"type_vocab_size": 5},
        {"architectures": ["BertLMHeadModel"], "is_decoder": True},
        {"architectures": ["BertForSequenceClassification"], "num_labels": 5},
    ],
    "bloom": [{"n_embed": 24, "hidden_size": 24}, {"n_layer": 1, "n_head": 2}],
    "clip": [
        {"projection_dim": 8, "text_config": {**_BERT, "num_hidden_layers": 2}},
        {"vision_config": {**_VIT, "hidden_size": 24, "num_channels": 1, "image_size": 36}},
    ],
    "cohere": [{"head_dim": 10}, {"num_key_value_heads": None, "use_qk_norm": True}],
    "falcon": [
        {"new_decoder_architecture": True, "num_kv_heads": 2},
        {"new_decoder_architecture": True, "num_kv_heads": 3, "num_ln_in_parallel_attn": 1, "bias": True},
        {"num_ln_in_parallel_attn": 2, "ffn_hidden_size": 100},
        {"multi_query": False, "parallel_attn": False, "bias": True},
        {"multi_query": True, "num_kv_heads": 6, "alibi": True},
    ],
    "gemma": [{"head_dim": 8, "num_key_value_heads": 1}, {"num_key_value_heads": 6}],
    "gemma2": [{"head_dim": 8, "layer_types": ["full_attention"] * 3}, {"sliding_window": 16}],
    "gemma3_text": [{"sliding_window_pattern": 2}, {"use_bidirectional_attention": True, "head_dim": 8}],
    "gpt2": [{"n_inner": 100}, {"n_embd": 24, "n_head": 3, "n_layer": 1}],
    "gpt_neox": [{"use_parallel_residual": False}, {"num_hidden_layers": 1, "rotary_pct": 1.0}],
    "gptj": [{"n_inner": 100}, {"n_embd": 24, "n_head": 3}],
    "granite": [{"num_key_value_heads": None}, {"attention_bias": True, "mlp_bias": True}],
    "llama": [{"head_dim": 10}, {"num_key_value_heads": None}, {"attention_bias": True, "mlp_bias": True}],
    "mistral": [{"head_dim": 10, "sliding_window": None}, {"num_key_value_heads": 6}],
    "mixtral": [{"num_local_experts": 2, "head_dim": 10}, {"num_experts_per_tok": 1, "sliding_window": 8}],
    "mpt": [{"attn_config": {"clip_qkv": 8.0}, "expansion_ratio": 4}, {"max_seq_len": 16, "n_heads": 4}],
    "olmo2": [{"num_key_value_heads": None}, {"attention_bias": True, "head_dim": 10}],
    "opt": [
        {"word_embed_proj_dim": 16, "do_layer_norm_before": False},
        {"word_embed_proj_dim": 16, "tie_word_embeddings": False},
        {"enable_bias": False, "layer_norm_elementwise_affine": False},
    ],
    "phi": [{"num_key_value_heads": None}, {"qk_layernorm": True, "num_key_value_heads": 3}],
    "phi3": [{"num_key_value_heads": None}, {"sliding_window": 8, "head_dim": 10, "tie_word_embeddings": True}],
    "qwen2": [{"head_dim": 10}, {"use_sliding_window": True, "max_window_layers": 1}],
    "qwen2_moe": [
        {"decoder_sparse_step": 2},
        {"mlp_only_layers": [0, 3], "decoder_sparse_step": 1},
        {"num_experts": 0},
        {"qkv_bias": False, "head_dim": 10},
    ],
    "qwen3": [{"head_dim": 8, "attention_bias": True}, {"num_key_value_heads": None}],
    "qwen3_moe": [
        {"decoder_sparse_step": 3, "head_dim": 16},
        {"mlp_only_layers": [4], "attention_bias": True},
        {"num_experts": 0},
    ],
    "roberta": [
        {"type_vocab_size": 1, "pad_token_id": 3},
        {"architectures": ["RobertaForCausalLM"], "is_decoder": True},
        {"architectures": ["RobertaForSequenceClassification"], "num_labels": 5},
    ],
    "stablelm": [{"qk_layernorm": True, "use_qkv_bias": True}, {"num_key_value_heads": 6}],
    "starcoder2": [{"num_key_value_heads": 6}, {"sliding_window": 8, "use_bias": False}],
    "t5": [
        {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
        {"num_decoder_layers": 1},
        {"num_layers": 1, "num_decoder_layers": 4, "d_kv": 16, "relative_attention_num_buckets": 6},
    ],
    "vit": [
        {"num_labels": 7},
        {"id2label": {"0": "cat", "1": "dog", "2": "bird"}, "num_channels": 1},
        {"image_size": [32, 16], "patch_size": [8, 4]},
        {"qkv_bias": False, "head_dim": 10},
    ],
}


def _cases() -> Iterator[Any]:
    for model_type, base in BASE.items():
        flipped = [{flag: not value} for flag, value in ARCHITECTURES[model_type].flags.items()]
        for change in [{}, *flipped, *VARIATIONS[model_type]]:
            config = {"model_type": model_type, **base, **change}
            yield pytest.param(config, id=f"{model_type}-{change or 'base'}")


@pytest.mark.parametrize("config", list(_cases()))
def test_small_config_matches_transformers_meta_model(config: Config) -> None:
    spec = spec_from_config(config, name="small")
    model = meta_model(config, task=spec.task)
    assert list(spec.parameters()) == named_shapes(model)
    assert type(model).__name__ in ARCHITECTURES[config["model_type"]].classes


def test_every_known_family_is_compared() -> None:
    multimodal = {"gemma3"}  # known only to be refused
    assert set(BASE) == set(VARIATIONS) == set(ARCHITECTURES) - multimodal
    assert all(len(variations) >= 2 for variations in VARIATIONS.values())  # and the base: three configs a family


@pytest.mark.parametrize("architecture", ARCHITECTURES.values(), ids=list(ARCHITECTURES))
def test_defaults_match_transformers_config_class(architecture: Architecture) -> None:
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    theirs = {field.name: field.default for field in dataclasses.fields(CONFIG_MAPPING[architecture.model_type])}
    # Not declared by the class: read with getattr(config, "head_dim", <derived>), or popped from the extra arguments.
    undeclared = {"head_dim": None, "num_labels": None, "sliding_window_pattern": 6}
    tables = (architecture.sizes, architecture.optional_sizes, architecture.counts, architecture.optional_counts)
    ours = {key: value for table in (*tables, architecture.flags, architecture.other) for key, value in table.items()}
    assert ours == {key: theirs[key] if key in theirs else undeclared[key] for key in ours}


@pytest.mark.parametrize("architecture", ARCHITECTURES.values(), ids=list(ARCHITECTURES))
def test_config_without_dimensions_matches_transformers_default_model(architecture: Architecture) -> None:
    if architecture.model_type == "gemma3":  # refused; test_load_model_errors has the message
        return
    config = {"model_type": architecture.model_type}
    spec = spec_from_config(config, name="default")
    assert list(spec.parameters()) == named_shapes(meta_model(config, task=spec.task))


@pytest.mark.parametrize(
    ("model_type", "changes", "window", "layers"),
    [
        # Expected values: which layers transformers' config class lists as sliding_attention, or its single window.
        ("qwen2", {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 1}, 16, 2),
        ("qwen2_moe", {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 4}, 16, 2),
        ("qwen3_moe", {"use_sliding_window": True, "sliding_window": 16}, 16, 5),
        ("gemma3_text", {"sliding_window": 16, "sliding_window_pattern": 2}, 16, 2),
        ("gemma3_text", {"sliding_window": 16, "use_bidirectional_attention": True}, 9, 3),
        ("gemma2", {"sliding_window": 16}, 16, 2),
        ("mistral", {"sliding_window": None}, None, 0),
        ("phi3", {"sliding_window": 16}, 16, 3),
    ],
)
def test_sliding_window_matches_transformers_config(
    model_type: str, changes: Config, window: int | None, layers: int
) -> None:
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    config = {"model_type": model_type, **BASE[model_type], **changes}
    theirs = CONFIG_MAPPING[model_type].from_dict(config)
    spec = spec_from_config(config, name="small")
    assert (spec.sliding_window, spec.num_sliding_layers) == (window, layers)
    assert theirs.sliding_window == window
    if getattr(theirs, "layer_types", None):
        assert theirs.layer_types.count("sliding_attention") == layers


@pytest.mark.parametrize(
    ("model_type", "given", "spelled"),
    [
        ("gpt2", {"hidden_size": 24, "num_attention_heads": 3, "num_hidden_layers": 1}, "n_embd"),
        ("bloom", {"n_embed": 24, "num_attention_heads": 3, "num_hidden_layers": 1}, "hidden_size"),
        ("t5", {"hidden_size": 24, "num_attention_heads": 3, "num_layers": 1, "head_dim": 4}, "d_model"),
        ("mpt", {"hidden_size": 24, "num_attention_heads": 3, "num_hidden_layers": 1}, "d_model"),
        ("mixtral", {**_LLAMA, "num_experts": 2}, "num_local_experts"),
        ("qwen3_moe", {**_LLAMA, "num_local_experts": 2}, "num_experts"),
    ],
)
def test_other_spellings_of_keys_match_transformers(model_type: str, given: Config, spelled: str) -> None:
    config = {"model_type": model_type, "vocab_size": 96, **given}
    assert spelled not in given
    spec = spec_from_config(config, name="small")
    assert list(spec.parameters()) == named_shapes(meta_model(config, task=spec.task))


def test_roberta_fits_fewer_tokens_than_positions() -> None:
    # Liu et al. 2019: sequences of at most 512 tokens; the published config.json has 514 positions.
    config = {"model_type": "roberta", "max_position_embeddings": 514, "pad_token_id": 1}
    assert spec_from_config(config, name="roberta").max_seq_len == 512
