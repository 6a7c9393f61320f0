"""The layers that decoders are made of, with the number formats of torch's autocast under a mixed policy.

Products are computed in 16 bits; sums of the residual stream, norms and softmax in fp32. Weights are shaped as PyTorch
has them, so that loading and saving copy.
"""

from __future__ import annotations

import keras
import tensorflow as tf


class Linear(keras.layers.Layer):
    """A matrix product, with a bias or without, in the policy's compute format."""

    def __init__(
        self, inputs: int, outputs: int, *, has_bias: bool, is_conv1d: bool = False, stddev: float, policy: str
    ) -> None:
        """``is_conv1d``: the weight is (inputs, outputs), as GPT-2 has it, else (outputs, inputs)."""
        super().__init__(dtype=policy, autocast=False)
        self._is_conv1d = is_conv1d
        self._outputs = outputs
        shape = (inputs, outputs) if is_conv1d else (outputs, inputs)
        self.weight = matrix(self, shape, stddev=stddev)
        self.bias = vector(self, "bias", outputs, value="zeros") if has_bias else None
        self.built = True

    def call(self, hidden: tf.Tensor) -> tf.Tensor:
        """Return (…, outputs) of (…, inputs)."""
        # As one product of two matrices: with three dimensions TensorFlow 2.21 makes the gradient of the weight for
        # every sample, and sums them then.
        rows = tf.reshape(tf.cast(hidden, self.compute_dtype), [-1, hidden.shape[-1]])
        weight = tf.cast(self.weight.value, self.compute_dtype)
        result = tf.matmul(rows, weight, transpose_b=not self._is_conv1d)
        if self.bias is not None:
            result += tf.cast(self.bias.value, self.compute_dtype)
        return tf.reshape(result, tf.concat([tf.shape(hidden)[:-1], [self._outputs]], axis=0))


class Embedding(keras.layers.Layer):
    """A table of vectors, fp32 out."""

    def __init__(self, rows: int, width: int, *, stddev: float, policy: str, fixed_id: int | None = None) -> None:
        """``fixed_id``: of the row that looking up does not train, as ``padding_idx`` of torch.nn.Embedding."""
        super().__init__(dtype=policy, autocast=False)
        self._fixed_id = fixed_id
        self.weight = matrix(self, (rows, width), stddev=stddev)
        self.built = True

    def call(self, ids: tf.Tensor) -> tf.Tensor:
        """Return (…, width) of (…,)."""
        vectors = tf.gather(self.weight.value, ids)
        if self._fixed_id is None:
            return vectors
        return tf.where(ids[..., None] == self._fixed_id, tf.stop_gradient(vectors), vectors)

    def logits(self, hidden: tf.Tensor) -> tf.Tensor:
        """Return the products with every row, in the policy's compute format: the head of a model with tied weights."""
        width = self.weight.shape[1]
        rows = tf.reshape(tf.cast(hidden, self.compute_dtype), [-1, width])
        products = tf.matmul(rows, tf.cast(self.weight.value, self.compute_dtype), transpose_b=True)
        return tf.reshape(products, tf.concat([tf.shape(hidden)[:-1], [self.weight.shape[0]]], axis=0))


class RmsNorm(keras.layers.Layer):
    """Zhang & Sennrich 2019, arXiv:1910.07467, in fp32; source: transformers 5.24, LlamaRMSNorm."""

    def __init__(self, width: int, *, epsilon: float) -> None:
        super().__init__(dtype="float32", autocast=False)
        self._epsilon = epsilon
        self.weight = vector(self, "weight", width, value="ones")
        self.built = True

    def call(self, hidden: tf.Tensor) -> tf.Tensor:
        """Return (…, width), fp32."""
        hidden = tf.cast(hidden, tf.float32)
        mean_square = tf.reduce_mean(tf.square(hidden), axis=-1, keepdims=True)
        return hidden * tf.math.rsqrt(mean_square + self._epsilon) * self.weight.value


class LayerNorm(keras.layers.Layer):
    """Ba et al. 2016, arXiv:1607.06450, in fp32, as torch.nn.LayerNorm."""

    def __init__(self, width: int, *, epsilon: float) -> None:
        super().__init__(dtype="float32", autocast=False)
        self._epsilon = epsilon
        self.weight = vector(self, "weight", width, value="ones")
        self.bias = vector(self, "bias", width, value="zeros")
        self.built = True

    def call(self, hidden: tf.Tensor) -> tf.Tensor:
        """Return (…, width), fp32."""
        hidden = tf.cast(hidden, tf.float32)
        centred = hidden - tf.reduce_mean(hidden, axis=-1, keepdims=True)
        variance = tf.reduce_mean(tf.square(centred), axis=-1, keepdims=True)
        return centred * tf.math.rsqrt(variance + self._epsilon) * self.weight.value + self.bias.value


def matrix(layer: keras.layers.Layer, shape: tuple[int, int], *, stddev: float) -> keras.Variable:
    """Return a new matrix of ``layer`` called weight, with random numbers."""
    initializer = keras.initializers.RandomNormal(stddev=stddev)
    return layer.add_weight(name="weight", shape=shape, initializer=initializer, autocast=False)


def vector(layer: keras.layers.Layer, name: str, size: int, *, value: str) -> keras.Variable:
    """Return a new vector of ``layer``, all ``zeros`` or ``ones``."""
    return layer.add_weight(name=name, shape=(size,), initializer=value, autocast=False)


def activate(name: str, hidden: tf.Tensor) -> tf.Tensor:
    """Return the activation that transformers calls ``name``."""
    match name:
        case "silu":
            return tf.nn.silu(hidden)
        case "relu":
            return tf.nn.relu(hidden)
        case "gelu":
            return tf.nn.gelu(hidden)
        case _:  # gelu_new and gelu_pytorch_tanh: Hendrycks & Gimpel 2016, arXiv:1606.08415, with the tanh
            return tf.nn.gelu(hidden, approximate=True)


def drop(hidden: tf.Tensor, share: float, seed: tf.Tensor | None, place: int) -> tf.Tensor:
    """Return ``hidden`` with a share of its numbers dropped and the others scaled up; without a seed as it is.

    The mask is a function of the seed and the place in the model, so that a recomputed forward drops the same.
    """
    if seed is None or not share:
        return hidden
    own = tf.random.experimental.stateless_fold_in(seed, place)
    return tf.nn.experimental.stateless_dropout(hidden, rate=share, seed=own)
