"""Architecture families: from the values of a config.json to the closed list of parameter tensors.

Names, shapes and order are those of ``named_parameters()`` in transformers 5.24; tests compare them for every family.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

from strategies.architectures.bert import BERT, ROBERTA
from strategies.architectures.bloom import BLOOM
from strategies.architectures.clip import CLIP
from strategies.architectures.cohere import COHERE
from strategies.architectures.config import Architecture, shown
from strategies.architectures.falcon import FALCON
from strategies.architectures.gemma import GEMMA, GEMMA2, GEMMA3, GEMMA3_TEXT
from strategies.architectures.gpt2 import GPT2
from strategies.architectures.gpt_neox import GPT_NEOX
from strategies.architectures.gptj import GPTJ
from strategies.architectures.llama import GRANITE, LLAMA
from strategies.architectures.mistral import MISTRAL, MIXTRAL
from strategies.architectures.mpt import MPT
from strategies.architectures.olmo2 import OLMO2
from strategies.architectures.opt import OPT
from strategies.architectures.phi import PHI, PHI3
from strategies.architectures.qwen import QWEN2, QWEN3
from strategies.architectures.qwen_moe import QWEN2_MOE, QWEN3_MOE
from strategies.architectures.stablelm import STABLELM
from strategies.architectures.starcoder2 import STARCODER2
from strategies.architectures.t5 import T5
from strategies.architectures.variants import rotary_dim_of, variant_of
from strategies.architectures.vit import VIT
from strategies.errors import SpecError
from strategies.model_spec import ModelSpec

ARCHITECTURES: Mapping[str, Architecture] = {
    architecture.model_type: architecture
    for architecture in (
        BERT,
        BLOOM,
        CLIP,
        COHERE,
        FALCON,
        GEMMA,
        GEMMA2,
        GEMMA3,
        GEMMA3_TEXT,
        GPT2,
        GPT_NEOX,
        GPTJ,
        GRANITE,
        LLAMA,
        MISTRAL,
        MIXTRAL,
        MPT,
        OLMO2,
        OPT,
        PHI,
        PHI3,
        QWEN2,
        QWEN2_MOE,
        QWEN3,
        QWEN3_MOE,
        ROBERTA,
        STABLELM,
        STARCODER2,
        T5,
        VIT,
    )
}
MAX_PARAMS = 10**15
"""A thousand times the largest published model; more is a typing error."""

_WITHOUT_SHAPE = frozenset(
    {
        "max_position_embeddings",
        "n_positions",
        "max_seq_len",
        "num_labels",
        "pad_token_id",
        "sliding_window",
        "use_sliding_window",
        "max_window_layers",
        "sliding_window_pattern",
        "num_experts_per_tok",
        "tie_word_embeddings",
        "alibi",
    }
)
"""Keys that old or converted config.json files carry and that change no parameter in the families that ignore them."""
_QUANTISED = ("quantization_config", "compression_config")


def spec_from_config(config: Mapping[str, Any], *, name: str) -> ModelSpec:
    """Return the spec that a Hugging Face config.json describes.

    Raises:
        SpecError: an unknown ``model_type`` or class, values out of range, or keys that change the parameters in a way
            that is not known here.
    """
    architecture = _architecture(config, name=name)
    _refuse_foreign(config, architecture, name=name)
    spec = architecture.build(architecture.check(config, name=name))
    spec = replace(
        spec,
        variant=variant_of(config, family=spec.family),
        rotary_dim=rotary_dim_of(config, family=spec.family, head_dim=spec.head_dim),
    )
    if spec.num_params > MAX_PARAMS:
        raise SpecError(f"model {name}: {spec.num_params:.3g} parameters are above {MAX_PARAMS:.0e}; correct the sizes")
    return spec


def _architecture(config: Mapping[str, Any], *, name: str) -> Architecture:
    model_type = config.get("model_type")
    if isinstance(model_type, str) and model_type in ARCHITECTURES:
        return ARCHITECTURES[model_type]
    if model_type is None:
        raise SpecError(f'model {name}: the config has no model_type; add it, for instance "model_type": "llama"')
    import difflib

    closest = difflib.get_close_matches(str(model_type).lower(), ARCHITECTURES, n=1, cutoff=0.5)
    hint = f" (closest: {closest[0]})" if closest else ""
    raise SpecError(
        f"model {name}: model_type={shown(model_type)} is not known{hint}; known are {', '.join(ARCHITECTURES)}. Any "
        "other model can be traced with `scaling.trace` (docs/tracing.md)"
    )


def _refuse_foreign(config: Mapping[str, Any], architecture: Architecture, *, name: str) -> None:
    """Raise where config.json asks for parameters that this architecture's Hugging Face class would not build."""
    if quantised := [key for key in _QUANTISED if config.get(key)]:
        raise SpecError(
            f"model {name}: {quantised[0]} says that the weights are quantised, which changes their shapes and cannot "
            "be trained in full; remove it to plan for the unquantised model"
        )
    if config.get("per_layer_config"):
        raise SpecError(f"model {name}: per_layer_config (layers of different shape) is not covered; trace the model")
    own = architecture.shape_keys() | {*architecture.other, *architecture.only}
    foreign = [key for key in _all_shape_keys() if key not in own and config.get(key)]
    if foreign:
        listed = ", ".join(f"{key}={shown(config[key])}" for key in sorted(foreign))
        raise SpecError(
            f"model {name}: {listed} would change the parameters, but model_type {architecture.model_type} does not "
            "read it; remove it, or correct model_type"
        )


@cache
def _all_shape_keys() -> frozenset[str]:
    """Return every key by which some family changes its parameters."""
    extra = {"add_cross_attention", "n_routed_experts", "n_shared_experts", "kv_lora_rank", "q_lora_rank"}
    known = {key for architecture in ARCHITECTURES.values() for key in architecture.shape_keys()}
    return frozenset(known | extra) - _WITHOUT_SHAPE
