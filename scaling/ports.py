"""Whether a port of this machine can be listened on."""

from __future__ import annotations

import socket


def is_free(port: int) -> bool:
    """Return whether a process may listen on ``port`` now, on all addresses as torch's store does."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the store: an ended run does not hold it
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True


def free_port() -> int:
    """Return a port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])
