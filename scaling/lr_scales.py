"""Learning rates of some parameters as a factor of the run's: ``classifier.*=10`` trains a new head faster."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from scaling.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class LrScale:
    """The parameters that a pattern fits, and the factor of their learning rate."""

    pattern: str
    factor: float


def parse_lr_scales(texts: Iterable[str]) -> tuple[LrScale, ...]:
    """Return what ``PATTERN=FACTOR`` says, one a text.

    Raises:
        ConfigError: a text says nothing of the kind.
    """
    if problems := lr_scale_problems(texts):
        raise ConfigError("; ".join(problems))
    parts = (text.rpartition("=") for text in texts)
    return tuple(LrScale(pattern=pattern, factor=float(factor)) for pattern, _, factor in parts)


def lr_scale_problems(texts: Iterable[str]) -> list[str]:
    """Return what is wrong with ``PATTERN=FACTOR`` texts."""
    return [
        f"lr_scale={text!r} is no PATTERN=FACTOR with a factor from zero up, such as 'classifier.*=10'"
        for text in texts
        if not _is_scale(text)
    ]


def scale_of(name: str, scales: Sequence[LrScale]) -> float:
    """Return the factor of a parameter by its name: that of the first pattern that fits, 1 where none does."""
    scale = _first_that_fits(name, scales)
    return scale.factor if scale else 1.0


def require_used(names: Iterable[str], scales: Sequence[LrScale]) -> None:
    """Refuse a pattern that no parameter gets its factor from: it would have no effect.

    Raises:
        ConfigError: names it.
    """
    names = list(names)
    used = {scale.pattern for name in names if (scale := _first_that_fits(name, scales))}
    if useless := [scale.pattern for scale in scales if scale.pattern not in used]:
        raise ConfigError(
            f"lr_scale={useless[0]!r} fits no trained parameter that an earlier pattern leaves; names are like "
            f"{', '.join(names[:3])}"
        )


def _first_that_fits(name: str, scales: Sequence[LrScale]) -> LrScale | None:
    return next((scale for scale in scales if fnmatchcase(name, scale.pattern)), None)


def _is_scale(text: str) -> bool:
    pattern, _, factor = text.rpartition("=")
    try:
        return bool(pattern) and 0 <= float(factor) < math.inf
    except ValueError:
        return False
