"""Blocks that backward does not reach: they keep nothing, and some settings run through them all the same."""

from __future__ import annotations

from collections.abc import Mapping

from strategies.adapt import BLOCKS_FROZEN
from strategies.errors import SpecError
from strategies.model_spec import ModelSpec
from strategies.plan import ActivationCheckpointing


def reached(kinds: Mapping[str, int], spec: ModelSpec) -> Mapping[str, int]:
    """Return the blocks of each kind that backward reaches; kinds are taken to be mixed evenly.

    All of them where it reaches none, since such a model's blocks run as in an evaluation.
    """
    if not spec.num_frozen_layers or spec.trained_parts == BLOCKS_FROZEN:
        return kinds
    share = spec.num_trained_layers / spec.num_layers
    return {kind: max(1, round(number * share)) for kind, number in kinds.items()}


def require_known_backward(spec: ModelSpec, *, checkpointing: ActivationCheckpointing, number_format: str) -> None:
    """Refuse settings under which backward takes another way through frozen blocks than the forms know.

    With activation checkpointing transformers (5.24, enable_input_require_grads) asks for the gradient of the
    embedding's output, so that backward runs through frozen blocks in vain. Under autocast copies of frozen weights are
    not kept.

    Raises:
        SpecError: the setting is one of them.
    """
    if not spec.num_frozen_layers:
        return
    if checkpointing is not ActivationCheckpointing.NONE:
        raise SpecError(
            f"model {spec.name}: no closed form for activation_checkpointing={checkpointing} with "
            f"{spec.num_frozen_layers} frozen blocks, which would only be computed again in vain; give none, or read "
            f"the peak off the model itself with --level traced"
        )
    if number_format.startswith("autocast"):
        raise SpecError(
            f"model {spec.name}: no closed form for {spec.num_frozen_layers} frozen blocks under autocast; choose "
            f"another precision, or read the peak off the model itself with --level traced"
        )
