"""`Decoder`: a Hugging Face decoder as a Keras model, with the same numbers from the same weights."""

from __future__ import annotations

from typing import final

import keras
import tensorflow as tf

from scaling.errors import ModelError
from scaling.tensorflow.attention import angles, causal_bias
from scaling.tensorflow.blocks import DROPS_PER_BLOCK, Gpt2Block, LlamaBlock, Shared
from scaling.tensorflow.decoder_config import DecoderConfig, read_decoder_config
from scaling.tensorflow.layers import Embedding, LayerNorm, Linear, RmsNorm, drop
from scaling.tensorflow.precision import policy_of
from strategies.job import Precision
from strategies.load_model import ResolvedModel
from strategies.plan import ActivationCheckpointing


def build_decoder(
    resolved: ResolvedModel,
    *,
    precision: Precision = Precision.FP32,
    activation_checkpointing: ActivationCheckpointing = ActivationCheckpointing.NONE,
    checkpoint_every: int = 1,
) -> Decoder:
    """Return the decoder with random weights, all of which exist: build it in the scope of the strategy that trains it.

    The random numbers are not PyTorch's: load the weights of a PyTorch model to compare with it.

    Raises:
        ModelError: a family or setting that is not built in TensorFlow here, selective checkpointing among them.
        EngineError: a precision that Keras does not know.
    """
    if activation_checkpointing is ActivationCheckpointing.SELECTIVE:
        raise ModelError(
            "activation_checkpointing=selective cannot be had in TensorFlow, which recomputes whole functions; "
            "plan with full or none"
        )
    is_checkpointed = activation_checkpointing is ActivationCheckpointing.FULL
    return Decoder(
        read_decoder_config(resolved),
        resolved=resolved,
        policy=policy_of(precision),
        checkpoint_every=checkpoint_every if is_checkpointed else 0,
    )


@final
class Decoder(keras.Model):
    """Token ids to logits. Every weight has the shape that PyTorch gives it."""

    def __init__(self, config: DecoderConfig, *, resolved: ResolvedModel, policy: str, checkpoint_every: int) -> None:
        """``checkpoint_every``: blocks 0, k, 2k, … keep their input only; 0: none do."""
        super().__init__(dtype=policy, autocast=False)
        spec = config.spec
        self.config = config
        self.resolved = resolved
        self._checkpoint_every = checkpoint_every
        width, stddev = spec.hidden_size, config.initializer_range
        self.embedding = Embedding(
            spec.vocab_size, width, stddev=stddev, policy=policy, fixed_id=config.fixed_embedding_id
        )
        has_positions = config.rotation is None
        self.positions = (
            Embedding(spec.max_seq_len or 0, width, stddev=stddev, policy=policy) if has_positions else None
        )
        block, norm = (Gpt2Block, LayerNorm) if has_positions else (LlamaBlock, RmsNorm)
        self.blocks = [block(config, layer=layer, policy=policy) for layer in range(spec.num_layers)]
        self.norm = norm(width, epsilon=config.norm_epsilon)
        has_head = not spec.tied_embeddings
        self.head = Linear(width, spec.vocab_size, has_bias=False, stddev=stddev, policy=policy) if has_head else None
        self.built = True

    def call(self, ids: tf.Tensor, dropout_seed: tf.Tensor | None = None) -> tf.Tensor:
        """Return logits (batch, seq, vocab) of (batch, seq), in the compute format; dropout with a seed only."""
        seq_len = tf.shape(ids)[1]
        hidden = self.embedding(ids)
        if self.positions is not None:
            hidden += self.positions(tf.range(seq_len))
        place = len(self.blocks) * DROPS_PER_BLOCK
        hidden = drop(hidden, self.config.dropouts.embedding, dropout_seed, place)
        rotation = self.config.rotation
        shared = Shared(
            biases={window: causal_bias(seq_len, window) for window in set(self.config.windows)},
            angles=angles(rotation, seq_len) if rotation else None,
            dropout_seed=dropout_seed,
        )
        for index in range(len(self.blocks)):
            hidden = self._run_block(index, hidden, shared)
        hidden = self.norm(hidden)
        return self.embedding.logits(hidden) if self.head is None else self.head(hidden)

    def _run_block(self, index: int, hidden: tf.Tensor, shared: Shared) -> tf.Tensor:
        block = self.blocks[index]
        if not self._checkpoint_every or index % self._checkpoint_every:
            return block(hidden, shared=shared)
        return tf.recompute_grad(lambda kept: block(kept, shared=shared))(hidden)
