"""``scaling explain``: what configuration files of DeepSpeed, accelerate and the Trainer mean, and what is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from scaling.cli import options
from scaling.explain.sources import FileKind, Launcher, Target
from strategies.errors import PlanError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from scaling.explain.explanation import Asked, Explanation
    from scaling.explain.fit import Fitting
    from scaling.explain.key_table import KeyTable
    from strategies.cluster import Cluster
    from strategies.model_spec import ModelSpec


def explain(
    files: Annotated[list[str], typer.Argument(help="Files of one run: JSON or YAML.")],
    world_size: Annotated[
        int | None, typer.Option(min=1, help="Processes that are started; default: what the files say.", metavar="N")
    ] = None,
    launcher: Annotated[
        Launcher | None, typer.Option(help=options.one_of(Launcher, "Who reads them"), metavar="NAME")
    ] = None,
    kind: Annotated[
        FileKind | None,
        typer.Option("--kind", help=options.one_of(FileKind, "Where no key tells what a file is"), metavar="KIND"),
    ] = None,
    fix: Annotated[bool, typer.Option("--fix", help="Write corrected files beside them, as NAME.fixed.json.")] = False,
    to: Annotated[
        Target | None,
        typer.Option(help=options.one_of(Target, "Print the same run for another program"), metavar="KIND"),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for what --fix writes.", metavar="DIR")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace files that --fix wrote.")] = False,
    all: Annotated[bool, typer.Option("--all", help="Show every default.")] = False,
    model: Annotated[
        str | None, typer.Option("--model", help="Does it fit? Preset, folder, config.json or hub id.", metavar="MODEL")
    ] = None,
    seq_len: options.MaybeSeqLen = None,
    gpus: options.Gpus = None,
    gpu: options.GpuName = "auto",
    gpus_per_node: options.GpusPerNode = None,
    gpu_memory_gib: options.GpuMemoryGib = None,
    host_memory_gib: options.HostMemoryGib = None,
    json: options.AsJson = False,
) -> None:
    """Print what configuration files mean: every value with its origin, what contradicts itself, what does nothing.

    DeepSpeed JSON, accelerate YAML and TrainingArguments (JSON or YAML); give those of one run together.
    Exit code 0: no mistake (there may be warnings), 2: a mistake.
    """
    import json as as_json

    from scaling.explain import report
    from scaling.explain.explanation import explain as explain_sources
    from scaling.explain.findings import exit_code
    from scaling.explain.installed import installed_tables
    from scaling.explain.sources import load_sources

    if fix and to:
        raise PlanError("--fix and --to are two tasks; give one of them")
    sources, tables = load_sources(files, kind=kind), installed_tables()
    spec = _spec(model)
    asked = _asked(world_size or gpus, launcher, spec, tables.by_package)
    found = explain_sources(sources, asked)
    cluster = _cluster(
        found.world_size or gpus,
        spec,
        gpu=gpu,
        gpus_per_node=gpus_per_node,
        gpu_memory_gib=gpu_memory_gib,
        host_memory_gib=host_memory_gib,
    )
    if to is not None:
        _print_converted(found, to, spec=spec, cluster=cluster, seq_len=seq_len, model=model)
        return
    if fix:
        _fix(found, asked, out=out, overwrite=overwrite)
    fit = _fit(found, spec, cluster=cluster, seq_len=seq_len, model=model)
    if json:
        typer.echo(as_json.dumps(report.as_json(found, fit, versions=tables.notes), indent=2, default=str))
    else:
        told = [*report.lines(found, everything=all, versions=tables.notes), *(report.fit_lines(fit) if fit else ())]
        typer.echo("\n".join(told))
    raise typer.Exit(exit_code(found.findings))


def _asked(
    world_size: int | None, launcher: Launcher | None, spec: ModelSpec | None, tables: Mapping[str, KeyTable]
) -> Asked:
    from scaling.explain.explanation import Asked
    from scaling.explain.fit import largest_parameter

    return Asked(
        world_size=world_size,
        launcher=launcher,
        hidden_size=spec.hidden_size if spec else None,
        largest_parameter=largest_parameter(spec) if spec else None,
        tables=tables,
    )


def _spec(model: str | None) -> ModelSpec | None:
    from strategies.load_model import load_model_spec

    return None if model is None else load_model_spec(model)


def _cluster(gpus: int | None, spec: ModelSpec | None, **flags: Any) -> Cluster | None:
    """Return the cluster of the flags, None where no model is asked about."""
    from strategies.detect import build_cluster

    return None if spec is None else build_cluster(gpus=gpus, **flags)


def _fit(
    found: Explanation, spec: ModelSpec | None, *, cluster: Cluster | None, seq_len: int | None, model: str | None
) -> Fitting | None:
    """Return whether the run fits; None where no model is asked about, or the files have mistakes.

    Raises:
        PlanError: a model is given without a sequence length.
    """
    from scaling.explain.findings import exit_code
    from scaling.explain.fit import fitting
    from scaling.explain.settings import settings_of

    if spec is None or cluster is None:
        return None
    if seq_len is None:
        raise PlanError("--model asks whether it fits; give --seq-len too")
    if exit_code(found.findings):
        typer.echo("Whether it fits is told once the mistakes are corrected.", err=True)
        return None
    return fitting(settings_of(found), spec, cluster=cluster, seq_len=seq_len, model=str(model))


def _print_converted(
    found: Explanation,
    to: Target,
    *,
    spec: ModelSpec | None,
    cluster: Cluster | None,
    seq_len: int | None,
    model: str | None,
) -> None:
    from scaling.explain.convert import convert
    from scaling.explain.fit import as_decision
    from scaling.explain.settings import settings_of
    from strategies.serialize import to_json

    converted = convert(found, to)
    if to is Target.PLAN and spec is not None and cluster is not None and seq_len is not None:
        decision = as_decision(settings_of(found), spec, cluster=cluster, seq_len=seq_len, model=str(model))
        typer.echo(to_json(decision), nl=False)
        return
    for note in converted.notes:
        typer.echo(f"note: {note}", err=True)
    typer.echo(converted.text, nl=False)


def _fix(found: Explanation, asked: Asked, *, out: Path | None, overwrite: bool) -> None:
    from scaling.explain.fixing import fixed_files, left_to_do, write_fixed

    files = fixed_files(found, asked, folder=out.expanduser() if out else None)
    write_fixed(files, overwrite=overwrite)
    for each in files:
        typer.echo(f"wrote {each.path}{f', for {each.original}' if each.original else ''}", err=True)
    left = left_to_do(found, asked)
    for error in left:
        typer.echo(f"left for you: {error.message} -> {error.fix}", err=True)
    if not files and not left:
        typer.echo("nothing to correct", err=True)
