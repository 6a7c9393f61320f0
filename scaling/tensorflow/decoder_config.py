"""`DecoderConfig`: what a forward pass needs and `ModelSpec` does not hold, since it changes no size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from scaling.errors import ModelError
from scaling.models import build_config
from strategies.load_model import ResolvedModel, model_spec
from strategies.mirrored_limits import FAMILIES
from strategies.model_spec import ModelSpec

ACTIVATIONS = ("silu", "gelu_new", "gelu_pytorch_tanh", "gelu", "relu")
"""transformers' names, see `scaling.tensorflow.layers.activate`."""
FIXED = {
    "scale_attn_weights": True,
    "scale_attn_by_inverse_layer_idx": False,
    "reorder_and_upcast_attn": False,
    "add_cross_attention": False,
}
"""Settings of GPT-2 with the only value that is built here, which is the default of all published models."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rotation:
    """Rotary position embedding (Su et al. 2021, arXiv:2104.09864) with the library's scaling worked in."""

    frequencies: tuple[float, ...]
    """Radians a position, for each pair of numbers of a head."""
    scaling: float
    """Of both sine and cosine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dropouts:
    """Shares of numbers that are dropped in training."""

    embedding: float = 0.0
    attention: float = 0.0
    """Of the softmax."""
    residual: float = 0.0
    """Of what attention and feed-forward layer add."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderConfig:
    """A decoder as config.json describes it."""

    spec: ModelSpec
    norm_epsilon: float
    activation: str
    initializer_range: float
    """Standard deviation of random matrices."""
    rotation: Rotation | None
    """None: learned positions."""
    windows: tuple[int | None, ...]
    """By layer, how many tokens attention sees, the token itself counted; None: all before it."""
    dropouts: Dropouts
    fixed_embedding_id: int | None = None
    """Of the row that looking up does not train."""

    def has(self, name: str) -> bool:
        """Return whether the model has a parameter called ``name``, with ``{layer}`` in place of the block index."""
        return any(tensor.name == name for group in self.spec.groups for tensor in group.tensors)


def read_decoder_config(resolved: ResolvedModel) -> DecoderConfig:
    """Return what config.json says, with the library's defaults.

    Raises:
        ModelError: a family or setting that is not built in TensorFlow here.
    """
    spec, config = model_spec(resolved), build_config(resolved)
    if spec.family not in FAMILIES:
        raise ModelError(
            f"model {spec.name} has model_type={spec.family}, which is not built in TensorFlow here; "
            f"take one of {', '.join(FAMILIES)}, or train in PyTorch"
        )
    found = _gpt2(spec, config) if spec.family == "gpt2" else _llama_like(spec, config)
    if found.activation not in ACTIVATIONS:
        raise ModelError(
            f"model {spec.name} has the activation {found.activation}, which is not built in TensorFlow here; "
            f"known are {', '.join(ACTIVATIONS)}"
        )
    return found


def _llama_like(spec: ModelSpec, config: Any) -> DecoderConfig:
    return DecoderConfig(
        spec=spec,
        norm_epsilon=config.rms_norm_eps,
        activation=config.hidden_act,
        initializer_range=config.initializer_range,
        rotation=_rotation(spec, config),
        windows=_windows(spec, config),
        dropouts=Dropouts(attention=config.attention_dropout),
        # The library's llama gives it to torch.nn.Embedding as padding_idx, its GPT-2 does not.
        fixed_embedding_id=None if config.pad_token_id is None else config.pad_token_id % spec.vocab_size,
    )


def _gpt2(spec: ModelSpec, config: Any) -> DecoderConfig:
    if odd := [f"{name}={getattr(config, name)}" for name, built in FIXED.items() if getattr(config, name) != built]:
        raise ModelError(f"model {spec.name} has {', '.join(odd)}, which is not built in TensorFlow here")
    return DecoderConfig(
        spec=spec,
        norm_epsilon=config.layer_norm_epsilon,
        activation=config.activation_function,
        initializer_range=config.initializer_range,
        rotation=None,
        windows=(None,) * spec.num_layers,
        dropouts=Dropouts(embedding=config.embd_pdrop, attention=config.attn_pdrop, residual=config.resid_pdrop),
    )


def _rotation(spec: ModelSpec, config: Any) -> Rotation:
    """Return the frequencies as the library computes them, so that every way of scaling them is its own."""
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    kind = config.rope_parameters["rope_type"]
    if kind in ("dynamic", "longrope"):
        raise ModelError(
            f"model {spec.name} has rope_type={kind}, whose frequencies change with the length of a text; "
            f"it is not built in TensorFlow here"
        )
    compute: Any = LlamaRotaryEmbedding.compute_default_rope_parameters
    frequencies, scaling = (compute if kind == "default" else ROPE_INIT_FUNCTIONS[kind])(config)
    if 2 * len(frequencies) != spec.head_dim:
        raise ModelError(
            f"model {spec.name} rotates {2 * len(frequencies)} of head_dim={spec.head_dim} numbers; "
            f"only whole heads are rotated in TensorFlow here"
        )
    return Rotation(frequencies=tuple(frequencies.tolist()), scaling=float(scaling))


def _windows(spec: ModelSpec, config: Any) -> tuple[int | None, ...]:
    size = getattr(config, "sliding_window", None)
    kinds = getattr(config, "layer_types", None) or ["sliding_attention"] * spec.num_layers
    return tuple(size if kind == "sliding_attention" else None for kind in kinds)
