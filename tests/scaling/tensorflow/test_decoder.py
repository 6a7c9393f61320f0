"""The Keras decoder against transformers' model from the same weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import torch

from scaling.errors import EngineError, ModelError
from scaling.tensorflow.decoder import Decoder, build_decoder
from scaling.tensorflow.losses import next_token_loss_sum
from scaling.tensorflow.weights import load_hugging_face, parameters_by_name
from strategies.job import Precision
from strategies.load_model import ResolvedModel, resolve_model
from strategies.plan import ActivationCheckpointing
from tests.scaling.tensorflow.models import MODELS, resolved, tokens, torch_model

pytestmark = pytest.mark.tensorflow


def both(model: ResolvedModel, **settings: Any) -> tuple[Any, Decoder]:
    theirs, ours = torch_model(model), build_decoder(model, **settings)
    load_hugging_face(ours, theirs)
    return theirs, ours


@pytest.mark.parametrize("name", MODELS)
def test_logits_match_transformers(name: str) -> None:
    theirs, ours = both(resolved(name))
    ids = tokens((3, 17))
    with torch.no_grad():
        expected = theirs(input_ids=torch.from_numpy(ids).long()).logits.numpy()
    assert np.abs(ours(ids).numpy() - expected).max() <= 1e-4
    assert np.abs(expected).max() > 1.0


@pytest.mark.parametrize("name", MODELS)
def test_gradients_match_transformers(name: str) -> None:
    """Of every parameter, a tied one and an embedding with repeated tokens included."""
    theirs, ours = both(resolved(name))
    ids = np.concatenate([tokens((2, 12)), np.full((2, 5), 7, np.int32)], axis=1)
    theirs(input_ids=torch.from_numpy(ids).long(), labels=torch.from_numpy(ids).long()).loss.backward()
    expected = {each: parameter.grad for each, parameter in theirs.named_parameters()}
    found = gradients(ours, ids)
    assert found.keys() == expected.keys()
    for each, gradient in found.items():
        assert np.abs(gradient / (2 * 16) - expected[each].numpy()).max() <= 1e-5, each


DROPOUT = {"llama": {"attention_dropout": 0.3}, "gpt2": {"attn_pdrop": 0.3, "resid_pdrop": 0.3, "embd_pdrop": 0.3}}


@pytest.mark.parametrize("every", [1, 2])
@pytest.mark.parametrize("name", DROPOUT)
def test_checkpointed_gradients_are_the_same_with_dropout(name: str, every: int) -> None:
    """The recomputed forward must drop what the first one dropped."""
    model, ids = resolved(name, **DROPOUT[name]), tokens((2, 9))
    _, plain = both(model)
    _, checkpointed = both(model, activation_checkpointing=ActivationCheckpointing.FULL, checkpoint_every=every)
    seed, other_seed = tf.constant([1, 2], tf.int64), tf.constant([1, 3], tf.int64)
    expected, other = gradients(plain, ids, seed), gradients(plain, ids, other_seed)
    for each, gradient in gradients(checkpointed, ids, seed).items():
        size = np.abs(expected[each]).max()
        assert np.abs(gradient - expected[each]).max() <= 1e-5 * size, each  # sums in another order
        assert np.abs(other[each] - expected[each]).max() > 1e-2 * size, each


def gradients(model: Decoder, ids: Any, seed: Any = None) -> dict[str, Any]:
    parameters = parameters_by_name(model)

    @tf.function
    def compute() -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            loss = next_token_loss_sum(model(ids, dropout_seed=seed), tf.constant(ids))
        return [tf.convert_to_tensor(each) for each in tape.gradient(loss, [v.value for v in parameters.values()])]

    return {name: each.numpy() for name, each in zip(parameters, compute(), strict=True)}


def test_mixed_policies_keep_fp32_weights_and_stay_close() -> None:
    model, ids = resolved("llama"), tokens((2, 9))
    theirs, exact = both(model)
    expected = exact(ids).numpy()
    for precision, dtype, bound in (
        (Precision.BF16_AUTOCAST, tf.bfloat16, 0.2),
        (Precision.FP16_AUTOCAST, tf.float16, 0.02),
    ):
        mixed = build_decoder(model, precision=precision)
        load_hugging_face(mixed, theirs)
        logits = mixed(ids)
        assert logits.dtype == dtype
        assert all(variable.dtype == "float32" for variable in parameters_by_name(mixed).values())
        assert 0 < np.abs(tf.cast(logits, tf.float32).numpy() - expected).max() < bound


def test_what_is_not_built_is_refused() -> None:
    with pytest.raises(ModelError, match="model_type=opt, which is not built in TensorFlow"):
        build_decoder(resolve_model("opt-125m"))
    with pytest.raises(ModelError, match="scale_attn_by_inverse_layer_idx=True, which is not built"):
        build_decoder(resolved("gpt2", scale_attn_by_inverse_layer_idx=True))
    with pytest.raises(ModelError, match="rope_type=dynamic, whose frequencies change"):
        build_decoder(resolved("llama", rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}))
    with pytest.raises(ModelError, match="activation tanh, which is not built"):
        build_decoder(resolved("gpt2", activation_function="tanh"))
    with pytest.raises(ModelError, match="activation_checkpointing=selective cannot be had in TensorFlow"):
        build_decoder(resolved("llama"), activation_checkpointing=ActivationCheckpointing.SELECTIVE)
    with pytest.raises(EngineError, match="precision=bf16 cannot be trained in TensorFlow; plan again with fp32 or"):
        build_decoder(resolved("llama"), precision=Precision.BF16)
