"""The repeated blocks of the two families."""

from __future__ import annotations

from dataclasses import dataclass

import keras
import tensorflow as tf

from scaling.tensorflow.attention import Angles, attend, rotate
from scaling.tensorflow.decoder_config import DecoderConfig
from scaling.tensorflow.layers import LayerNorm, Linear, RmsNorm, activate, drop

DROPS_PER_BLOCK = 3
"""Places in a block where dropout may be: the softmax, after attention, after the feed-forward layer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """What every block of one forward pass gets besides the hidden states."""

    biases: dict[int | None, tf.Tensor]
    """By window: what is added to the scores of attention."""
    angles: Angles | None
    dropout_seed: tf.Tensor | None


class LlamaBlock(keras.layers.Layer):
    """Attention with rotated queries and keys and a gated feed-forward layer, each after an RMS norm."""

    def __init__(self, config: DecoderConfig, *, layer: int, policy: str) -> None:
        super().__init__(dtype=policy, autocast=False)
        spec = config.spec
        self._config = config
        self._layer = layer

        def linear(name: str, inputs: int, outputs: int) -> Linear:
            has_bias = config.has(f"model.layers.{{layer}}.{name}.bias")
            return Linear(inputs, outputs, has_bias=has_bias, stddev=config.initializer_range, policy=policy)

        def norm(width: int) -> RmsNorm:
            return RmsNorm(width, epsilon=config.norm_epsilon)

        self.input_norm = norm(spec.hidden_size)
        self.query = linear("self_attn.q_proj", spec.hidden_size, spec.query_size)
        self.key = linear("self_attn.k_proj", spec.hidden_size, spec.key_value_size)
        self.value = linear("self_attn.v_proj", spec.hidden_size, spec.key_value_size)
        self.out = linear("self_attn.o_proj", spec.query_size, spec.hidden_size)
        has_head_norms = config.has("model.layers.{layer}.self_attn.q_norm.weight")
        self.query_norm = norm(spec.head_dim) if has_head_norms else None
        self.key_norm = norm(spec.head_dim) if has_head_norms else None
        self.mlp_norm = norm(spec.hidden_size)
        self.gate = linear("mlp.gate_proj", spec.hidden_size, spec.intermediate_size)
        self.up = linear("mlp.up_proj", spec.hidden_size, spec.intermediate_size)
        self.down = linear("mlp.down_proj", spec.intermediate_size, spec.hidden_size)
        self.built = True

    def call(self, hidden: tf.Tensor, *, shared: Shared) -> tf.Tensor:
        """Return (batch, seq, hidden) of the same, fp32."""
        hidden += tf.cast(self._attention(self.input_norm(hidden), shared), hidden.dtype)
        return hidden + tf.cast(self._feed_forward(self.mlp_norm(hidden)), hidden.dtype)

    def _attention(self, hidden: tf.Tensor, shared: Shared) -> tf.Tensor:
        query, key, value = (self._heads(each(hidden)) for each in (self.query, self.key, self.value))
        if self.query_norm is not None and self.key_norm is not None:
            query, key = self.query_norm(query), self.key_norm(key)
        assert shared.angles is not None
        mixed = attend(
            rotate(query, shared.angles),
            rotate(key, shared.angles),
            value,
            bias=shared.biases[self._config.windows[self._layer]],
            dropout=self._config.dropouts.attention,
            seed=shared.dropout_seed,
            place=self._layer * DROPS_PER_BLOCK,
        )
        return self.out(mixed)

    def _heads(self, projected: tf.Tensor) -> tf.Tensor:
        head_dim = self._config.spec.head_dim
        shape = tf.concat([tf.shape(projected)[:-1], [projected.shape[-1] // head_dim, head_dim]], axis=0)
        return tf.ensure_shape(tf.reshape(projected, shape), [None, None, projected.shape[-1] // head_dim, head_dim])

    def _feed_forward(self, hidden: tf.Tensor) -> tf.Tensor:
        return self.down(activate(self._config.activation, self.gate(hidden)) * self.up(hidden))


class Gpt2Block(keras.layers.Layer):
    """Attention and a feed-forward layer, each after a layer norm; the three projections are one matrix."""

    def __init__(self, config: DecoderConfig, *, layer: int, policy: str) -> None:
        super().__init__(dtype=policy, autocast=False)
        spec = config.spec
        self._config = config
        self._layer = layer
        # Radford et al. 2019, section 2.3: the layers that add to the residual stream start smaller.
        smaller = config.initializer_range / (2 * spec.num_layers) ** 0.5

        def linear(inputs: int, outputs: int, stddev: float = config.initializer_range) -> Linear:
            return Linear(inputs, outputs, has_bias=True, is_conv1d=True, stddev=stddev, policy=policy)

        self.attention_norm = LayerNorm(spec.hidden_size, epsilon=config.norm_epsilon)
        self.projections = linear(spec.hidden_size, 3 * spec.hidden_size)
        self.out = linear(spec.hidden_size, spec.hidden_size, smaller)
        self.mlp_norm = LayerNorm(spec.hidden_size, epsilon=config.norm_epsilon)
        self.up = linear(spec.hidden_size, spec.intermediate_size)
        self.down = linear(spec.intermediate_size, spec.hidden_size, smaller)
        self.built = True

    def call(self, hidden: tf.Tensor, *, shared: Shared) -> tf.Tensor:
        """Return (batch, seq, hidden) of the same, fp32."""
        first = self._layer * DROPS_PER_BLOCK
        residual, seed = self._config.dropouts.residual, shared.dropout_seed
        added = drop(self._attention(self.attention_norm(hidden), shared), residual, seed, first + 1)
        hidden += tf.cast(added, hidden.dtype)
        added = drop(self._feed_forward(self.mlp_norm(hidden)), residual, seed, first + 2)
        return hidden + tf.cast(added, hidden.dtype)

    def _attention(self, hidden: tf.Tensor, shared: Shared) -> tf.Tensor:
        spec = self._config.spec
        projected = self.projections(hidden)
        shape = [tf.shape(hidden)[0], tf.shape(hidden)[1], 3, spec.num_attention_heads, spec.head_dim]
        query, key, value = tf.unstack(tf.reshape(projected, shape), axis=2)
        mixed = attend(
            query,
            key,
            value,
            bias=shared.biases[None],
            dropout=self._config.dropouts.attention,
            seed=shared.dropout_seed,
            place=self._layer * DROPS_PER_BLOCK,
        )
        return self.out(mixed)

    def _feed_forward(self, hidden: tf.Tensor) -> tf.Tensor:
        return self.down(activate(self._config.activation, self.up(hidden)))
