"""`Architecture` describes the config.json of one ``model_type``; `CheckedConfig` holds its values, checked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from strategies.errors import SpecError
from strategies.model_spec import ModelSpec, TaskKind

T = TypeVar("T")

MAX_SIZE = 2**31 - 1
"""Largest value of any dimension; published models stay below 2**24, vocabularies and positions included."""
MAX_LAYERS = 10_000
"""Most blocks in a stack. The deepest published transformer has 1 000 (Wang et al. 2022, arXiv:2203.00555)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedConfig:
    """The values of one config.json, of the right type and in range, with the defaults of the Hugging Face class."""

    name: str
    """What messages call the model."""
    model_type: str
    task: TaskKind
    sizes: Mapping[str, int]
    optional_sizes: Mapping[str, int | None]
    counts: Mapping[str, int]
    optional_counts: Mapping[str, int | None]
    flags: Mapping[str, bool]
    other: Mapping[str, Any]

    def problem(self, text: str) -> SpecError:
        """Return an error that names the model."""
        return SpecError(f"model {self.name}: {text}")

    def head_dim(self, hidden_size: int, num_attention_heads: int) -> int:
        """Return the size of one attention head: ``head_dim`` where config.json sets it, else hidden size over heads.

        Raises:
            SpecError: the hidden size is not a multiple of the number of heads.
        """
        explicit = self.sizes.get("head_dim") or self.optional_sizes.get("head_dim")
        if explicit:
            return explicit
        if hidden_size % num_attention_heads:
            raise self.problem(
                f"hidden size {hidden_size} is not a multiple of the {num_attention_heads} attention heads; "
                "use a head count that divides it"
            )
        return hidden_size // num_attention_heads


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """How the config.json of one ``model_type`` turns into parameter tensors.

    Keys are listed with the value that the Hugging Face configuration class (transformers 5.24) gives when config.json
    does not; a test compares them. A key that no list names has no influence on the parameters.
    """

    model_type: str
    classes: Mapping[str, TaskKind]
    """The Hugging Face classes that are covered; the first is meant when config.json names none."""
    build: Callable[[CheckedConfig], ModelSpec]
    sizes: Mapping[str, int]
    """Whole numbers above zero."""
    optional_sizes: Mapping[str, int | None] = field(default_factory=dict)
    """Whole numbers above zero, or null."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """Whole numbers from zero up."""
    optional_counts: Mapping[str, int | None] = field(default_factory=dict)
    """Whole numbers from zero up, or null."""
    flags: Mapping[str, bool] = field(default_factory=dict)
    other: Mapping[str, Any] = field(default_factory=dict)
    """Text, lists and objects; ``build`` checks them."""
    renamed: Mapping[str, str] = field(default_factory=dict)
    """Other spellings that the Hugging Face class accepts, to the key of this table."""
    only: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """Keys that the Hugging Face class ignores, with the values that describe what it builds."""

    def shape_keys(self) -> set[str]:
        """Return the keys that this architecture reads as sizes or flags, under any spelling."""
        return {*self.sizes, *self.optional_sizes, *self.counts, *self.optional_counts, *self.flags, *self.renamed}

    def check(self, config: Mapping[str, Any], *, name: str) -> CheckedConfig:
        """Return the checked values of ``config``.

        Raises:
            SpecError: an uncovered class, or values of the wrong type or out of range; all of them in one message.
        """
        task = self._task(config, name=name)
        config, problems = self._with_own_spelling(config)
        checked = CheckedConfig(
            name=name,
            model_type=self.model_type,
            task=task,
            sizes=_overlay(self.sizes, config),
            optional_sizes=_overlay(self.optional_sizes, config),
            counts=_overlay(self.counts, config),
            optional_counts=_overlay(self.optional_counts, config),
            flags=_overlay(self.flags, config),
            other=_overlay(self.other, config),
        )
        problems += _size_problems(checked)
        problems += [
            f"{key}={shown(value)} must be true or false"
            for key, value in checked.flags.items()
            if not isinstance(value, bool)
        ]
        problems += [
            f"{key}={shown(config[key])} is not what {self.model_type} builds, which is {key}={shown(values[0])}"
            for key, values in self.only.items()
            if config.get(key) is not None and config[key] not in values
        ]
        if problems:
            raise SpecError(f"model {name}: {'; '.join(problems)}; correct the config.json")
        return checked

    def _task(self, config: Mapping[str, Any], *, name: str) -> TaskKind:
        named = config.get("architectures")
        if named is None or named == []:
            return next(iter(self.classes.values()))
        if isinstance(named, list) and len(named) == 1 and isinstance(named[0], str) and named[0] in self.classes:
            return self.classes[named[0]]
        raise SpecError(
            f"model {name}: architectures={shown(named)} is not covered for model_type {self.model_type}; "
            f"give one of {', '.join(self.classes)}, or trace the model with `scaling.trace` (docs/tracing.md)"
        )

    def _with_own_spelling(self, config: Mapping[str, Any]) -> tuple[Mapping[str, Any], list[str]]:
        spelled = dict(config)
        problems = []
        for other, own in self.renamed.items():
            if other not in config:
                continue
            if own in config and config[own] != config[other]:
                problems.append(f"{other}={shown(config[other])} contradicts {own}={shown(config[own])}")
            spelled[own] = config[other]
        return spelled, problems


def shown(value: object) -> str:
    """Return ``value`` as messages show it, cut where it is long."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _overlay(defaults: Mapping[str, T], config: Mapping[str, Any]) -> dict[str, T]:
    return {key: config.get(key, default) for key, default in defaults.items()}


def _size_problems(config: CheckedConfig) -> list[str]:
    required = [(key, value, 1) for key, value in config.sizes.items()]
    optional = [(key, value, 1) for key, value in config.optional_sizes.items() if value is not None]
    counts = [(key, value, 0) for key, value in config.counts.items()]
    optional_counts = [(key, value, 0) for key, value in config.optional_counts.items() if value is not None]
    return [
        f"{key}={shown(value)} must be a whole number from {least} to {_largest(key)}"
        for key, value, least in [*required, *optional, *counts, *optional_counts]
        if not _is_whole(value) or not least <= value <= _largest(key)
    ]


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _largest(key: str) -> int:
    return MAX_LAYERS if "layer" in key else MAX_SIZE
