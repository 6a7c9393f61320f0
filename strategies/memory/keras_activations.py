"""Activations of our Keras decoders under ``tf.function``: what forward keeps, and the highest moments.

A graph keeps of forward what an operator of backward reads, and frees a tensor with its last reader. The forms say what
that is for scaling/tensorflow/decoder.py; see docs/tensorflow.md for what they were checked against.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from strategies.memory.features import sizes_of
from strategies.memory.stretches import NO_BYTES, Bytes, Moments, Setting, Stretch
from strategies.model_spec import ModelSpec
from strategies.plan import ActivationCheckpointing

KERAS_FP32 = "keras-fp32"
KERAS_MIXED = "keras-mixed"
KERAS_FORMATS = (KERAS_FP32, KERAS_MIXED)

Form = Mapping[str, float]
"""Bytes by product of sizes, named as in `strategies.memory.features`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KerasForms:
    """One family in one number format."""

    kept: Form
    """By a block, from its forward to its backward."""
    block_input: Form
    """All that a block keeps with activation checkpointing."""
    working: Form
    """Beside what is kept, at the highest moment of a block's forward or backward."""
    base: Form
    """From before the first block, or behind the last one, to backward."""
    logits_forward: Form
    logits_backward: Form
    logits_evaluation: Form


FORMS: Mapping[tuple[str, str], KerasForms] = {
    ("llama", KERAS_FP32): KerasForms(
        kept={"B*S*h": 24, "B*S*q": 12, "B*S*k": 8, "B*S*f": 16, "B*S*S*n": 4, "B*S": 8},
        block_input={"B*S*h": 4},
        working={"B*S*h": 8, "B*S*S*n": 8},
        base={"B*S*h": 12, "B*S": 12},
        logits_forward={"B*S*V": 8},
        logits_backward={"B*S*V": 8},
        logits_evaluation={"B*S*V": 8},
    ),
    ("llama", KERAS_MIXED): KerasForms(
        kept={"B*S*h": 24, "B*S*q": 6, "B*S*k": 4, "B*S*f": 8, "B*S*S*n": 6, "B*S": 8},
        block_input={"B*S*h": 2},
        working={"B*S*h": 8, "B*S*S*n": 8},
        base={"B*S*h": 12, "B*S": 12},
        logits_forward={"B*S*V": 10},
        logits_backward={"B*S*V": 10},
        logits_evaluation={"B*S*V": 10},
    ),
}


def keras_moments(spec: ModelSpec, setting: Setting, *, micro_batch_size: int) -> Moments:
    """Return the moments of one forward, backward and evaluation of a Keras decoder."""
    forms = FORMS["llama", setting.number_format]
    sizes = sizes_of(spec, micro_batch_size=micro_batch_size, seq_len=setting.seq_len)
    is_recomputed = setting.activation_checkpointing is ActivationCheckpointing.FULL
    block = _bytes(forms.kept, sizes)
    one = _bytes(forms.block_input, sizes) if is_recomputed else block
    kept = Bytes(activations=spec.num_layers * one)
    base = Bytes(activations=_bytes(forms.base, sizes))
    working = Bytes(activations=_bytes(forms.working, sizes), recomputed_block=block if is_recomputed else 0)
    rest = kept.plus(Bytes(activations=one), times=-1)
    return {
        **{stretch: (NO_BYTES,) for stretch in Stretch},
        Stretch.KEPT: (kept,),
        Stretch.FORWARD: (
            kept.plus(base).plus(Bytes(logits=_bytes(forms.logits_forward, sizes))),
            rest.plus(Bytes(activations=block)).plus(working),
        ),
        Stretch.BEFORE_FIRST_GRADIENT: (kept.plus(base).plus(Bytes(logits=_bytes(forms.logits_backward, sizes))),),
        Stretch.AFTER_FIRST_GRADIENT: (kept.plus(base),),
        Stretch.AFTER_HEAD: (kept.plus(base),),
        Stretch.LAST_BLOCK: (kept.plus(working),),
        Stretch.FIRST_BLOCK: (Bytes(activations=one).plus(working),),
        Stretch.EVALUATION: (base.plus(Bytes(logits=_bytes(forms.logits_evaluation, sizes))),),
        Stretch.BLOCK_IN_EVALUATION: (working.plus(Bytes(activations=block)),),
    }


def _bytes(form: Form, sizes: Mapping[str, int]) -> int:
    return round(sum(coefficient * _product(name, sizes) for name, coefficient in form.items()))


def _product(name: str, sizes: Mapping[str, int]) -> int:
    product = 1
    for letter in name.split("*"):
        product *= sizes[letter]
    return product
