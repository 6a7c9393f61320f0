"""A model's config.json by its Hugging Face hub id: from the local cache, else from the network."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from urllib.request import Request

TIMEOUT_S = 5.0
MAX_BYTES = 2**22
"""A config.json is some kilobytes; more is something else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    """What the network gave: the text of a config.json, or why there is none."""

    text: str | None = None
    failure: str = ""


def is_hub_id(name: str) -> bool:
    """Return whether ``name`` has the form ``organisation/model``, or ``model`` as the oldest hub ids have."""
    parts = name.split("/")
    return len(parts) <= 2 and all(_is_hub_word(part) for part in parts)


def cached_folder(hub_id: str, environment: Mapping[str, str] = os.environ) -> Path | None:
    """Return the cached folder of ``hub_id``'s main revision if it holds a config.json, else None.

    Source: huggingface_hub, "Understand caching": models--org--name/refs/main names a folder under snapshots/.
    """
    repository = hub_cache(environment) / f"models--{hub_id.replace('/', '--')}"
    try:
        revision = (repository / "refs" / "main").read_text().strip()
    except (OSError, UnicodeDecodeError):
        return None
    folder = repository / "snapshots" / revision
    return folder if revision and (folder / "config.json").is_file() else None


def hub_cache(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the folder in which huggingface_hub keeps downloaded models, by the variables that it reads itself."""
    for variable in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if explicit := environment.get(variable):
            return Path(explicit).expanduser()
    home = environment.get("HF_HOME")
    base = Path(home) if home else Path(environment.get("XDG_CACHE_HOME") or "~/.cache") / "huggingface"
    return base.expanduser() / "hub"


def is_offline(environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether the hub may not be asked, by the variables that its own programs read."""
    return any(_is_on(environment.get(variable)) for variable in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"))


def fetch_config(hub_id: str, environment: Mapping[str, str] = os.environ) -> Fetched:
    """Return the config.json of ``hub_id`` from the network, or why it could not be had; asks once a process."""
    if is_offline(environment):
        return Fetched(failure="the network is switched off by HF_HUB_OFFLINE or TRANSFORMERS_OFFLINE")
    endpoint = (environment.get("HF_ENDPOINT") or "https://huggingface.co").rstrip("/")
    return _fetch(f"{endpoint}/{hub_id}/resolve/main/config.json", environment.get("HF_TOKEN") or "")


@cache
def _fetch(url: str, token: str) -> Fetched:
    from http.client import HTTPException
    from urllib.error import HTTPError
    from urllib.parse import urlsplit
    from urllib.request import urlopen

    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        return Fetched(failure="HF_ENDPOINT is not an http or https address")
    try:
        with urlopen(hub_request(url, token), timeout=TIMEOUT_S) as response:
            content = response.read(MAX_BYTES + 1)
    except HTTPError as error:
        return Fetched(failure=_refusal(error.code, host=parts.hostname, has_token=bool(token)))
    except (OSError, HTTPException, ValueError) as error:
        return Fetched(failure=f"{parts.hostname} cannot be reached ({getattr(error, 'reason', None) or error})")
    if len(content) > MAX_BYTES:
        return Fetched(failure=f"{parts.hostname} sent more than {MAX_BYTES} bytes for config.json")
    return Fetched(text=content.decode(errors="replace"))


def hub_request(url: str, token: str) -> Request:
    """Return the request for ``url``. The token goes to that host only, over https only, and never on a redirect."""
    from urllib.request import Request

    request = Request(url, headers={"User-Agent": "memory-scaling"})
    if token and url.startswith("https://"):
        request.add_unredirected_header("Authorization", f"Bearer {token}")
    return request


def _refusal(status: int, *, host: str, has_token: bool) -> str:
    if status in (401, 403):
        advice = "the token in HF_TOKEN has no access to it" if has_token else "set HF_TOKEN if it is gated or private"
        return f"{host} refuses it (HTTP {status}); {advice}"
    return f"{host} does not have it (HTTP {status})"


def _is_on(value: str | None) -> bool:
    return (value or "").upper() in ("1", "ON", "YES", "TRUE")


def _is_hub_word(word: str) -> bool:
    return 0 < len(word) <= 96 and word[0].isalnum() and all(each.isalnum() or each in "-_." for each in word)
