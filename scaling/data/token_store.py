"""Make the tokens of a corpus once, for all processes and later runs."""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from scaling.data.build_lock import build_lock
from scaling.data.cache import default_cache_dir
from scaling.data.errors import DataError
from scaling.data.store_format import FORMAT_VERSION, TokenStore, open_token_store
from scaling.data.text_source import TextSource
from scaling.data.token_writer import sync_folder, write_store
from scaling.data.tokenizer import tokenizer_identity

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = ["TokenStore", "build_token_store", "open_token_store", "store_fingerprint"]

logger = logging.getLogger(__name__)


def build_token_store(
    source: TextSource,
    tokenizer: PreTrainedTokenizerBase,
    *,
    cache_dir: Path | None = None,
    show_progress: bool = True,
) -> TokenStore:
    """Return the store of these documents under this tokenizer, made now if it is not in the cache yet.

    Any number of processes may call this at once, before or without ``torch.distributed``: one builds, the others wait
    for a file lock and open the result. A store appears under its name by one rename when it is complete and on disk,
    so a crash leaves nothing that would be used. Progress goes to stderr, from the builder only.

    Raises:
        DataError: a document cannot be read, there is no text at all, or the cache folder cannot be written.
    """
    fingerprint = store_fingerprint(source, tokenizer)
    folder = (cache_dir or default_cache_dir()) / "tokens"
    target = folder / fingerprint
    if (store := _open_if_complete(target)) is not None:
        return store
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with build_lock(folder / f"{fingerprint}.lock"):
            if (store := _open_if_complete(target)) is not None:  # built by another process while this one waited
                return store
            _build(source, tokenizer, target=target, show_progress=show_progress)
    except OSError as error:
        raise DataError(
            f"cannot write the token store {target}: {error.strerror or error}; "
            f"free space there or choose another cache folder"
        ) from error
    return open_token_store(target)


def store_fingerprint(source: TextSource, tokenizer: PreTrainedTokenizerBase) -> str:
    """Return the name of the store: a digest of the documents' identity, the tokenizer's and the file format's."""
    parts = json.dumps([FORMAT_VERSION, source.identity(), tokenizer_identity(tokenizer)])
    return hashlib.blake2b(parts.encode(), digest_size=16).hexdigest()


def _open_if_complete(path: Path) -> TokenStore | None:
    if not path.exists():
        return None
    try:
        return open_token_store(path)
    except DataError as error:
        logger.warning("%s; it is built again", error)
        return None


def _build(source: TextSource, tokenizer: PreTrainedTokenizerBase, *, target: Path, show_progress: bool) -> None:
    """Write beside ``target`` and rename. The caller holds the lock, so what already lies there is a dead builder's."""
    partial = target.with_suffix(".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    try:
        write_store(source, tokenizer, folder=partial, fingerprint=target.name, show_progress=show_progress)
        shutil.rmtree(target, ignore_errors=True)  # a damaged store
        partial.rename(target)
        sync_folder(target.parent)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
