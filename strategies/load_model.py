"""What a model argument means: a preset, a folder, a config.json, a hub id or the config itself."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from strategies.architectures import ARCHITECTURES, spec_from_config
from strategies.architectures.config import shown
from strategies.errors import SpecError
from strategies.hub_config import cached_folder, fetch_config, is_hub_id
from strategies.model_aliases import ALIASES
from strategies.model_spec import ModelSpec
from strategies.presets import configs_folder

MAX_CONFIG_BYTES = 2**24
"""The largest published config.json (label names of thousands of classes) stays below one megabyte."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedModel:
    """One model argument, resolved. Planning and training start from the same one."""

    name: str
    """Preset name, folder or file as given, hub id, or ``inline <model_type>``."""
    config: Mapping[str, Any]
    """The raw config.json."""
    folder: Path | None = None
    """Local folder that Hugging Face's ``from_pretrained`` opens; None for a preset or an inline config."""
    origin: str
    """Where the config was found, as a phrase to print."""
    is_local: bool = False
    """Found at a path that was given, which means another place from another working directory."""


def load_model_spec(model: str | Mapping[str, Any]) -> ModelSpec:
    """Return the spec of ``model``: preset name, folder, config.json, hub id or config object.

    Raises:
        SpecError: it cannot be found or read, or describes a model that is not known.
    """
    return model_spec(resolve_model(model))


def model_spec(resolved: ResolvedModel) -> ModelSpec:
    """Return the spec that a resolved model's config describes.

    Raises:
        SpecError: the config describes a model that is not known, or holds impossible values.
    """
    return spec_from_config(resolved.config, name=resolved.name)


def resolve_model(model: str | Mapping[str, Any]) -> ResolvedModel:
    """Return the config that ``model`` stands for and where it was found.

    A path that exists comes first, then the Hugging Face cache, the presets, and last the network; so a preset stands
    in for a hub id of the same architecture until the real files are there.

    Raises:
        SpecError: nothing by that name, or its config.json cannot be read.
    """
    if isinstance(model, Mapping):
        return _inline(model)
    if not isinstance(model, str) or not model.strip() or not model.isprintable():
        raise SpecError(
            f"model={shown(model)} is no model; give a preset, a folder, a config.json, a hub id or a config"
        )
    found = _local(model) or _cached(model) or resolve_preset(model) or _downloaded(model)
    if found:
        return found
    raise SpecError(f"model {model} is not known: {_not_found(model)}")


def preset_names() -> tuple[str, ...]:
    """Return the names of all presets, sorted."""
    return tuple(sorted(path.stem for path in _preset_folder().glob("*.json")))


def preset_path(name: str) -> Path | None:
    """Return the file of the preset called ``name``, or of the one that it is another name for; case is ignored."""
    lower = name.lower()
    preset = ALIASES.get(lower, lower)
    path = _preset_folder() / f"{preset}.json"
    return path if "/" not in preset and is_hub_id(preset) and path.is_file() else None


def resolve_preset(name: str) -> ResolvedModel | None:
    """Return the preset called ``name``, or with that other name; None where there is none."""
    path = preset_path(name)
    if path is None:
        return None
    return ResolvedModel(name=path.stem, config=_read_config(path), origin=f"preset {path}")


def _preset_folder() -> Path:
    return configs_folder() / "models"


def _inline(config: Mapping[str, Any]) -> ResolvedModel:
    if not all(isinstance(key, str) for key in config):
        raise SpecError("the inline model config has keys that are not text; give it as in a config.json")
    name = config.get("_name_or_path")
    if not (isinstance(name, str) and name and name.isprintable()):
        model_type = config.get("model_type")
        name = f"inline {model_type if isinstance(model_type, str) and model_type in ARCHITECTURES else 'config'}"
    return ResolvedModel(name=name, config=config, origin="given inline")


def _expanded(model: str) -> Path:
    try:
        return Path(model).expanduser()
    except RuntimeError:  # the home folder of a user that does not exist
        return Path(model)


def _local(model: str) -> ResolvedModel | None:
    path = _expanded(model)
    try:
        is_folder, is_file = path.is_dir(), path.is_file()
    except OSError:  # for instance a name that is too long
        return None
    if is_file:
        folder = path.parent if path.name == "config.json" else None
        return ResolvedModel(name=model, config=_read_config(path), folder=folder, origin=f"file {path}", is_local=True)
    if is_folder and (path / "config.json").exists():
        config = _read_config(path / "config.json")
        return ResolvedModel(name=model, config=config, folder=path, origin=f"folder {path}", is_local=True)
    return None


def _cached(model: str) -> ResolvedModel | None:
    folder = cached_folder(model) if is_hub_id(model) else None
    if folder is None:
        return None
    config = _read_config(folder / "config.json")
    return ResolvedModel(name=model, config=config, folder=folder, origin=f"Hugging Face cache {folder}")


def _downloaded(model: str) -> ResolvedModel | None:
    """Return the hub's config; None for a file name or a name without organisation, so that mistypes ask no network."""
    if "/" not in model or model.endswith(".json") or not is_hub_id(model):
        return None
    fetched = fetch_config(model)
    if fetched.text is None:
        raise SpecError(
            f"model {model} is not a folder, not in the Hugging Face cache and not a preset{_closest(model)}, and "
            f"{fetched.failure}; give a folder with its config.json"
        )
    config = _parse(fetched.text, source=f"{model}/config.json on the hub")
    return ResolvedModel(name=model, config=config, origin="Hugging Face hub")


def _not_found(model: str) -> str:
    path = _expanded(model)
    if model.endswith(".json") or not is_hub_id(model):
        return f"no file or folder {path}; give the path of a config.json or of a folder that holds one"
    if path.is_dir():
        return f"folder {path} has no config.json; give a folder that holds one, or a preset{_closest(model)}"
    return f"no preset, folder or cached model by that name{_closest(model)}; a hub id is written organisation/model"


def _closest(model: str) -> str:
    import difflib

    name = model.lower().split("/")[-1]
    matches = difflib.get_close_matches(name, preset_names(), n=3, cutoff=0.5)
    return f" (closest presets: {', '.join(matches)})" if matches else ""


def _read_config(path: Path) -> Mapping[str, Any]:
    try:
        if path.stat().st_size > MAX_CONFIG_BYTES:
            raise SpecError(f"{path} is larger than {MAX_CONFIG_BYTES} bytes; give a config.json, not weights")
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise SpecError(f"{path} is not JSON: it is not UTF-8 text; give a config.json") from error
    except OSError as error:
        raise SpecError(f"cannot read {path}: {error.strerror or error}; give a readable config.json") from error
    return _parse(text, source=str(path))


def _parse(text: str, *, source: str) -> Mapping[str, Any]:
    try:
        config = json.loads(text)
    except (ValueError, RecursionError) as error:  # RecursionError: nested beyond reason
        raise SpecError(f"{source} is not JSON: {error}; give a Hugging Face config.json") from error
    if not isinstance(config, dict):
        raise SpecError(f"{source} holds a {type(config).__name__}, not an object; give a Hugging Face config.json")
    return config
