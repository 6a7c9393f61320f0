"""``scaling checkpoint``: look at checkpoints, verify and remove them, and export one as a model."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from scaling.cli import options
from strategies.units import parse_bytes

app = typer.Typer(
    rich_markup_mode=None,
    no_args_is_help=True,
    help="Look at checkpoints, verify and remove them, and export one as a model.",
)
Where = Annotated[Path, typer.Argument(help="A checkpoint, or the --out of a run.", metavar="DIR")]
Out = Annotated[Path, typer.Option(help="Folder to write, which must not exist.", metavar="DIR")]
ShardSize = Annotated[
    str, typer.Option(help="Most bytes of one file of weights, as 5GB, 500MB or 2GiB.", metavar="SIZE")
]


class WeightFormat(StrEnum):
    """What the numbers of a model folder are written in."""

    FP32 = "fp32"
    BF16 = "bf16"
    FP16 = "fp16"


@app.command()
def inspect(where: Where, json: options.AsJson = False) -> None:
    """Print step, strategy and sizes of every checkpoint, without reading its tensors.

    Exit code 0: all can be gone on from as far as this shows, 2: some cannot.
    """
    _look(where, checksums=False, json=json)


@app.command()
def verify(where: Where, json: options.AsJson = False) -> None:
    """Compare every byte of every checkpoint with its checksum. Exit code 0: all are whole, 2: some are not."""
    _look(where, checksums=True, json=json)


@app.command()
def prune(
    where: Annotated[Path, typer.Argument(help="The --out of a run, or the folder of its checkpoints.", metavar="DIR")],
    keep_last: Annotated[int, typer.Option(min=1, help="Checkpoints that stay, the latest ones.", metavar="N")] = 2,
    keep_best: Annotated[
        int, typer.Option(min=0, help="Checkpoints of the lowest evaluation loss that stay besides.", metavar="N")
    ] = 0,
    json: options.AsJson = False,
) -> None:
    """Remove older checkpoints of a run, and print which ones. Exit code 2: some could not be removed."""
    import json as as_json

    from scaling.checkpoint.errors import CheckpointError
    from scaling.checkpoint.inspection import checkpoints_at
    from scaling.checkpoint.retention import prune as prune_folder
    from scaling.run_folder import CHECKPOINTS_FOLDER

    found = checkpoints_at(where, inside=CHECKPOINTS_FOLDER)
    if found[0] == where:
        raise CheckpointError(f"{where} is one checkpoint, and prune chooses among several; give {where.parent}")
    pruned = prune_folder(found[0].parent, keep_last=keep_last, keep_best=keep_best)
    removed = [str(path) for path in pruned.removed]
    lines = [f"removed {path}" for path in removed] + [f"could not remove {path}" for path in pruned.refused]
    typer.echo(as_json.dumps(removed) if json else "\n".join(lines) or "nothing to do")
    if pruned.refused:
        raise typer.Exit(2)


@app.command()
def export(
    where: Where,
    out: Out,
    dtype: Annotated[
        WeightFormat | None,
        typer.Option(help=options.one_of(WeightFormat, "Format of the weights; default: as trained"), metavar="KIND"),
    ] = None,
    max_shard_size: ShardSize = "5GB",
    json: options.AsJson = False,
) -> None:
    """Write the model of a checkpoint (of a run: the latest whole one) as a folder that from_pretrained opens."""
    import json as as_json

    from scaling.checkpoint_export import export_checkpoint
    from scaling.ranks import results_only_on_stdout

    with results_only_on_stdout():
        source = export_checkpoint(
            where, out=out, dtype=_torch_format(dtype), max_shard_bytes=parse_bytes(max_shard_size)
        )
    text = f"{out}: the model of {source}, opened with from_pretrained and equal to the checkpoint"
    typer.echo(as_json.dumps({"checkpoint": str(source), "model": str(out)}) if json else text)


@app.command("import")
def import_(
    where: Annotated[
        Path,
        typer.Argument(
            help="Folder of DeepSpeed's save_checkpoint() or ds_to_universal, accelerate's save_state() or "
            "save_model(), or a checkpoint of Hugging Face's Trainer.",
            metavar="DIR",
        ),
    ],
    model: Annotated[
        str, typer.Option("--model", help="What was trained: a preset, folder or config.json.", metavar="MODEL")
    ],
    out: Out,
    dtype: Annotated[
        WeightFormat, typer.Option(help=options.one_of(WeightFormat, "Format of the weights"), metavar="KIND")
    ] = WeightFormat.FP32,
    max_shard_size: ShardSize = "5GB",
    json: options.AsJson = False,
) -> None:
    """Write the weights of another program's checkpoint as a model folder, from which a run can start.

    Files of torch.save are read as tensors and plain values: nothing in them is run.
    """
    import json as as_json

    from scaling.checkpoint_import import import_checkpoint
    from scaling.ranks import results_only_on_stdout

    with results_only_on_stdout():
        found = import_checkpoint(
            where,
            model=model,
            out=out,
            dtype=_torch_format(dtype),
            max_shard_bytes=parse_bytes(max_shard_size),
        )
    text = f"{out}: {found.num_parameters:,} parameters in {dtype} from {found.kind}, opened with from_pretrained"
    typer.echo(as_json.dumps({"model": str(out), "num_parameters": found.num_parameters}) if json else text)


def _torch_format(name: WeightFormat | None) -> Any:
    import torch

    formats = {WeightFormat.FP32: torch.float32, WeightFormat.BF16: torch.bfloat16, WeightFormat.FP16: torch.float16}
    return formats[name] if name else None


def _look(where: Path, *, checksums: bool, json: bool) -> None:
    import json as as_json

    from scaling.checkpoint.inspection import checkpoints_at, inspect
    from scaling.run_folder import CHECKPOINTS_FOLDER
    from strategies.serialize import plain

    found = [inspect(path, checksums=checksums) for path in checkpoints_at(where, inside=CHECKPOINTS_FOLDER)]
    lines = [line for each in found for line in each.lines()]
    typer.echo(as_json.dumps([plain(each) for each in found], indent=2) if json else "\n".join(lines))
    if any(each.problem for each in found):
        raise typer.Exit(2)
