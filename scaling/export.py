"""The trained model as a folder that Hugging Face's ``from_pretrained`` opens, compared with the live weights first."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import torch
import transformers

from scaling.disk import exporting
from scaling.engines.base import Engine
from scaling.errors import ExportError
from scaling.models import auto_class
from scaling.scalars import as_saved

SAMPLE_TEXT = "def main() -> int:\n    return 0  # Zwölf Boxkämpfer\n"
"""Read with both tokenizers to see that the saved one cuts text the same way; any text would do."""


def gather_state(engine: Engine) -> dict[str, torch.Tensor] | None:
    """Return the whole model on rank 0 as CPU tensors by name, tied weights under every name; None elsewhere.

    Every rank must call this. A tensor at a time is gathered, so only rank 0's host memory holds the whole.
    """
    is_main = engine.rank == 0
    whole: dict[str, torch.Tensor] = {}
    for name, tensor in engine.gathered_parameters():
        if is_main:
            whole[name] = tensor.detach().to("cpu", copy=True)
    if not is_main:
        return None
    first_names = {id(parameter): name for name, parameter in engine.model.named_parameters()}
    live = engine.model.state_dict(keep_vars=True)  # parameters as such, also the second name of a tied one; buffers
    state = {
        name: whole[first_names[id(tensor)]] if id(tensor) in first_names else tensor.detach().cpu()
        for name, tensor in live.items()
    }
    return as_saved(engine.model, state)


def export_model(model: Any, state: dict[str, torch.Tensor], tokenizer: Any, *, folder: Path) -> None:
    """Write ``state`` and the tokenizer to ``folder``, which appears complete and checked or not at all.

    ``tokenizer``: None for a model that reads no text.

    Raises:
        ExportError: the folder exists, cannot be written, or does not open as what was trained.
    """
    if folder.exists():
        raise ExportError(f"{folder} already exists; move it away")
    partial = folder.with_name(f".{folder.name}.{uuid.uuid4().hex}.partial")  # no other process has this name
    with exporting(folder, partial=partial):
        partial.mkdir(parents=True)
        _write(model, state, tokenizer, folder=partial)
        check_export(partial, state, tokenizer, auto_class=auto_class(model.config))
        partial.rename(folder)


def check_export(
    folder: Path, state: dict[str, torch.Tensor], tokenizer: Any, *, auto_class: Any = transformers.AutoModelForCausalLM
) -> None:
    """Open ``folder`` as a user would and compare every tensor with ``state``, and the tokenizer with ``tokenizer``.

    Raises:
        ExportError: names the tensors that are absent, extra or different.
    """
    reopened, report = auto_class.from_pretrained(folder, dtype="auto", output_loading_info=True)
    problems = [f"{kind} {sorted(names)[:3]}" for kind, names in report.items() if names]
    saved = reopened.state_dict()
    problems += [f"not in the file: {name}" for name in state.keys() - saved.keys()]
    problems += [f"different: {name}" for name in state.keys() & saved.keys() if not _same(state[name], saved[name])]
    if tokenizer is not None and _ids_of(transformers.AutoTokenizer.from_pretrained(folder)) != _ids_of(tokenizer):
        problems.append("the saved tokenizer cuts text differently")
    if problems:
        raise ExportError(
            f"{folder} does not open as the model that was trained: {'; '.join(problems[:5])}; "
            f"what was written stays there"
        )


def _write(model: Any, state: dict[str, torch.Tensor], tokenizer: Any, *, folder: Path) -> None:
    caches = hasattr(model.config, "use_cache")
    if caches:
        model.config.use_cache = True  # training had switched it off
    try:
        # A copy of the dict: saving empties it. The tensors are shared.
        model.save_pretrained(folder, state_dict=dict(state))
    finally:
        if caches:
            model.config.use_cache = False
    if tokenizer is not None:
        tokenizer.save_pretrained(folder)


def _ids_of(tokenizer: Any) -> Any:
    return tokenizer(SAMPLE_TEXT)["input_ids"]


def _same(first: torch.Tensor, second: torch.Tensor) -> bool:
    return first.dtype == second.dtype and torch.equal(first, second)
