"""Number formats of a job as Keras calls them."""

from __future__ import annotations

from scaling.errors import EngineError
from strategies.job import Precision
from strategies.mirrored_limits import POLICIES


def policy_of(precision: Precision) -> str:
    """Return the Keras dtype policy.

    Raises:
        EngineError: Keras has none.
    """
    if precision not in POLICIES:
        raise EngineError(
            f"precision={precision} cannot be trained in TensorFlow; plan again with {' or '.join(POLICIES)}"
        )
    return POLICIES[precision]
