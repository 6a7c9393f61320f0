"""Reads the form files: what every family keeps and holds, as sums of coefficient x product of sizes.

The files are made from traces by ``benchmarks/activation_forms.py``; `strategies.memory.features` names the sizes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from strategies.adapt import BLOCKS_FROZEN, EMBEDDING_FROZEN, LORA
from strategies.errors import SpecError
from strategies.job import Attention, LossImplementation
from strategies.model_spec import ModelSpec, TaskKind
from strategies.plan import ActivationCheckpointing

STAGE3_AUTOCAST = "autocast-stage3"
"""Autocast with linear layers as DeepSpeed's stage 3 computes them: they keep their input as it comes, and no copy of
the weight (zero/linear.py)."""
STACKS = ("encoder", "decoder")
FOLDER = Path(__file__).parent / "forms"
"""One file a family, and in ``parts`` one with the forms of models of which a part is trained."""
PARTS_END = "|"
"""Ends the name of the trained parts in that of a variant."""

Form = Mapping[str, float]
"""Bytes by product of sizes, such as ``B*S*h``."""
Level = Mapping[str, Form]
"""By part: activations, recomputed_block, logits; and gradients, of weights, at the moment they are made."""


class BlockForms(NamedTuple):
    """What one kind of block keeps, and the moments in and around it. Levels leave out what blocks keep."""

    kept: Level
    """From a block's forward to its backward."""
    kept_in_forward: Level
    """Likewise to the end of forward: under autocast, 16-bit copies of weights live until there."""
    forward_base: Level
    """Where head and loss begin in forward."""
    backward_base: Level
    """Where they end in backward."""
    forward: Sequence[Level]
    top: Sequence[Level]
    """In the backward of the last block, where every other one is kept."""
    bottom: Sequence[Level]
    """In the backward of the first block, and of the embedding."""
    evaluation_kept: Level
    evaluation_base: Level
    evaluation: Sequence[Level]


class HeadForms(NamedTuple):
    """Moments of head and loss on top of a base."""

    forward: Sequence[Level]
    before_gradient: Sequence[Level]
    """In backward, before the first gradient of a weight."""
    after_gradient: Sequence[Level]
    evaluation: Sequence[Level]
    after_model: Sequence[Level] = ()
    """Of the loss in forward, where 16-bit copies of weights are gone that no backward needs: autocast has ended."""
    evaluation_after_model: Sequence[Level] = ()


class FormSet(NamedTuple):
    """All forms of one variant of a family, one number format and one device."""

    model: str
    """What messages call it."""
    settings: Mapping[str, Mapping[str, Any]]

    def block(self, kind: str, checkpointing: ActivationCheckpointing) -> BlockForms:
        """Return the forms of a block; ``kind`` is flash, windowed or eager, of two stacks with the stack's name."""
        found = self._part(f"blocks.{kind}.{checkpointing.value}")
        plain = self._part(f"blocks.{kind}.none")
        evaluation = {name: plain[name] for name in ("evaluation_kept", "evaluation_base", "evaluation")}
        return BlockForms(**{**found, **evaluation})

    def head(self, loss: LossImplementation) -> HeadForms:
        """Return the forms of a loss."""
        return HeadForms(**self._part(f"head.{loss.value}"))

    def _part(self, name: str) -> Mapping[str, Any]:
        if name not in self.settings:
            raise SpecError(
                f"model {self.model}: no closed form for {' '.join(name.split('.'))} on this device; choose another "
                f"setting, or read the peak off the model itself with --level traced"
            )
        return self.settings[name]


_WITHOUT_FORMS = (TaskKind.SEQUENCE_CLASSIFICATION, TaskKind.CONTRASTIVE)
"""A family's forms may be those of its language model, whose head keeps more than a classifier's."""


def form_set(spec: ModelSpec, *, number_format: str, on_cpu: bool) -> FormSet:
    """Return the forms of a model; ``number_format`` is 16bit, autocast, autocast-stage3 or fp32.

    Raises:
        SpecError: none were made for this family, for its settings, or for this device.
    """
    device = "cpu" if on_cpu else "cuda"
    if spec.task in _WITHOUT_FORMS:
        raise SpecError(
            f"model {spec.name}: no closed form for the activations of a model made for {spec.task}, so its peak "
            f"cannot be predicted at once (its {spec.num_params:,} parameters are known); "
            f"{_instead(spec, on_cpu=on_cpu)}"
        )
    settings = _settings(spec, f"{device}.{number_format}.")
    if number_format == STAGE3_AUTOCAST:  # where it has no form of its own, a copy of every weight comes on top
        settings = {**_settings(spec, f"{device}.autocast."), **settings}
    if not settings and spec.trained_parts:
        raise SpecError(
            f"model {spec.name}: no closed form where {told(spec.trained_parts)} of model_type={spec.family!r} with "
            f"{number_format} on {device}; there are forms where {_all_told(spec.family)}; --level traced reads the "
            f"peak off the model itself"
        )
    if not settings:
        raise SpecError(
            f"model {spec.name}: no closed form for the activations of model_type={spec.family!r} with "
            f"{spec.variant or 'its settings'} on {device}, so its peak cannot be predicted at once (its "
            f"{spec.num_params:,} parameters are known); {_instead(spec, on_cpu=on_cpu)}"
        )
    return FormSet(model=spec.name, settings=settings)


def _instead(spec: ModelSpec, *, on_cpu: bool) -> str:
    """Return how the peak can be had all the same: models with two stacks are not built, for a trace or a run."""
    if spec.task is not TaskKind.SEQ2SEQ_LM:
        return "--level traced reads the peak off the model itself"
    other = "give a GPU: there are forms for CUDA" if on_cpu and has_closed_form(spec) else "there is no other level"
    return f"{other}; a model with task={spec.task} is not built here"


def has_closed_form(spec: ModelSpec) -> bool:
    """Whether there are forms for the spec's family and settings."""
    return next(_fitting(spec), None) is not None


def has_fused_attention(spec: ModelSpec) -> bool:
    """Whether the library's model can run fused attention; if not, ``flash`` is what a fused kernel would keep."""
    return _family_has_fused_attention(spec.family)


@cache
def _family_has_fused_attention(family: str) -> bool:
    # Every estimate asks: the names are looked through once a family.
    return any(".blocks.flash" in name for settings in _file(family).values() for name in settings)


def has_two_stacks(spec: ModelSpec) -> bool:
    """Whether the model has an encoder and a decoder."""
    return spec.task is TaskKind.SEQ2SEQ_LM


def _num_layers(spec: ModelSpec, stack: str) -> int:
    return sum(len(group.layers) for group in spec.groups if group.name.startswith(stack))


def kinds_of(spec: ModelSpec, *, attention: Attention, seq_len: int, forms: FormSet) -> dict[str, int]:
    """Return how many blocks are of which kind; windows shorter than the sequence make masks, and other kernels."""
    if has_two_stacks(spec):
        return {f"{attention.value}-{stack}": _num_layers(spec, stack) for stack in STACKS}
    if attention is Attention.EAGER:
        return {"eager": spec.num_layers}
    window = spec.sliding_window
    masked = spec.num_sliding_layers if window is not None and seq_len > window else 0
    if masked and spec.trained_parts and "blocks.windowed.none" not in forms.settings:
        raise SpecError(
            f"model {spec.name}: no closed form for windows of {window} tokens in seq_len={seq_len} where a part of "
            f"it is trained; give seq_len={window} or less, or read the peak off the model itself with "
            f"--level traced"
        )
    if not masked or "blocks.windowed.none" not in forms.settings:
        return {"flash": spec.num_layers}
    return {kind: number for kind, number in (("windowed", masked), ("flash", spec.num_layers - masked)) if number}


def _settings(spec: ModelSpec, prefix: str) -> Mapping[str, Any]:
    """Return the forms whose names start with ``prefix``, from the first variant that has any."""
    for variant in _fitting(spec):
        found = {name.removeprefix(prefix): part for name, part in variant.items() if name.startswith(prefix)}
        if found:
            return found
    return {}


def _fitting(spec: ModelSpec) -> Iterator[Mapping[str, Any]]:
    """Yield the forms of the spec's settings, those for its number of key heads first.

    Shared keys are repeated for some kernels, so that forms of ``grouped`` heads are at or above those of the others.
    """
    variants = _variants(spec.family, spec.trained_parts not in ("", BLOCKS_FROZEN))
    order = ["grouped", "equal"]
    if spec.num_key_value_heads == spec.num_attention_heads:
        order.reverse()
    elif spec.num_key_value_heads == 1:
        order.insert(0, "single")
    parts = "" if spec.trained_parts == BLOCKS_FROZEN else spec.trained_parts
    variant = f"{parts}{PARTS_END}{spec.variant}" if parts else spec.variant
    names = (variant, *(f"{variant};{grouping}" for grouping in order))
    return (variants[name] for name in names if name in variants)


def told(parts: str) -> str:
    """Return in words what is trained."""
    if parts.startswith(LORA):
        layers = parts.removeprefix(f"{LORA}:").split(",")
        return f"adapters are trained on {', '.join(layers)}"
    if parts == EMBEDDING_FROZEN:
        return "all is trained but the embedding"
    return "single parts are frozen"


def _all_told(family: str) -> str:
    names = {name.partition(PARTS_END)[0] for name in _file(family, in_part=True)}
    return "; or where ".join(map(told, sorted(names))) or "everything is trained"


@cache
def _variants(family: str, in_part: bool) -> Mapping[str, Mapping[str, Any]]:
    return {name: _with_fused(settings) for name, settings in _file(family, in_part=in_part).items()}


@cache
def _file(family: str, *, in_part: bool = False) -> Mapping[str, Mapping[str, Any]]:
    """Return the forms of a family trained whole, or those of parts."""
    path = (FOLDER / "parts" if in_part else FOLDER) / f"{family}.json"
    return json.loads(path.read_text()) if path.is_file() else {}


_QUADRATIC = ("S*S", "S*Z")
_LOG_SUM_EXP = {"B*S*n": 4}


def _with_fused(settings: Mapping[str, Any]) -> Mapping[str, Any]:
    """Add what a fused kernel would keep where the library only has plain attention.

    The same without what grows with the square of the length, and one fp32 number a query and head.
    """
    fused = {
        name.replace("blocks.eager", "blocks.flash"): _without_quadratic(part)
        for name, part in settings.items()
        if ".blocks.eager" in name and name.replace("blocks.eager", "blocks.flash") not in settings
    }
    return {**settings, **fused}


def _without_quadratic(part: Mapping[str, Any]) -> dict[str, Any]:
    dropped: dict[str, Any] = _dropped(part)
    for name in ("kept", "kept_in_forward"):
        activations = dropped[name].get("activations", {})
        if len(activations) > 1:  # with full activation checkpointing a block keeps its input alone
            dropped[name]["activations"] = {**activations, **_LOG_SUM_EXP}
    return dropped


def _dropped(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _dropped(each) for name, each in value.items() if not any(part in name for part in _QUADRATIC)}
    return [_dropped(each) for each in value] if isinstance(value, list) else value
