"""Number formats of a job as Keras calls them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from scaling.errors import EngineError
from strategies.job import Precision

POLICIES: Mapping[Precision, str] = MappingProxyType(
    {
        Precision.FP32: "float32",
        Precision.BF16_AUTOCAST: "mixed_bfloat16",
        Precision.FP16_AUTOCAST: "mixed_float16",
    }
)
"""Keras keeps fp32 variables under a mixed policy, which is what autocast does; 16-bit weights with fp32 masters, as
DeepSpeed has them, it does not know."""


def policy_of(precision: Precision) -> str:
    """Return the Keras dtype policy.

    Raises:
        EngineError: Keras has none.
    """
    if precision not in POLICIES:
        known = " or ".join(POLICIES)
        raise EngineError(f"precision={precision} cannot be trained in TensorFlow; plan again with {known}")
    return POLICIES[precision]
