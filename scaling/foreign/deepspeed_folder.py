"""The fp32 weights of a DeepSpeed checkpoint: ZeRO stage 1, 2 or 3 on any number of ranks, or a universal one.

Layouts: deepspeed 0.19.8, utils/zero_to_fp32.py and checkpoint/ds_to_universal.py, which unpickle whatever is there and
hold the whole model; this reads a tensor at a time.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from scaling.checkpoint.errors import CheckpointError
from scaling.errors import kind_and_line
from scaling.foreign.stored import StoredTensor, cut, of_pieces, safe_load

OPTIMIZER_FILES, MODEL_FILES = "*_optim_states.pt", "*_model_states.pt"
UNIVERSAL_FOLDER = "zero"
LATEST_FILES = ("latest", "latest_universal")
_RANK = re.compile(r"\d+")


def tagged_folder(folder: Path) -> Path:
    """Return the folder of one step, where ``folder`` is the one that was given to ``save_checkpoint``."""
    for latest in (folder / name for name in LATEST_FILES):
        with suppress(OSError):  # a name that is too long, or a file that may not be read, names no folder
            if (
                latest.is_file()
                and (step := folder / latest.read_text(encoding="utf-8", errors="replace").strip()).is_dir()
            ):
                return step
    return folder


def is_universal(folder: Path) -> bool:
    """Return whether DeepSpeed's converter has written the folder."""
    return (folder / UNIVERSAL_FOLDER).is_dir()


def is_zero(folder: Path) -> bool:
    """Return whether ranks under ZeRO have written the folder."""
    return any(folder.glob(OPTIMIZER_FILES))


def read_universal(folder: Path) -> dict[str, StoredTensor]:
    """Return the fp32 weights and the buffers of a universal checkpoint, by name.

    Raises:
        CheckpointError: a file is missing or damaged, or the folder is another one.
    """
    found = {path.parent.name: _universal_tensor(path) for path in sorted(folder.glob(f"{UNIVERSAL_FOLDER}/*/fp32.pt"))}
    if not found:
        raise CheckpointError(f"{folder} has no {UNIVERSAL_FOLDER}/NAME/fp32.pt; convert the checkpoint again")
    for path in _in_order(folder, MODEL_FILES)[:1]:
        found = {**_whole(safe_load(path), path), **found}
    return found


def read_zero(folder: Path) -> dict[str, StoredTensor]:
    """Return the fp32 weights and the buffers that the ranks have saved, by name.

    Raises:
        CheckpointError: a file is missing or damaged, or the model was cut over ranks in other ways too.
    """
    optimizers = [safe_load(path) for path in _in_order(folder, OPTIMIZER_FILES)]
    paths = _in_order(folder, MODEL_FILES)
    if not paths:
        raise CheckpointError(f"{folder} has no {MODEL_FILES}; take another checkpoint")
    models = [safe_load(path) for path in paths]
    try:
        states = [each["optimizer_state_dict"] for each in optimizers]
        _require_all_ranks(states, folder)
        stage = _number(states[0]["zero_stage"])
        read = _read_stage3 if stage == 3 else _read_stage12
        if stage != 3 and len(models) > 1:
            raise CheckpointError(
                f"{folder} is of a model cut by tensor or pipeline parallelism; merge it with DeepSpeed"
            )
        return {**_whole(models[0], paths[0]), **dict(read(states, models))}
    except (LookupError, AttributeError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"{folder} is no checkpoint of DeepSpeed's that is known here: {kind_and_line(error)}; "
            f"convert it with DeepSpeed's zero_to_fp32.py"
        ) from error


def _universal_tensor(path: Path) -> StoredTensor:
    content = safe_load(path)
    tensor = content.get("param") if isinstance(content, Mapping) else content
    if not isinstance(tensor, torch.Tensor):
        raise CheckpointError(f"{path} holds no tensor; convert the checkpoint again")
    # From stage 3 the converter writes the elements in a row and no shape.
    return StoredTensor(shape=tuple(tensor.shape), load=lambda: tensor, shape_is_known=isinstance(content, Mapping))


def _read_stage12(states: Sequence[Any], models: Sequence[Any]) -> Iterator[tuple[str, StoredTensor]]:
    """Yield tensors that lie one after the other in a group's vector, of which every rank has a part."""
    for name, fragment in (models[0].get("frozen_param_fragments") or {}).items():
        yield name, of_pieces(models[0]["frozen_param_shapes"][name], [fragment.reshape(-1)])
    for index, shapes in enumerate(models[0]["param_shapes"]):
        parts = [state["single_partition_of_fp32_groups"][index] for state in states]
        paddings = (states[0].get("param_alignment_paddings") or {index: [0] * len(shapes)})[index]
        start = 0
        for (name, shape), padding in zip(shapes.items(), paddings, strict=True):
            end = start + torch.Size(shape).numel()
            yield name, of_pieces(shape, _all_of(name, cut(parts, start, end), end - start))
            start = end + padding


def _read_stage3(states: Sequence[Any], models: Sequence[Any]) -> Iterator[tuple[str, StoredTensor]]:
    """Yield tensors of which every rank has an equal part, in its own vectors."""
    for name, shape in (models[0].get("frozen_param_shapes") or {}).items():
        fragments = [model["frozen_param_fragments"][name].reshape(-1) for model in models]
        yield name, of_pieces(shape, _all_of(name, fragments, torch.Size(shape).numel()))
    start = 0
    for name, shape in ((name, shape) for shapes in models[0]["param_shapes"] for name, shape in shapes.items()):
        size = torch.Size(shape).numel()
        end = start + -(-size // len(states))
        pieces = [piece for state in states for piece in cut(state["fp32_flat_groups"], start, end)]
        yield name, of_pieces(shape, _all_of(name, pieces, size))
        start = end


def _all_of(name: str, pieces: list[torch.Tensor], size: int) -> list[torch.Tensor]:
    if (found := sum(piece.numel() for piece in pieces)) < size:
        raise ValueError(f"{found} of the {size} elements of {name} are there")
    return pieces


def _whole(model: Any, path: Path) -> dict[str, StoredTensor]:
    """Return the buffers, which every rank has saved whole."""
    if not isinstance(model, Mapping) or not isinstance(module := model.get("module"), Mapping):
        raise CheckpointError(f"{path} is no file of DeepSpeed's: it has no module; take another checkpoint")
    names = model.get("buffer_names") or ()
    return {
        name: StoredTensor(shape=tuple(tensor.shape), load=lambda tensor=tensor: tensor)  # type: ignore[misc]
        for name, tensor in module.items()
        if name in names and isinstance(tensor, torch.Tensor)
    }


def _require_all_ranks(states: Sequence[Any], folder: Path) -> None:
    counts = states[0]["partition_count"]
    count = max(counts) if isinstance(counts, list) else counts
    if count != len(states):
        raise CheckpointError(
            f"{folder} has {len(states)} of the {count} files {OPTIMIZER_FILES}; put those of all ranks there"
        )


def _number(stage: Any) -> int:
    return int(stage.args[0]) if hasattr(stage, "args") else int(stage)


def _in_order(folder: Path, pattern: str) -> list[Path]:
    """Return the files by the ranks in their names, of which the tenth comes after the second."""
    return sorted(folder.glob(pattern), key=lambda path: [int(number) for number in _RANK.findall(path.name)])
