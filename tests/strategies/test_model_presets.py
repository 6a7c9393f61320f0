"""Every preset against the transformers model, and against counts that others published."""

import pytest

from benchmarks.parameter_counts import meta_model, named_shapes
from strategies.load_model import model_spec, preset_names, preset_path, resolve_preset
from strategies.model_aliases import ALIASES
from strategies.model_spec import GroupRole, ModelSpec
from strategies.presets import configs_folder

HUB = "parameter count that the model's page on the Hugging Face hub shows for its safetensors files"
CARD = "model card"
PYTHIA = "Biderman et al. 2023, arXiv:2304.01373, and the repository's table of sizes"
TORCHVISION = "torchvision.models documentation, num_params of vit_b_16 and vit_l_16 (1000 classes)"

# Written down from these sources without fetching them again; sums of up to twelve digits that agree are no chance.
PUBLISHED = {
    "llama-2-7b": (6_738_415_616, HUB),
    "llama-2-13b": (13_015_864_320, HUB),
    "llama-2-70b": (68_976_648_192, HUB),
    "llama-3-8b": (8_030_261_248, HUB),
    "llama-3.1-8b": (8_030_261_248, HUB),
    "llama-3.1-70b": (70_553_706_496, HUB),
    "llama-3.1-405b": (405_853_388_800, HUB),
    "llama-3.2-1b": (1_235_814_400, HUB),
    "llama-3.2-3b": (3_212_749_824, HUB),
    "tinyllama-1.1b": (1_100_048_384, HUB),
    "mistral-7b": (7_241_732_096, HUB),
    "mistral-7b-v0.3": (7_248_023_552, HUB),
    "mixtral-8x7b": (46_702_792_704, HUB),
    "qwen2.5-0.5b": (494_032_768, HUB),
    "qwen2.5-1.5b": (1_543_714_304, HUB),
    "qwen2.5-7b": (7_615_616_512, HUB),
    "qwen2.5-14b": (14_770_033_664, HUB),
    "qwen2.5-32b": (32_763_876_352, HUB),
    "qwen2.5-72b": (72_706_203_648, HUB),
    "qwen3-4b": (4_022_468_096, HUB),
    "qwen3-8b": (8_190_735_360, HUB),
    "qwen3-30b-a3b": (30_532_122_624, HUB),
    "qwen1.5-moe-a2.7b": (14_315_784_192, HUB),
    "phi-2": (2_779_683_840, HUB),
    "phi-3-mini": (3_821_079_552, HUB),
    "phi-3-medium": (13_960_238_080, HUB),
    "gemma-3-1b": (999_885_952, HUB),
    "gpt2": (124_439_808, "GPT2LMHeadModel.num_parameters(), quoted in many tutorials"),
    "gpt-neox-20b": (20_554_567_680, CARD),
    "pythia-160m": (162_322_944, PYTHIA),
    "pythia-410m": (405_334_016, PYTHIA),
    "pythia-1b": (1_011_781_632, PYTHIA),
    "pythia-1.4b": (1_414_647_808, PYTHIA),
    "pythia-2.8b": (2_775_208_960, PYTHIA),
    "pythia-6.9b": (6_857_302_016, PYTHIA),
    "pythia-12b": (11_846_072_320, PYTHIA),
    "bloom-560m": (559_214_592, CARD),
    "bloom-7b1": (7_069_016_064, CARD),
    "bloom": (176_247_271_424, CARD),
    "vit-base": (86_567_656, TORCHVISION),
    "vit-large": (304_326_632, TORCHVISION),
}
# Gemma team 2024, arXiv:2403.08295, table 2, and arXiv:2408.00118, table 1: "non-embedding parameters".
NON_EMBEDDING = {
    "gemma-2b": 1_981_884_416,
    "gemma-7b": 7_751_248_896,
    "gemma-2-2b": 2_024_517_888,
    "gemma-2-9b": 8_324_201_984,
    "gemma-2-27b": 26_047_480_320,
}


def preset_spec(name: str) -> ModelSpec:
    """The preset itself, whatever the Hugging Face cache of this machine holds."""
    resolved = resolve_preset(name)
    assert resolved is not None
    return model_spec(resolved)


@pytest.mark.parametrize("name", preset_names())
def test_preset_matches_transformers_meta_model(name: str) -> None:
    resolved = resolve_preset(name)
    assert resolved is not None
    spec = model_spec(resolved)
    model = meta_model(resolved.config, task=spec.task)
    assert list(spec.parameters()) == named_shapes(model)
    assert spec.num_params == sum(parameter.numel() for parameter in model.parameters())
    assert type(model).__name__.lower() == resolved.config["architectures"][0].lower()
    assert spec.tied_embeddings == (model.get_output_embeddings() is not None and _shares_embedding(model))


def _shares_embedding(model: object) -> bool:
    return model.get_output_embeddings().weight is model.get_input_embeddings().weight  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", PUBLISHED)
def test_preset_matches_published_count(name: str) -> None:
    count, _source = PUBLISHED[name]
    assert preset_spec(name).num_params == count


@pytest.mark.parametrize("name", NON_EMBEDDING)
def test_preset_matches_gemma_reports_non_embedding_count(name: str) -> None:
    spec = preset_spec(name)
    embedding = sum(group.num_params for group in spec.groups if group.role is GroupRole.EMBEDDING)
    assert spec.num_params - embedding == NON_EMBEDDING[name]


def test_readme_names_the_source_of_every_preset() -> None:
    readme = (configs_folder() / "models" / "README.md").read_text()
    rows = [line.split("|") for line in readme.splitlines() if line.startswith("| `")]
    assert [row[1].strip(" `") for row in rows] == list(preset_names())
    for row in rows:
        source = row[2].strip(" `")
        assert source == "made for tests" or ALIASES.get(source.lower()) == row[1].strip(" `")


def test_every_alias_leads_to_a_preset_and_hides_none() -> None:
    names = set(preset_names())
    assert set(ALIASES.values()) <= names
    assert not set(ALIASES) & names
    assert all(alias == alias.lower() for alias in ALIASES)


@pytest.mark.parametrize(
    ("given", "preset"),
    [
        ("meta-llama/Llama-3.1-8B", "llama-3.1-8b"),
        ("Qwen/Qwen2.5-7B", "qwen2.5-7b"),
        ("LLAMA-3.1-8B", "llama-3.1-8b"),
        ("openai-community/gpt2", "gpt2"),
        ("bert-base-uncased", "bert-base"),
    ],
)
def test_preset_path_ignores_case_and_knows_hub_ids(given: str, preset: str) -> None:
    path = preset_path(given)
    assert path is not None
    assert path.stem == preset


def test_demo_presets_have_the_dimensions_of_the_demo() -> None:
    llama = preset_spec("llama-demo")
    dims = (llama.hidden_size, llama.num_layers, llama.num_attention_heads, llama.num_key_value_heads)
    assert dims == (256, 6, 8, 4)
    assert (llama.intermediate_size, llama.vocab_size, llama.max_seq_len) == (688, 512, 1024)
    assert not llama.tied_embeddings
    assert preset_spec("gpt2-demo").tied_embeddings


def test_mixture_of_experts_presets_carry_their_facts() -> None:
    # Jiang et al. 2024, arXiv:2401.04088, table 1; Yang et al. 2025, arXiv:2505.09388, table 2.
    mixtral, qwen3 = preset_spec("mixtral-8x7b"), preset_spec("qwen3-30b-a3b")
    assert (mixtral.num_experts, mixtral.num_experts_per_token, mixtral.num_moe_layers) == (8, 2, 32)
    assert (qwen3.num_experts, qwen3.num_experts_per_token, qwen3.num_moe_layers) == (128, 8, 48)
    assert (qwen3.moe_intermediate_size, qwen3.shared_expert_intermediate_size) == (768, 0)


def test_sliding_window_presets_carry_their_facts() -> None:
    # arXiv:2310.06825 (all layers), arXiv:2408.00118 (every other), arXiv:2503.19786 (five of six).
    facts = {
        name: (preset_spec(name).sliding_window, preset_spec(name).num_sliding_layers)
        for name in ("mistral-7b", "gemma-2-9b", "gemma-3-1b", "qwen2.5-7b")
    }
    assert facts == {
        "mistral-7b": (4096, 32),
        "gemma-2-9b": (4096, 21),
        "gemma-3-1b": (512, 22),
        "qwen2.5-7b": (None, 0),
    }
