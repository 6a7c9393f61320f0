"""Is a checkpoint what was written? Every byte against its checksum, shared among the ranks."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from scaling.checkpoint.errors import CheckpointError
from scaling.checkpoint.manifest import ANOTHER, FileEntry, read_manifest

PIECE_BYTES = 2**22


def verify(folder: Path, *, share: int = 0, num_shares: int = 1) -> None:
    """Read the files of one of ``num_shares`` parts of a checkpoint and compare their checksums.

    Raises:
        CheckpointError: the manifest is missing or damaged, or a file is missing, too short or changed; names it.
    """
    for entry in _shares(read_manifest(folder).files, num_shares)[share]:
        _verify_file(folder / entry.name, entry)


def _shares(files: Sequence[FileEntry], num_shares: int) -> list[list[FileEntry]]:
    """Return the files dealt so that no part is much larger than another: the largest first, to the smallest part."""
    shares: list[list[FileEntry]] = [[] for _ in range(num_shares)]
    sizes = [0] * num_shares
    for entry in sorted(files, key=lambda each: (-each.num_bytes, each.name)):
        index = sizes.index(min(sizes))
        shares[index].append(entry)
        sizes[index] += entry.num_bytes
    return shares


def _verify_file(path: Path, entry: FileEntry) -> None:
    digest = hashlib.sha256()
    try:
        if (size := path.stat().st_size) != entry.num_bytes:
            raise CheckpointError(f"{path} has {size} bytes and was written with {entry.num_bytes}; {ANOTHER}")
        with path.open("rb") as file:
            while piece := file.read(PIECE_BYTES):
                digest.update(piece)
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror}; {ANOTHER}") from error
    if digest.hexdigest() != entry.sha256:
        raise CheckpointError(f"{path} is damaged: its SHA-256 is not the one it was written with; {ANOTHER}")
