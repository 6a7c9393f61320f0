"""What a model folder will hold, settled before the numbers are there: which tensors, from which, in which file."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

from torch import Tensor, nn
from transformers.core_model_loading import revert_weight_conversion

from scaling.adapters import adapted_layers, merged
from scaling.checkpoint.tensor_file import PlannedTensor
from scaling.scalars import as_saved

_BLOCK = re.compile(r"^.*?\.\d+\.")
"""Up to the first number in a name: the repeated block that a tensor is in."""


def live_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return what a model is saved from, in the order in which engines give it: parameters once, kept buffers."""
    kept = model.state_dict(keep_vars=True).keys()
    return {**dict(model.named_parameters()), **{name: each for name, each in model.named_buffers() if name in kept}}


def aliases_of(model: nn.Module) -> dict[str, tuple[Tensor, list[str]]]:
    """Return `live_tensors`, each with all names that the model's state has for it: more than one where it is tied."""
    names: dict[int, list[str]] = defaultdict(list)
    for name, tensor in model.state_dict(keep_vars=True).items():
        names[id(tensor)].append(name)
    return {name: (tensor, names[id(tensor)]) for name, tensor in live_tensors(model).items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """Tensors that are written together, since what is saved of them needs them all: mostly one alone."""

    sources: tuple[str, ...]
    """In the model as it is trained."""
    saved: tuple[PlannedTensor, ...]
    """In the folder, in the order in which they are written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Converted:
    """Tensors of one unit as others know them."""

    opened: Mapping[str, Tensor]
    """By their names in the model that is opened from the folder, a tied one under each of its names."""
    saved: Mapping[str, Tensor]
    """By their names in the folder, a tied one once."""


@final
class Conversion:
    """From tensors of a trained model to those of its folder: adapters merged, ties named once, older names."""

    def __init__(self, shell: Any) -> None:
        self._shell = shell
        self.adapted = {f"{name}." for name, _ in adapted_layers(shell)}
        self._names = {name: names for name, (_, names) in aliases_of(shell).items()}
        self._tied = frozenset(getattr(shell, "all_tied_weights_keys", None) or {})
        self._left_out = frozenset(shell._keys_to_ignore_on_save or ())

    def __call__(self, members: Mapping[str, Tensor]) -> Converted:
        """Return what becomes of tensors that are complete in themselves; see `units_of`."""
        plain = as_saved(self._shell, dict(members))
        if self.adapted:
            plain = merged(self._shell, plain)
        names = {name: self._names.get(name, [name]) for name in plain}
        opened = {alias: plain[name] for name, aliases in names.items() for alias in aliases}
        saved = {self._saved_name(aliases): plain[name] for name, aliases in names.items()}
        kept = {name: tensor for name, tensor in saved.items() if name not in self._left_out}
        return Converted(opened=opened, saved=dict(revert_weight_conversion(self._shell, kept)))

    def _saved_name(self, aliases: Sequence[str]) -> str:
        """Return the name that the library ties the others to when it opens the folder."""
        return next((name for name in aliases if name not in self._tied), aliases[0])


def units_of(shell: Any, conversion: Conversion) -> list[Unit]:
    """Return the smallest parts of a model that can be saved one after the other, in the order of their last tensor.

    Tensors alone, where that gives the same names and shapes as all at once; else blocks; else all together.
    ``shell``: the model, maybe without numbers.
    """
    tensors = live_tensors(shell)
    whole = _planned(conversion, tensors)
    for key in (_alone(conversion.adapted), _by_block, lambda _: ""):
        parts: dict[str, list[str]] = {}
        for name in tensors:
            members = parts.pop(key(name), [])  # its turn is that of its last tensor
            parts[key(name)] = [*members, name]
        try:
            units = [
                Unit(sources=tuple(part), saved=_planned(conversion, {name: tensors[name] for name in part}))
                for part in parts.values()
            ]
        except Exception:  # whatever a conversion raises that lacks a partner
            continue
        if sorted(_each(units), key=_key) == sorted(whole, key=_key):
            break
    return units


def _alone(adapted: Iterable[str]) -> Callable[[str], str]:
    """Return what puts every tensor alone, but a layer together with its adapter."""
    return lambda name: next((layer for layer in adapted if name.startswith(layer)), name)


def _by_block(name: str) -> str:
    match = _BLOCK.match(name)
    return match[0] if match else name


def _planned(conversion: Conversion, members: Mapping[str, Tensor]) -> tuple[PlannedTensor, ...]:
    return tuple(PlannedTensor.of(name, tensor) for name, tensor in conversion(members).saved.items())


def _each(units: Iterable[Unit]) -> list[PlannedTensor]:
    return [planned for unit in units for planned in unit.saved]


def _key(planned: PlannedTensor) -> tuple[str, tuple[int, ...]]:
    return planned.key, planned.shape


def files_of(units: Iterable[Unit], *, max_shard_bytes: int) -> list[list[PlannedTensor]]:
    """Return what each file holds, in the order of writing; a tensor that is larger has one of its own."""
    files: list[list[PlannedTensor]] = [[]]
    num_bytes = 0
    for planned in _each(units):
        if files[-1] and num_bytes + planned.num_bytes > max_shard_bytes:
            files.append([])
            num_bytes = 0
        files[-1].append(planned)
        num_bytes += planned.num_bytes
    return files


def file_name(index: int, num_files: int) -> str:
    """Return the name that Hugging Face gives a file of weights; ``index`` counts from 0.

    >>> file_name(0, 1), file_name(1, 3)
    ('model.safetensors', 'model-00002-of-00003.safetensors')
    """
    return "model.safetensors" if num_files == 1 else f"model-{index + 1:05d}-of-{num_files:05d}.safetensors"
