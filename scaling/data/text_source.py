"""`TextSource`: documents in a fixed order, handed out in pieces of bounded size."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

MAX_PIECE_CHARS = 1 << 16
"""Longest text a tokenizer gets. One file may be a whole corpus, and pieces of it are spread over all cores."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A document, or a part of a long one."""

    text: str
    ends_document: bool


class TextSource(ABC):
    """Documents of one corpus. The same documents in the same order on every call of ``pieces``."""

    @property
    @abstractmethod
    def description(self) -> str:
        """What is read, for people: the name as the user gave it, and how many files of which kind."""

    @property
    @abstractmethod
    def num_bytes(self) -> int | None:
        """Bytes of text that ``pieces`` will give, or ``None`` if only reading would tell."""

    @abstractmethod
    def identity(self) -> str:
        """Return a text that changes whenever the documents may have changed."""

    @abstractmethod
    def pieces(self) -> Iterator[Piece]:
        """Return the documents, long ones in several pieces; only one piece is held in memory at a time."""


def document_pieces(chunks: Iterable[str]) -> Iterator[Piece]:
    """Return one document, given in chunks, as pieces of at most ``MAX_PIECE_CHARS`` characters.

    Cut between a line end and a visible character where possible. The regular expressions that split text before BPE
    (GPT-2, Llama 3) end a word there, so such a cut changes no token; one elsewhere may change the tokens beside it. A
    SentencePiece tokenizer that adds a space in front of a text adds it to every piece.
    """
    pending = ""
    for chunk in chunks:
        pending += chunk
        while len(pending) > MAX_PIECE_CHARS:
            cut = cut_position(pending[:MAX_PIECE_CHARS])
            yield Piece(text=pending[:cut], ends_document=False)
            pending = pending[cut:]
    yield Piece(text=pending, ends_document=True)


def string_pieces(text: str) -> Iterator[Piece]:
    """Return one document held in memory as pieces."""
    return document_pieces(text[start : start + MAX_PIECE_CHARS] for start in range(0, len(text), MAX_PIECE_CHARS))


def cut_position(text: str) -> int:
    """Return where to cut ``text`` in two: the last line end before a visible character, any line end, or its end."""
    position = len(text)
    while (position := text.rfind("\n", 0, position)) >= 0:
        if not text[position + 1 : position + 2].isspace() and position + 1 < len(text):
            return position + 1
    return text.rfind("\n") + 1 or len(text)
