"""Activations of our Keras decoders under ``tf.function``: what forward keeps, and the highest moments.

A graph keeps of forward what an operator of backward reads, and frees a tensor with its last reader. What is kept was
counted operator by operator for scaling/tensorflow/{blocks,attention,layers}.py: norms and softmax keep fp32 under
every policy, products their 16-bit inputs, and the 16-bit copy of a weight lives from forward to backward. The working
tensors beside it were read off runs on CPUs. docs/tensorflow.md has what both were checked against.
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

    attention: Form
    """Kept by the attention half of a block, with the norm before it, from forward to backward."""
    feed_forward: Form
    """Likewise by the other half."""
    weights: Form
    """16-bit copies of a block's matrices, likewise."""
    in_attention: Form
    """Beside what is kept, at the highest moment of attention's backward: gradients of scores, copies of operands. Read
    off runs whose scores are large."""
    in_feed_forward: Form
    attention_alone: Form
    """Of a forward that keeps nothing, at its highest moment in attention."""
    feed_forward_alone: Form
    logits: Form
    """At the highest moment of the loss: the logits in fp32, and their gradient, which forward makes already."""


BLOCK_INPUT: Form = {"B*S*h": 4}
"""The residual stream is fp32: all that a recomputed block keeps."""
BASE: Form = {"B*S*h": 12, "B*S": 12, "S*S": 4}
"""The last norm, and the mask of attention."""
_SCORES_FP32, _SCORES_MIXED = 4, 6
"""Bytes a score: the fp32 softmax, and under a mixed policy its 16-bit copy for the product with the values."""

_LLAMA = {
    KERAS_FP32: KerasForms(
        attention={"B*S*h": 12, "B*S*q": 8, "B*S*k": 8, "B*S*S*n": _SCORES_FP32, "B*S": 4},
        feed_forward={"B*S*h": 12, "B*S*f": 16, "B*S": 4},
        weights={},
        in_attention={"B*S*S*n": 24, "B*S*h": 8, "B*S*q": 8},
        in_feed_forward={"B*S*h": 8, "B*S*f": 12},
        attention_alone={"B*S*S*n": 10, "B*S*h": 12, "B*S*q": 4, "B*S*k": 8},
        feed_forward_alone={"B*S*h": 12, "B*S*f": 12},
        logits={"B*S*V": 8},
    ),
    KERAS_MIXED: KerasForms(
        attention={"B*S*h": 10, "B*S*q": 4, "B*S*k": 4, "B*S*S*n": _SCORES_MIXED, "B*S": 4},
        feed_forward={"B*S*h": 10, "B*S*f": 8, "B*S": 4},
        weights={"h*q": 4, "h*k": 4, "h*f": 6},
        in_attention={"B*S*S*n": 18, "B*S*h": 8, "B*S*q": 8},
        in_feed_forward={"B*S*h": 8, "B*S*f": 6},
        attention_alone={"B*S*S*n": 8, "B*S*h": 10, "B*S*q": 4, "B*S*k": 4},
        feed_forward_alone={"B*S*h": 10, "B*S*f": 6},
        logits={"B*S*V": 8},
    ),
}
_GPT2 = {
    KERAS_FP32: KerasForms(
        attention={"B*S*h": 32, "B*S*S*n": _SCORES_FP32, "B*S": 4},
        feed_forward={"B*S*h": 16, "B*S*f": 20, "B*S": 4},
        weights={},
        in_attention={"B*S*S*n": 24, "B*S*h": 20},
        in_feed_forward={"B*S*h": 8, "B*S*f": 12},
        attention_alone={"B*S*S*n": 10, "B*S*h": 12, "B*S*q": 4, "B*S*k": 8},
        feed_forward_alone={"B*S*h": 12, "B*S*f": 12},
        logits={"B*S*V": 8},
    ),
    KERAS_MIXED: KerasForms(
        attention={"B*S*h": 22, "B*S*S*n": _SCORES_MIXED, "B*S": 4},
        feed_forward={"B*S*h": 14, "B*S*f": 12, "B*S": 4},
        weights={"h*h": 8, "h*f": 4},
        in_attention={"B*S*S*n": 18, "B*S*h": 14},
        in_feed_forward={"B*S*h": 8, "B*S*f": 6},
        attention_alone={"B*S*S*n": 8, "B*S*h": 10, "B*S*q": 4, "B*S*k": 4},
        feed_forward_alone={"B*S*h": 10, "B*S*f": 6},
        logits={"B*S*V": 8},
    ),
}


def keras_moments(spec: ModelSpec, setting: Setting, *, micro_batch_size: int) -> Moments:
    """Return the moments of one forward, backward and evaluation of a Keras decoder."""
    sizes = sizes_of(spec, micro_batch_size=micro_batch_size, seq_len=setting.seq_len)
    forms = (_GPT2 if spec.family == "gpt2" else _LLAMA)[setting.number_format]
    return _Evaluation(spec, setting, forms, sizes).moments()


class _Evaluation:
    """Evaluates the forms of one model and setting."""

    def __init__(self, spec: ModelSpec, setting: Setting, forms: KerasForms, sizes: Mapping[str, int]) -> None:
        def value(form: Form) -> int:
            return _value(form, sizes)

        self.feed_forward = value(forms.feed_forward)
        self.block = value(forms.attention) + self.feed_forward + value(forms.weights)
        self.in_attention, self.in_feed_forward = value(forms.in_attention), value(forms.in_feed_forward)
        self.alone = tuple(Bytes(activations=value(form)) for form in (forms.attention_alone, forms.feed_forward_alone))
        self.logits, self.base = Bytes(logits=value(forms.logits)), Bytes(activations=value(BASE))
        checkpoints = setting.activation_checkpointing is ActivationCheckpointing.FULL
        self.num_checkpointed = -(-spec.num_layers // setting.checkpoint_every) if checkpoints else 0
        self.num_plain = spec.num_layers - self.num_checkpointed
        self.input = value(BLOCK_INPUT)

    def moments(self) -> Moments:
        kept = Bytes(activations=self.num_plain * self.block + self.num_checkpointed * self.input)
        at_loss = kept.plus(self.base).plus(self.logits)
        first = Bytes(activations=self.input if self.num_checkpointed else self.block)
        return {
            **{stretch: (NO_BYTES,) for stretch in Stretch},
            Stretch.KEPT: (kept,),
            Stretch.FIRST_BLOCK_IN_FORWARD: tuple(self.base.plus(each) for each in self.alone),
            Stretch.FORWARD: (at_loss,),
            Stretch.BEFORE_FIRST_GRADIENT: (at_loss,),
            Stretch.AFTER_FIRST_GRADIENT: (kept.plus(self.base),),
            Stretch.AFTER_HEAD: (kept.plus(self.base),),
            Stretch.LAST_BLOCK: tuple(kept.plus(moment) for moment in self._in_backward()),
            Stretch.FIRST_BLOCK: tuple(first.plus(moment) for moment in self._in_backward()),
            Stretch.EVALUATION: (self.base.plus(self.logits),),
            Stretch.BLOCK_IN_EVALUATION: tuple(self.base.plus(each) for each in self.alone),
        }

    def _in_backward(self) -> tuple[Bytes, Bytes]:
        """Return what comes on top of what is kept, in the two halves of a block's backward.

        Attention's comes when the other half has given back what it kept.
        """
        if self.num_checkpointed:
            return (
                Bytes(activations=self.in_feed_forward, recomputed_block=self.block),
                Bytes(activations=self.in_attention, recomputed_block=self.block - self.feed_forward),
            )
        return (
            Bytes(activations=self.in_feed_forward),
            Bytes(activations=self.in_attention - self.feed_forward),
        )


def _value(form: Form, sizes: Mapping[str, int]) -> int:
    return round(sum(coefficient * _product(name, sizes) for name, coefficient in form.items()))


def _product(name: str, sizes: Mapping[str, int]) -> int:
    product = 1
    for letter in name.split("*"):
        product *= sizes[letter]
    return product
