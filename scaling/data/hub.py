"""The Hugging Face hub where it answers, else what its libraries have in their caches."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from urllib.parse import urlsplit

from scaling.errors import one_line

TIMEOUT_S = 5.0


@contextmanager
def hub_or_cache() -> Iterator[str]:
    """Let ``transformers`` and ``datasets`` ask the hub inside, or nothing but their caches where it does not answer.

    By themselves they ask again for about a minute (huggingface_hub 2.4, ``http_backoff``: five times, waiting longer
    each time). Yields why the hub does not answer, nothing where it does.
    """
    from huggingface_hub import constants

    reason = "the network is switched off by HF_HUB_OFFLINE" if constants.is_offline_mode() else _silence()
    was_offline = constants.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = was_offline or bool(reason)
    try:
        yield reason
    finally:
        constants.HF_HUB_OFFLINE = was_offline


@cache
def _silence() -> str:
    """Return why the hub does not answer at all; asks once a process. A refusal is an answer."""
    from huggingface_hub import constants, get_session

    try:
        get_session().head(constants.ENDPOINT, timeout=TIMEOUT_S)
    except Exception as error:  # of the client that this version has: requests, httpx, httpx2
        return f"{urlsplit(constants.ENDPOINT).hostname} cannot be reached ({one_line(error)})"
    return ""
