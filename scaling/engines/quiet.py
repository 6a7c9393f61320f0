"""Leave known lines out of what C++ code writes to stderr, where no filter of Python's warnings sees it."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

STDERR = 2
"""The file descriptor, which C++ code writes to past `sys.stderr`."""


@contextmanager
def without_line(*texts: str) -> Iterator[None]:
    """Hold back what this process writes to stderr inside; all but lines with one of ``texts`` is written at the end.

    For a moment in which nothing waits for other processes: a process that is killed inside takes its lines with it.
    """
    sys.stderr.flush()
    stderr = os.dup(STDERR)
    with tempfile.TemporaryFile() as held:
        os.dup2(held.fileno(), STDERR)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(stderr, STDERR)
            held.seek(0)
            for line in held:
                if not any(text.encode() in line for text in texts):
                    os.write(stderr, line)
            os.close(stderr)
