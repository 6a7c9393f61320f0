"""Writing a checkpoint: every rank its share, beside the target, which appears when all of it is on the disk."""

from __future__ import annotations

import hashlib
import os
import shutil
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from scaling.checkpoint.errors import CheckpointError, SaveFailed
from scaling.checkpoint.manifest import MANIFEST_FILE, FileEntry, Manifest, TrainingState, write_manifest
from scaling.checkpoint.meeting import Meeting
from scaling.checkpoint.names import PARTIAL, REPLACED, checkpoint_name, remove_checkpoint
from scaling.checkpoint.snapshot import Snapshot
from scaling.checkpoint.tensor_file import NamedTensor, write_tensors
from scaling.disk import what_failed
from strategies.units import format_bytes

MAX_FILE_BYTES = 4 * 2**30
"""A rank begins another file beyond: files are verified in parallel, and some file systems hold none above 4 GiB."""
SPARE = 1.02
"""Of the space that is asked for: headers, manifest and the file system's blocks."""


def open_partial(snapshot: Snapshot, parent: Path, meeting: Meeting) -> Path:
    """Return the new folder in ``parent`` into which all ranks write.

    Raises:
        SaveFailed: space is missing, or the operating system refuses; on every rank.
    """
    num_bytes = sum(meeting.gather(lambda: snapshot.num_bytes))
    return meeting.on_main(lambda: _open_partial(parent, snapshot.manifest.state, num_bytes=num_bytes))


def write(snapshot: Snapshot, partial: Path, meeting: Meeting, documents: Mapping[str, str]) -> Path:
    """Write every rank's share and return the folder of the complete checkpoint; every rank must call this.

    Raises:
        SaveFailed: the operating system refuses; nothing is left behind and every earlier checkpoint is as it was.
        CheckpointError: the nodes share no folder. Both are raised on every rank.
    """
    try:
        files = meeting.gather(lambda: _write_files(snapshot.tensors, partial, rank=snapshot.rank))
        manifest = replace(snapshot.manifest, files=tuple(entry for of_rank in files for entry in of_rank))
        return meeting.on_main(lambda: _complete(partial, manifest, documents))
    except CheckpointError:
        if snapshot.rank == 0:
            shutil.rmtree(partial, ignore_errors=True)
        raise


def _open_partial(parent: Path, state: TrainingState, *, num_bytes: int) -> Path:
    """Return a new folder beside the target, on the same file system, if the checkpoint fits there."""
    partial = parent / f".{checkpoint_name(state.step)}.{uuid.uuid4().hex}{PARTIAL}"
    try:
        partial.mkdir(parents=True)
        free = shutil.disk_usage(parent).free
    except OSError as error:
        with suppress(OSError):
            partial.rmdir()
        raise SaveFailed(f"cannot write a checkpoint to {what_failed(parent, error)}") from error
    if num_bytes * SPARE > free:
        partial.rmdir()
        raise SaveFailed(
            f"a checkpoint needs {format_bytes(num_bytes)}, but {parent} has {format_bytes(free)} free; nothing was "
            f"written: free space or lower --keep-last"
        )
    return partial


def _write_files(tensors: Sequence[NamedTensor], folder: Path, *, rank: int) -> list[FileEntry]:
    written = []
    for number, of_file in enumerate(_cut(tensors)):
        path = folder / f"rank{rank:05d}-{number:03d}.safetensors"
        try:
            num_bytes, sha256 = write_tensors(path, of_file)
        except OSError as error:
            raise SaveFailed(f"cannot write a checkpoint to {what_failed(path, error)}") from error
        written.append(FileEntry(name=path.name, rank=rank, num_bytes=num_bytes, sha256=sha256))
    return written


def _cut(tensors: Sequence[NamedTensor]) -> Iterator[list[NamedTensor]]:
    members: list[NamedTensor] = []
    num_bytes = 0
    for each in tensors:
        if members and num_bytes + each.num_bytes > MAX_FILE_BYTES:
            yield members
            members, num_bytes = [], 0
        members.append(each)
        num_bytes += each.num_bytes
    yield members


def _complete(partial: Path, manifest: Manifest, documents: Mapping[str, str]) -> Path:
    """Write the documents and, last, the manifest; then give the folder its name."""
    target = partial.with_name(checkpoint_name(manifest.state.step))
    try:
        if absent := [each.name for each in manifest.files if not (partial / each.name).is_file()]:
            raise CheckpointError(
                f"{absent[0]} was written by another node and is not in {partial} on this one; give a folder that "
                f"all nodes share"
            )
        texts = [_document(partial / name, text) for name, text in documents.items()]
        write_manifest(replace(manifest, files=(*manifest.files, *texts)), partial / MANIFEST_FILE)
        _to_disk(partial / MANIFEST_FILE)
        _to_disk(partial)
        replaced = _set_aside(target)
        partial.rename(target)
        _to_disk(target.parent)
        if replaced is not None:
            remove_checkpoint(replaced)
    except OSError as error:
        raise SaveFailed(f"cannot write a checkpoint to {what_failed(target, error)}") from error
    return target


def _document(path: Path, text: str) -> FileEntry:
    content = text.encode()
    path.write_bytes(content)
    _to_disk(path)
    return FileEntry(name=path.name, rank=0, num_bytes=len(content), sha256=hashlib.sha256(content).hexdigest())


def _set_aside(target: Path) -> Path | None:
    """Rename a checkpoint whose place another of the same step takes; until that is there it is found by this name."""
    if not target.exists():
        return None
    return target.rename(target.with_name(f".{target.name}.{uuid.uuid4().hex}{REPLACED}"))


def _to_disk(path: Path) -> None:
    """Wait until a file, or the names in a folder, would survive a loss of power."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
