"""The files of a token store, and `TokenStore`, what a reader sees of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from scaling.data.errors import DataError

if TYPE_CHECKING:
    from numpy.typing import NDArray

FORMAT_VERSION = 1
"""Part of every fingerprint: raise it when the files change their meaning, and old stores are no longer found."""
TOKENS_FILE, ENDS_FILE, HEADER_FILE = "tokens.bin", "document_ends.bin", "header.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreHeader:
    """What the two binary files of a store hold; kept beside them as JSON."""

    source: str
    fingerprint: str
    dtype: str
    """``uint16`` where every id fits, else ``uint32``; little-endian."""
    vocab_size: int
    separator_id: int
    num_tokens: int
    num_documents: int
    num_empty_documents: int
    """Documents without a token. They are left out, so that no separator follows another."""
    num_text_bytes: int
    content_hash: str
    """BLAKE2b of the bytes of the token file: two stores with the same hash give the same samples."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TokenStore:
    """All documents one after the other, each followed by ``separator_id``. Pickles as its path."""

    path: Path
    header: StoreHeader
    tokens: NDArray[np.unsignedinteger]
    """Shape (num_tokens,), mapped from disk, read-only."""
    document_ends: NDArray[np.uint64]
    """Shape (num_documents,): position behind the separator of each document, rising; the last is ``num_tokens``."""

    @property
    def num_tokens(self) -> int:
        return self.header.num_tokens

    @property
    def num_documents(self) -> int:
        return self.header.num_documents

    @property
    def vocab_size(self) -> int:
        return self.header.vocab_size

    @property
    def separator_id(self) -> int:
        return self.header.separator_id

    @property
    def content_hash(self) -> str:
        return self.header.content_hash

    def __reduce__(self) -> tuple[Callable[[Path], TokenStore], tuple[Path]]:
        return open_token_store, (self.path,)


def open_token_store(path: Path) -> TokenStore:
    """Return the store in the folder ``path``, its files mapped into memory, nothing read but the header.

    Raises:
        DataError: the folder holds no complete store.
    """
    try:
        header = StoreHeader(**json.loads((path / HEADER_FILE).read_text()))
        dtype = np.dtype(header.dtype).newbyteorder("<")
        tokens = _map(path / TOKENS_FILE, dtype, header.num_tokens)
        ends = _map(path / ENDS_FILE, np.dtype("<u8"), header.num_documents)
    except (OSError, ValueError, TypeError) as error:
        raise DataError(f"{path} holds no complete token store ({error}); delete it and build it again") from error
    return TokenStore(path=path, header=header, tokens=tokens, document_ends=ends)


def _map(path: Path, dtype: np.dtype[Any], count: int) -> NDArray[Any]:
    size_bytes = path.stat().st_size
    if size_bytes != count * dtype.itemsize:
        raise ValueError(f"{path.name} has {size_bytes} bytes instead of {count * dtype.itemsize}")
    return np.memmap(path, dtype=dtype, mode="r", shape=(count,))
