"""What is trained: everything, a LoRA adapter over a frozen model, or everything but frozen parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from strategies.errors import JobError

ALL_LINEAR = "all-linear"
"""PEFT's word for every linear layer but the head."""
MAX_RANK = 2**16


@dataclass(frozen=True, slots=True, kw_only=True)
class Lora:
    """Low-rank adapters: beside a frozen weight of ``out`` x ``in``, ``rank`` x ``in`` and ``out`` x ``rank``.

    Names and defaults as in Hugging Face PEFT's ``LoraConfig``. Adapters have the number format that the precision
    gives to weights, as DeepSpeed casts them; PEFT alone would keep them fp32 beside a 16-bit model.
    Source: Hu et al. 2021, arXiv:2106.09685, section 4.1.
    """

    rank: int = 8
    target_modules: tuple[str, ...] = (ALL_LINEAR,)
    """Last parts of the names of linear layers, such as ``q_proj``; or ``all-linear`` alone."""
    alpha: float = 8.0
    """The product is scaled by ``alpha / rank``; changes no memory."""

    def __post_init__(self) -> None:
        if not 1 <= self.rank <= MAX_RANK:
            raise JobError(f"lora.rank={self.rank} must be from 1 to {MAX_RANK}; 8 to 64 are common")
        if not self.target_modules or not all(self.target_modules):
            raise JobError(
                f"lora.target_modules={list(self.target_modules)} names no layer; give names, or {ALL_LINEAR}"
            )
        if ALL_LINEAR in self.target_modules and len(self.target_modules) > 1:
            raise JobError(
                f"lora.target_modules={list(self.target_modules)}: {ALL_LINEAR} stands for every layer; give it alone"
            )
        if not 0 < self.alpha < float("inf"):
            raise JobError(f"lora.alpha={self.alpha} must be above zero")

    def targets(self, module: str) -> bool:
        """Return whether a linear layer of that dotted name, not the head, gets an adapter."""
        return ALL_LINEAR in self.target_modules or any(
            module == name or module.endswith(f".{name}") for name in self.target_modules
        )


def is_frozen(name: str, patterns: Sequence[str]) -> bool:
    """Return whether the parameter ``name`` is frozen by patterns, of which the last one that fits decides.

    A pattern is a name with shell wildcards, or that of a module or a part of its path, which means all in it:
    ``embed_tokens``. With ``!`` before it what fits is trained after all: ``*`` and then ``!lm_head``.
    """
    frozen = False
    for pattern in patterns:
        if fits(name, pattern):
            frozen = not pattern.startswith("!")
    return frozen


def fits(name: str, pattern: str) -> bool:
    """Return whether a pattern speaks of the parameter ``name``."""
    plain = pattern.removeprefix("!")
    return any(fnmatchcase(name, form) for form in (plain, f"{plain}.*", f"*.{plain}", f"*.{plain}.*"))
