"""What looks into an optimizer step while it runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, final


class Observer(Protocol):
    """Called by the training step, on every rank alike."""

    def before_update(self) -> None:
        """Look at the gradients: complete over all ranks, not unscaled and not clipped yet. May be a collective."""

    def tell(self) -> Sequence[float]:
        """Return numbers of this rank that all ranks are to know; they travel with the loss, after the update."""


@final
class NoObserver:
    """Looks at nothing and tells nothing."""

    def before_update(self) -> None:
        """Nothing to look at."""

    def tell(self) -> Sequence[float]:
        return ()


UNOBSERVED = NoObserver()
