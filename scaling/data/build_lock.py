"""One builder at a time, over all processes that see the same folder."""

from __future__ import annotations

import fcntl
import logging
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from scaling.data.errors import DataError

POLL_S = 0.1
FIRST_NOTICE_S = 10.0

logger = logging.getLogger(__name__)


@contextmanager
def build_lock(path: Path) -> Iterator[None]:
    """Hold the lock file ``path``; wait as long as another process holds it, naming that process from time to time.

    The operating system frees the lock when its holder ends, however it ends, so a killed builder blocks nobody. The
    file itself stays: removing it would let two processes hold two files of one name.

    Raises:
        DataError: the file system of ``path`` cannot lock files.
    """
    with path.open("a+") as file:
        _acquire(file, path)
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}")
        file.flush()
        yield


def _acquire(file: IO[str], path: Path) -> None:
    started = time.monotonic()
    next_notice_s = FIRST_NOTICE_S
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            time.sleep(POLL_S)
        except OSError as error:
            raise DataError(
                f"the file system of {path.parent} cannot lock files ({error.strerror}); "
                f"choose a cache folder on a local disk"
            ) from error
        waited_s = time.monotonic() - started
        if waited_s > next_notice_s:
            file.seek(0)
            logger.warning("waiting since %.0f s for %s, which holds %s", waited_s, file.read(), path)
            next_notice_s *= 2
