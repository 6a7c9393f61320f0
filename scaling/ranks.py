"""What ranks say to each other and to the user: one message for one mistake, however many processes made it."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO, TypeVar

from strategies.errors import ScalingError

T = TypeVar("T")

SECONDS_TO_SPEAK = 5.0
"""How long other ranks leave the word to rank 0. A launcher ends them as soon as rank 0 has ended."""


def report_error(error: ScalingError, *, rank: int) -> None:
    """Print the error once: at once on rank 0; on another rank only if rank 0 did not meet it too and end the run."""
    if rank == 0:
        print(f"error: {error}", file=sys.stderr, flush=True)
        return
    time.sleep(SECONDS_TO_SPEAK)
    print(f"error on rank {rank}: {error}", file=sys.stderr, flush=True)


def together(action: Callable[[], T]) -> T:
    """Return what ``action`` returns on this rank, or raise on every rank what went wrong on any.

    ``action`` must not communicate: a rank whose action fails would leave the others waiting.

    Raises:
        ScalingError: the action raised one on some rank; the message is that of the lowest such rank.
    """
    import torch.distributed as dist

    mine: ScalingError | None = None
    result: T | None = None
    try:
        result = action()
    except ScalingError as error:
        mine = error
    errors: list[ScalingError | None] = [None] * dist.get_world_size()
    dist.all_gather_object(errors, mine)
    if first := next((error for error in errors if error is not None), None):
        raise first
    return result  # type: ignore[return-value]  # no error anywhere, so the action has returned


@contextmanager
def results_only_on_stdout() -> Iterator[TextIO]:
    """Yield a stream to the real stdout and send everything that libraries print there to stderr.

    By file descriptor, because compilers that libraries start write past Python.
    """
    sys.stdout.flush()
    real = os.dup(1)
    os.dup2(2, 1)
    try:
        with os.fdopen(os.dup(real), "w", encoding="utf-8") as results:
            yield results
    finally:
        sys.stdout.flush()
        os.dup2(real, 1)
        os.close(real)


def set_up_logging(*, is_main: bool) -> None:
    """Send our log to stderr, from the main rank; other ranks and other libraries speak of errors only."""
    logging.basicConfig(
        stream=sys.stderr,
        level=logging.WARNING if is_main else logging.ERROR,
        format="%(levelname)s %(name)s: %(message)s",
    )
    logging.getLogger("scaling").setLevel(logging.INFO if is_main else logging.ERROR)
