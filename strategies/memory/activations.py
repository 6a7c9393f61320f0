"""Activations and logits of one forward and backward: the highest moments, in bytes by part.

Every figure is a form of `strategies.memory.forms`, exact for the modelling code of transformers 5.24 with torch 2.13
at the shapes traced; see ``docs/memory.md``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from strategies.adapt import BLOCKS_FROZEN
from strategies.errors import SpecError
from strategies.job import LossImplementation
from strategies.memory.features import sizes_of
from strategies.memory.forms import BlockForms, Form, FormSet, Level, form_set, has_two_stacks, kinds_of
from strategies.memory.frozen_blocks import reached, require_known_backward
from strategies.memory.keras_activations import KERAS_FORMATS, keras_moments
from strategies.memory.stretches import NO_BYTES, Affine, Bytes, Levels, Moments, Setting, Stretch
from strategies.model_spec import ModelSpec
from strategies.plan import ActivationCheckpointing


def activation_levels(spec: ModelSpec, setting: Setting, *, micro_batch_size: int) -> Levels:
    """Return the moments of one forward, backward and evaluation.

    They hold for any number of samples, since every form is affine in it; but not those of the fused loss, whose chunks
    jump from one power of two to the next.

    Raises:
        SpecError: there are no forms for the model on this device.
    """
    if setting.loss is LossImplementation.FUSED:
        return _fused_levels(spec, setting, micro_batch_size)
    return _levels(spec, setting)


@lru_cache(maxsize=4096)
def _levels(spec: ModelSpec, setting: Setting) -> Levels:
    one, two = (_moments(spec, setting, micro_batch_size=size) for size in (1, 2))
    return {
        stretch: tuple(
            _affine(before, after.plus(before, times=-1))
            for before, after in zip(one[stretch], two[stretch], strict=True)
        )
        for stretch in Stretch
    }


@lru_cache(maxsize=4096)
def _fused_levels(spec: ModelSpec, setting: Setting, micro_batch_size: int) -> Levels:
    moments = _moments(spec, setting, micro_batch_size=micro_batch_size)
    return {stretch: tuple(_affine(each, NO_BYTES) for each in moments[stretch]) for stretch in Stretch}


def _affine(one: Bytes, per_sample: Bytes) -> Affine:
    return Affine(one.total, per_sample.total, one.gradients, per_sample.gradients, one, per_sample)


def _moments(spec: ModelSpec, setting: Setting, *, micro_batch_size: int) -> Moments:
    if setting.number_format in KERAS_FORMATS:
        return keras_moments(spec, setting, micro_batch_size=micro_batch_size)
    require_known_backward(spec, checkpointing=setting.activation_checkpointing, number_format=setting.number_format)
    forms = form_set(spec, number_format=setting.number_format, on_cpu=setting.on_cpu)
    sizes = sizes_of(spec, micro_batch_size=micro_batch_size, seq_len=setting.seq_len)
    evaluation = _Evaluation(spec, setting, forms, sizes)
    return evaluation.moments_of_head() if spec.trained_parts == BLOCKS_FROZEN else evaluation.moments()


class _Block(NamedTuple):
    """A kind of block in one model."""

    number: int
    above: Bytes
    """Kept by blocks of other kinds after the last one of this kind."""
    below: Bytes
    """Kept by blocks before the first one of this kind."""
    forms: BlockForms
    is_upper: bool = False
    """Of the upper one of two stacks: when its embedding's gradient is there, backward goes on in the other."""


class _Evaluation:
    """Evaluates the forms of one model and setting."""

    def __init__(self, spec: ModelSpec, setting: Setting, forms: FormSet, sizes: Mapping[str, int]) -> None:
        self.setting, self.sizes = setting, sizes
        self._products: dict[str, int] = {}
        self.head = forms.head(setting.loss)
        self.blocks = list(self._blocks(spec, forms))

    def moments(self) -> Moments:
        kept, in_forward, evaluation = (self._sum(name) for name in ("kept", "kept_in_forward", "evaluation_kept"))
        forward_base = in_forward.plus(self._base("forward_base"))
        backward_base = kept.plus(self._base("backward_base"))
        evaluation_base = evaluation.plus(self._base("evaluation_base"))
        forward, again = self._in_blocks("forward"), self._in_blocks("evaluation")
        bottom = [(block, level) for block in self.blocks for level in block.forms.bottom]
        without_tied = kept.plus(self._base("backward_base", _without_tied_gradient))
        found: dict[Stretch, Iterable[Bytes]] = {
            Stretch.KEPT: (kept,),
            Stretch.FIRST_BLOCK_IN_FORWARD: forward,
            Stretch.BESIDE_BLOCKS_IN_FORWARD: (self._base("forward_base"),),
            Stretch.BESIDE_LAST_BLOCK_IN_FORWARD: (
                forward_base.plus(self._bytes(self.blocks[-1].forms.kept_in_forward), times=-1),
            ),
            Stretch.BESIDE_BLOCKS_IN_EVALUATION: (self._base("evaluation_base"),),
            Stretch.FORWARD: (
                *self._on(forward_base, self.head.forward),
                *self._on(kept.plus(self._base("forward_base")), self.head.after_model),
                *(
                    self._bytes(level).plus(in_forward).plus(block.above, times=-1)
                    for block in self.blocks
                    for level in block.forms.forward
                ),
            ),
            Stretch.BEFORE_FIRST_GRADIENT: self._on(backward_base, self.head.before_gradient),
            Stretch.AFTER_FIRST_GRADIENT: (without_tied, *self._on(without_tied, self.head.after_gradient)),
            Stretch.AFTER_HEAD: (without_tied,),
            Stretch.LAST_BLOCK: (
                self._bytes(_without_tied_gradient(level)).plus(kept).plus(block.above, times=-1)
                for block in self.blocks
                for level in block.forms.top
            ),
            Stretch.FIRST_BLOCK: (
                self._bytes(_without_tied_gradient(level)).plus(block.below)
                for block, level in bottom
                if block.is_upper or not _is_embedding(level)
            ),
            Stretch.EMBEDDING: [
                self._bytes(_without_tied_gradient(level))
                for block, level in bottom
                if _is_embedding(level) and not block.is_upper
            ]
            or (NO_BYTES,),
            Stretch.BLOCK_IN_EVALUATION: again,
            Stretch.EVALUATION: (
                *self._on(evaluation_base, self.head.evaluation),
                *self._on(self._base("evaluation_base"), self.head.evaluation_after_model),
                *(level.plus(evaluation) for level in again),
            ),
        }
        return {stretch: tuple(moments) for stretch, moments in found.items()}

    def moments_of_head(self) -> Moments:
        """Return the moments where all blocks are frozen: they run as in an evaluation; backward ends in the head."""
        base, in_blocks = self._base("evaluation_base"), tuple(self._in_blocks("evaluation"))
        forward = (*self._on(base, self.head.forward), *in_blocks)
        found: dict[Stretch, tuple[Bytes, ...]] = {stretch: (NO_BYTES,) for stretch in Stretch}
        return found | {
            Stretch.FIRST_BLOCK_IN_FORWARD: in_blocks,
            Stretch.BESIDE_BLOCKS_IN_FORWARD: (base,),
            Stretch.FORWARD: forward,
            Stretch.BEFORE_FIRST_GRADIENT: tuple(self._on(base, self.head.before_gradient)),
            Stretch.AFTER_FIRST_GRADIENT: (base, *self._on(base, self.head.after_gradient)),
            Stretch.AFTER_HEAD: (base,),
            Stretch.BLOCK_IN_EVALUATION: in_blocks,
            Stretch.BESIDE_BLOCKS_IN_EVALUATION: (base,),
            Stretch.EVALUATION: (*self._on(base, self.head.evaluation), *in_blocks),
        }

    def _in_blocks(self, name: str) -> list[Bytes]:
        return [self._bytes(level) for block in self.blocks for level in getattr(block.forms, name)]

    def _blocks(self, spec: ModelSpec, forms: FormSet) -> Iterator[_Block]:
        setting = self.setting
        kinds = reached(kinds_of(spec, attention=setting.attention, seq_len=setting.seq_len, forms=forms), spec)
        every, chosen = setting.checkpoint_every, setting.activation_checkpointing
        if has_two_stacks(spec):
            yield from self._two_stacks(kinds, forms)
            return
        for kind, number in kinds.items():
            if chosen is ActivationCheckpointing.NONE or every == 1:
                yield _Block(number, Bytes(), Bytes(), forms.block(kind, chosen))
                continue
            yield from self._mixed(
                number, every, forms.block(kind, chosen), forms.block(kind, ActivationCheckpointing.NONE)
            )

    def _two_stacks(self, kinds: Mapping[str, int], forms: FormSet) -> Iterator[_Block]:
        """Yield the blocks of the encoder and of the decoder, which runs after it."""
        chosen, every = self.setting.activation_checkpointing, self.setting.checkpoint_every
        if chosen is not ActivationCheckpointing.NONE and every > 1:
            raise SpecError(f"model {forms.model}: no closed form for two stacks with checkpoint_every={every}; give 1")
        (low, number), (high, number_above) = ((forms.block(kind, chosen), each) for kind, each in kinds.items())
        above, below = Bytes().plus(self._bytes(high.kept), times=number_above), Bytes()
        yield _Block(number, above, below, low)
        yield _Block(number_above, below, below.plus(self._bytes(low.kept), times=number), high, is_upper=True)

    def _mixed(self, number: int, every: int, checkpointed: BlockForms, plain: BlockForms) -> Iterator[_Block]:
        """Yield both kinds where blocks 0, k, 2k ... are checkpointed."""
        num_checkpointed = -(-number // every)
        after = number - 1 - (num_checkpointed - 1) * every
        first, other = self._bytes(checkpointed.kept), self._bytes(plain.kept)
        yield _Block(num_checkpointed, Bytes().plus(other, times=after), Bytes(), checkpointed)
        if number > num_checkpointed:
            yield _Block(number - num_checkpointed, Bytes() if after else first, first, plain)

    def _sum(self, name: str) -> Bytes:
        total = Bytes()
        for block in self.blocks:
            total = total.plus(self._bytes(getattr(block.forms, name)), times=block.number)
        return total

    def _base(self, name: str, change: Callable[[Level], Level] = lambda level: level) -> Bytes:
        bases = (self._bytes(change(getattr(block.forms, name))) for block in self.blocks)
        return max(bases, key=lambda base: base.total)

    def _on(self, base: Bytes, levels: Sequence[Level]) -> Iterator[Bytes]:
        return (base.plus(self._bytes(level)) for level in levels)

    def _bytes(self, level: Level) -> Bytes:
        return Bytes(**{part: self._value(form) for part, form in level.items()})

    def _value(self, form: Form) -> int:
        return round(sum(coefficient * self._product(name) for name, coefficient in form.items()))

    def _product(self, name: str) -> int:
        known = self._products.get(name)
        if known is None:
            known = 1
            for letter in name.split("*"):
                known *= 1 if letter == "1" else self.sizes[letter]
            self._products[name] = known
        return known


_VOCABULARY_MATRIX = "V*h"


def _is_embedding(level: Level) -> bool:
    return _VOCABULARY_MATRIX in level.get("gradients", {})


def _without_tied_gradient(level: Level) -> Level:
    """Return a level of backward's blocks without the gradient of a tied head that waits there: layouts count it.

    Nothing else of that size lives then, and forms have it where the traced model was tied.
    """
    activations = level.get("activations", {})
    if _VOCABULARY_MATRIX not in activations:
        return level
    return {**level, "activations": {name: each for name, each in activations.items() if name != _VOCABULARY_MATRIX}}
