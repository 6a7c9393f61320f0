"""`ModelFolder`: a model that is written tensor by tensor, opened again and compared before it has its name."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import torch
import transformers

from scaling.checkpoint.tensor_file import TensorFile, byte_pieces
from scaling.disk import exporting
from scaling.errors import ExportError
from scaling.export_layout import Conversion, Unit, file_name, files_of, live_tensors, units_of
from scaling.models import auto_class

INDEX_FILE = "model.safetensors.index.json"
SAMPLE_TEXT = "def main() -> int:\n    return 0  # Zwölf Boxkämpfer\n"
"""Read with both tokenizers to see that the saved one cuts text the same way; any text would do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fingerprint:
    """What a tensor's numbers are recognised by when they are no longer in memory."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    sha256: str

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Fingerprint:
        digest = hashlib.sha256()
        for piece in byte_pieces(tensor):
            digest.update(piece)
        return cls(dtype=tensor.dtype, shape=tuple(tensor.shape), sha256=digest.hexdigest())


@final
class ModelFolder:
    """A folder that is being written, which appears complete and checked or not at all.

    In memory is the tensor that is written; where several are saved as one (`Unit`), those. Tensors that come before
    their turn wait as copies.
    """

    def __init__(self, folder: Path, shell: Any, *, max_shard_bytes: int) -> None:
        """``shell``: the model without its numbers, as `scaling.export.shell_of` makes it."""
        self._folder, self._shell = folder, shell
        place = folder.absolute()  # a dot has no name
        self._partial = place.parent / f".{place.name}.{uuid.uuid4().hex}.partial"  # no other process has this name
        self._conversion = Conversion(shell)
        self._expected = live_tensors(shell)
        units = units_of(shell, self._conversion)
        self._units = iter(units)
        self._unit: Unit | None = next(self._units)
        self._waiting: dict[str, torch.Tensor] = {}
        self._fingerprints: dict[str, Fingerprint] = {}
        self._files = files_of(units, max_shard_bytes=max_shard_bytes)
        self._num_opened = 0
        self._file: TensorFile | None = None
        self._stays = False
        """Whether what is there is to be looked at, though it is no model."""

    def add(self, name: str, tensor: torch.Tensor) -> None:
        """Take one of `live_tensors`, on any device and in any format: it is written in the shell's.

        Raises:
            ExportError: it cannot be written, or the folder exists.
        """
        with exporting(self._folder, partial=self._partial):
            self._waiting[name] = kept = tensor.detach().to("cpu", self._expected[name].dtype)
            while self._unit is not None and all(source in self._waiting for source in self._unit.sources):
                self._write(self._unit)
                self._unit = next(self._units, None)
            if name in self._waiting and kept.data_ptr() == tensor.data_ptr():
                self._waiting[name] = kept.clone()  # what was given is only lent

    def finish(self, tokenizer: Any) -> None:
        """Write what belongs to the weights, open the folder, compare, and give it its name.

        Raises:
            ExportError: tensors have not come, or the folder does not open as what came.
        """
        if self._unit is not None:
            missing = [name for name in self._unit.sources if name not in self._waiting]
            raise ExportError(f"the model cannot be written to {self._folder}: it has no {missing[0]}")
        with exporting(self._folder, partial=self._partial):
            self._close_file()
            self._write_rest(tokenizer)
            self._stays = True
            check_export(self._partial, self._fingerprints, tokenizer, auto_class=auto_class(self._shell.config))
            self._partial.rename(self._folder)

    def abandon(self) -> None:
        """Remove what is written, but for a folder that does not open as it should."""
        if self._file is not None:
            with suppress(OSError):  # what a full disk has not taken it does not take now
                self._file.close()
        if not self._stays:
            shutil.rmtree(self._partial, ignore_errors=True)

    def _write(self, unit: Unit) -> None:
        converted = self._conversion({name: self._waiting.pop(name) for name in unit.sources})
        for name, tensor in converted.opened.items():
            self._fingerprints[name] = Fingerprint.of(tensor)
        for planned in unit.saved:
            if self._file is None or self._file.is_complete:
                self._close_file()
                self._file = self._next_file()
            self._file.add(converted.saved[planned.key])

    def _next_file(self) -> TensorFile:
        require_absent(self._folder)
        self._partial.mkdir(parents=True, exist_ok=True)
        index, self._num_opened = self._num_opened, self._num_opened + 1
        path = self._partial / file_name(index, len(self._files))
        return TensorFile(path, self._files[index], metadata={"format": "pt"})

    def _close_file(self) -> None:
        if self._file is not None:
            self._file.finish()
            self._file.close()
            self._file = None

    def _write_rest(self, tokenizer: Any) -> None:
        if len(self._files) > 1:
            (self._partial / INDEX_FILE).write_text(json.dumps(self._index(), indent=2, sort_keys=True) + "\n")
        # As transformers' save_pretrained does beside the weights (5.24, modeling_utils.py).
        config = self._shell.config
        config.dtype = str(self._shell.dtype).removeprefix("torch.")
        config.architectures = [type(self._shell).__name__]
        if hasattr(config, "use_cache"):
            config.use_cache = True  # training had switched it off
        config.save_pretrained(self._partial)
        if self._shell.can_generate():
            self._shell.generation_config.save_pretrained(self._partial)
        if tokenizer is not None:
            tokenizer.save_pretrained(self._partial)

    def _index(self) -> dict[str, Any]:
        numbered = list(enumerate(self._files))
        names = {each.key: file_name(index, len(numbered)) for index, planned in numbered for each in planned}
        total = sum(each.num_bytes for _, planned in numbered for each in planned)
        return {"metadata": {"total_size": total}, "weight_map": names}


def require_absent(folder: Path) -> None:
    """Refuse a folder that is there: what is in it stays.

    Raises:
        ExportError: names it.
    """
    if os.path.exists(folder):  # where that may not be known, False: writing tells
        raise ExportError(f"{folder} already exists; move it away")


def check_export(
    folder: Path,
    expected: Mapping[str, Fingerprint],
    tokenizer: Any,
    *,
    auto_class: Any = transformers.AutoModelForCausalLM,
) -> None:
    """Open ``folder`` as a user would and compare every tensor with what was given, and the tokenizer with its own.

    Raises:
        ExportError: names the tensors that are absent, extra or different.
    """
    reopened, report = auto_class.from_pretrained(folder, dtype="auto", output_loading_info=True)
    problems = [f"{kind} {sorted(names)[:3]}" for kind, names in report.items() if names]
    found = reopened.state_dict()
    problems += [f"not in the file: {name}" for name in expected.keys() - found.keys()]
    problems += [f"different: {name}" for name in _different(found, expected)]
    if tokenizer is not None and _ids_of(transformers.AutoTokenizer.from_pretrained(folder)) != _ids_of(tokenizer):
        problems.append("the saved tokenizer cuts text differently")
    if problems:
        raise ExportError(
            f"{folder} does not open as the model that was trained: {'; '.join(problems[:5])}; "
            f"what was written stays there"
        )


def _different(found: Mapping[str, torch.Tensor], expected: Mapping[str, Fingerprint]) -> Iterator[str]:
    return (name for name in expected.keys() & found.keys() if Fingerprint.of(found[name]) != expected[name])


def _ids_of(tokenizer: Any) -> Any:
    return tokenizer(SAMPLE_TEXT)["input_ids"]
