"""Documents to the files of a token store, in one pass and bounded memory."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import IO, TYPE_CHECKING

import numpy as np

from scaling.data.errors import DataError
from scaling.data.store_format import ENDS_FILE, HEADER_FILE, TOKENS_FILE, StoreHeader
from scaling.data.text_source import Piece, TextSource
from scaling.data.tokenizer import make_encoder, separator_id, vocab_size

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from transformers import PreTrainedTokenizerBase

MAX_BATCH_CHARS = 4 << 20
MAX_BATCH_PIECES = 4096
"""What one call tokenises, on all cores. Bounds memory: a token takes about 200 bytes on its way (tokenizers 0.23)."""


def write_store(
    source: TextSource, tokenizer: PreTrainedTokenizerBase, *, folder: Path, fingerprint: str, show_progress: bool
) -> None:
    """Write the files of a store into the empty ``folder``; when this returns they are on disk.

    Raises:
        DataError: no document has a token.
    """
    size = vocab_size(tokenizer)
    dtype = np.dtype("<u2" if size <= 1 << 16 else "<u4")
    with (folder / TOKENS_FILE).open("wb") as tokens_file, (folder / ENDS_FILE).open("wb") as ends_file:
        writer = _Writer(tokens_file, ends_file, separator=np.array([separator_id(tokenizer)], dtype=dtype))
        num_text_bytes = _write_all(writer, source, tokenizer, show_progress=show_progress)
        for file in (tokens_file, ends_file):
            _sync(file)
    if writer.num_tokens == 0:
        raise DataError(f"{source.description} holds no text; name files that do")
    header = StoreHeader(
        source=source.description,
        fingerprint=fingerprint,
        dtype=dtype.name,
        vocab_size=size,
        separator_id=separator_id(tokenizer),
        num_tokens=writer.num_tokens,
        num_documents=writer.num_documents,
        num_empty_documents=writer.num_empty_documents,
        num_text_bytes=num_text_bytes,
        content_hash=writer.content_hash.hexdigest(),
    )
    with (folder / HEADER_FILE).open("w") as header_file:
        json.dump(asdict(header), header_file, indent=1)
        _sync(header_file)
    sync_folder(folder)


def sync_folder(folder: Path) -> None:
    """Wait until the names in ``folder`` are on disk: without it a rename may survive a power cut and its files not."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class _Writer:
    """Appends tokenised pieces to the two files and counts."""

    def __init__(self, tokens_file: IO[bytes], ends_file: IO[bytes], *, separator: NDArray[np.unsignedinteger]) -> None:
        self._tokens_file = tokens_file
        self._ends_file = ends_file
        self._separator = separator
        self._document_start = 0
        self.dtype = separator.dtype
        self.content_hash = hashlib.blake2b(digest_size=16)
        self.num_tokens = 0
        self.num_documents = 0
        self.num_empty_documents = 0

    def add(self, batch: list[Piece], ids: list[NDArray[np.unsignedinteger]]) -> None:
        """Append a batch; a document may have begun in an earlier one and may end in a later one."""
        parts: list[NDArray[np.unsignedinteger]] = []
        ends: list[int] = []
        for piece, piece_ids in zip(batch, ids, strict=True):
            parts.append(piece_ids)
            self.num_tokens += len(piece_ids)
            if piece.ends_document and self.num_tokens > self._document_start:
                parts.append(self._separator)
                self.num_tokens += 1
                ends.append(self.num_tokens)
            elif piece.ends_document:
                self.num_empty_documents += 1
            if piece.ends_document:
                self._document_start = self.num_tokens
        data = np.concatenate(parts).tobytes()
        self.content_hash.update(data)
        self._tokens_file.write(data)
        self._ends_file.write(np.array(ends, dtype="<u8").tobytes())
        self.num_documents += len(ends)


def _write_all(writer: _Writer, source: TextSource, tokenizer: PreTrainedTokenizerBase, *, show_progress: bool) -> int:
    """Tokenise every document and return the bytes of text read."""
    from tqdm import tqdm

    encode = make_encoder(tokenizer, writer.dtype)
    num_text_bytes = 0
    bar = tqdm(
        desc=f"tokenise {source.description}",
        total=source.num_bytes,
        unit="B",
        unit_scale=True,
        file=sys.stderr,
        disable=not show_progress,
    )
    with bar:
        for batch in _batches(source.pieces()):
            texts = [piece.text for piece in batch]
            writer.add(batch, encode(texts))
            num_batch_bytes = sum(len(text.encode()) for text in texts)
            num_text_bytes += num_batch_bytes
            bar.set_postfix_str(f"{writer.num_tokens:,} tokens", refresh=False)
            bar.update(num_batch_bytes)
    return num_text_bytes


def _batches(pieces: Iterable[Piece]) -> Iterator[list[Piece]]:
    batch: list[Piece] = []
    num_chars = 0
    for piece in pieces:
        batch.append(piece)
        num_chars += len(piece.text)
        if num_chars >= MAX_BATCH_CHARS or len(batch) >= MAX_BATCH_PIECES:
            yield batch
            batch, num_chars = [], 0
    if batch:
        yield batch


def _sync(file: IO[bytes] | IO[str]) -> None:
    file.flush()
    os.fsync(file.fileno())
