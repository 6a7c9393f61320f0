"""Corrected files: every repair of every finding done, until nothing is left to repair."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path

from scaling.explain.accelerate import plugin_config
from scaling.explain.accelerate_rules import AccelerateRun
from scaling.explain.explanation import Asked, Explanation, explain
from scaling.explain.findings import Finding, Severity
from scaling.explain.reading import ReadFile, Syntax
from scaling.explain.repair import repaired
from scaling.explain.sources import FileKind, Source, Sources
from scaling.explain.tree import Tree, block, get
from scaling.explain.yaml_text import yaml_text
from strategies.errors import ScalingError

MAX_ROUNDS = 8
"""A repair may bring the next to light; four are known to follow on each other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fixed:
    """One corrected file."""

    original: str
    """Name of the file that it corrects; empty for a file that is new."""
    path: Path
    text: str


def fixed_files(found: Explanation, asked: Asked, *, folder: Path | None) -> list[Fixed]:
    """Return the corrected files of a run; those that need no correction are left out.

    ``folder``: where they are to be written; None for beside the originals, as ``NAME.fixed.json``.

    Raises:
        ScalingError: a file cannot be read, so that there is nothing to correct.
    """
    if unreadable := [each.name for each in found.sources.all if each.file.tree is None]:
        raise ScalingError(f"{', '.join(unreadable)} cannot be read, so that nothing can be corrected in it")
    current, trees = _corrected(found, asked)
    return _as_files(current, found, trees, folder)


def left_to_do(found: Explanation, asked: Asked) -> list[Finding]:
    """Return the errors that no repair removes: what is right there, the files do not tell."""
    current, _ = _corrected(found, asked)
    return [each for each in current.findings if each.severity is Severity.ERROR and each.key not in LOST_PATHS]


def _corrected(found: Explanation, asked: Asked) -> tuple[Explanation, dict[str, Tree]]:
    trees = {each.name: each.tree for each in found.sources.all}
    current = found
    for _ in range(MAX_ROUNDS):
        changed = _one_round(current, trees)
        if changed == trees:
            break
        trees, current = changed, explain(_with_trees(current.sources, changed), asked)
    return current, trees


def _one_round(found: Explanation, trees: dict[str, Tree]) -> dict[str, Tree]:
    """Return the files with every repair done, but hints: those are no mistakes."""
    result = {}
    for name, tree in trees.items():
        findings = [each for each in found.findings if each.file == name and each.severity is not Severity.NOTE]
        result[name] = repaired(tree, (repair for each in findings for repair in each.repairs))
    return result


def _with_trees(sources: Sources, trees: dict[str, Tree]) -> Sources:
    changed = tuple(replace(each, file=_plain_file(each.file, trees[each.name])) for each in sources.all)
    return replace(sources, all=changed)


def _plain_file(file: ReadFile, tree: Tree) -> ReadFile:
    return replace(file, tree=tree, findings=(), is_clean=True)


def _as_files(current: Explanation, found: Explanation, trees: dict[str, Tree], folder: Path | None) -> list[Fixed]:
    files, places = list[Fixed](), dict[str, Path]()
    for source in found.sources.all:
        places[source.name] = _place(source, folder)
    yaml = found.sources.of(FileKind.ACCELERATE)
    if yaml and _loses_path(current, yaml.name):
        trees = {**trees, yaml.name: _split(trees[yaml.name], yaml, places, files)}
    for source in found.sources.all:
        tree = trees[source.name]
        changed = tree != source.tree or not source.file.is_clean
        if changed:
            files.append(Fixed(original=source.name, path=places[source.name], text=_text(tree, source.file.syntax)))
    return _with_new_names(files, found, trees, places)


def _with_new_names(
    files: list[Fixed], found: Explanation, trees: dict[str, Tree], places: dict[str, Path]
) -> list[Fixed]:
    """Return the files with the YAML naming the corrected JSON where that has another name than the original."""
    json_source, yaml = found.sources.of(FileKind.DEEPSPEED), found.sources.of(FileKind.ACCELERATE)
    if json_source is None or yaml is None or not any(each.original == json_source.name for each in files):
        return files
    key = "deepspeed_config.deepspeed_config_file"
    if not isinstance(get(trees[yaml.name], key, None), str):
        return files
    tree = repaired(trees[yaml.name], ())
    block(tree, "deepspeed_config")["deepspeed_config_file"] = str(places[json_source.name])
    text = _text(tree, yaml.file.syntax)
    return [
        *(each for each in files if each.original != yaml.name),
        Fixed(original=yaml.name, path=places[yaml.name], text=text),
    ]


def _place(source: Source, folder: Path | None) -> Path:
    path = source.file.path
    if folder is not None:
        return folder / path.name
    return path.with_name(f"{path.stem}.fixed{path.suffix or '.' + str(source.file.syntax)}")


def _text(tree: Tree, syntax: Syntax) -> str:
    return yaml_text(tree) if syntax is Syntax.YAML else json.dumps(tree, indent=2, ensure_ascii=False) + "\n"


LOST_PATHS = ("deepspeed_config.offload_optimizer_nvme_path", "deepspeed_config.offload_param_nvme_path")
"""Corrected by a second file."""


def _loses_path(found: Explanation, name: str) -> bool:
    return any(
        each.file == name and each.key in LOST_PATHS and each.severity is Severity.ERROR for each in found.findings
    )


def _split(tree: Tree, source: Source, places: dict[str, Path], files: list[Fixed]) -> Tree:
    """Return the YAML without DeepSpeed's settings, which go to a JSON: only there an NVMe path reaches DeepSpeed."""
    run = AccelerateRun(tree=tree, file=source.name, world_size=None)
    config = plugin_config(run)
    for name in ("offload_optimizer", "offload_param"):
        place = config["zero_optimization"][name]
        if place["device"] == "nvme" and not place["nvme_path"]:
            place["device"] = "cpu"  # no path was ever given
        if not place["nvme_path"]:
            del place["nvme_path"]
    path = places[source.name].with_suffix(".deepspeed.json")
    files.append(Fixed(original="", path=path, text=_text(config, Syntax.JSON)))
    kept = {name: value for name, value in tree.items() if name != "mixed_precision"}
    others = {
        name: value
        for name, value in run.deepspeed.items()
        if name.startswith("deepspeed_") or name == "zero3_init_flag"
    }
    return {**kept, "deepspeed_config": {**others, "deepspeed_config_file": str(path)}}


def write_fixed(files: list[Fixed], *, overwrite: bool) -> None:
    """Write corrected files.

    Raises:
        ScalingError: one of them exists already and ``overwrite`` is off, or cannot be written.
    """
    if existing := [str(each.path) for each in files if each.path.exists() and not overwrite]:
        raise ScalingError(f"{', '.join(existing)} exist already; give --out DIR for another folder, or --overwrite")
    try:
        for each in files:
            each.path.parent.mkdir(parents=True, exist_ok=True)
            each.path.write_text(each.text, encoding="utf-8")
    except (OSError, UnicodeError) as error:
        raise ScalingError(f"cannot write the corrected files: {error}; give --out DIR for another folder") from error
