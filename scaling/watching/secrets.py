"""What must not leave this machine with a run's settings."""

from __future__ import annotations

import re
from typing import Final

HIDDEN: Final = "[hidden]"
_SECRETS: Final = (
    # user:password@ and token@ in addresses
    re.compile(r"(://)[^/@\s]+(?=@)"),
    # ?token=… and &api_key=… in addresses
    re.compile(r"(?i)([?&](?:\w*token|\w*key|sig|signature|\w*password|\w*secret)=)[^&\s\"]+"),
    # tokens of the hub, and keys of AWS and of services that begin theirs with sk-
    re.compile(r"(\b(?:hf_|sk-|AKIA))[A-Za-z0-9_-]{12,}"),
)


def without_secrets(text: str) -> str:
    """Return ``text`` with passwords in addresses and access tokens hidden.

    >>> without_secrets("https://me:word@host/data.jsonl?token=abc&page=2")
    'https://[hidden]@host/data.jsonl?token=[hidden]&page=2'
    """
    for secret in _SECRETS:
        text = secret.sub(rf"\1{HIDDEN}", text)
    return text
