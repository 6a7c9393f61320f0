"""``scaling checkpoint``: look at checkpoints, verify and remove them, and export one as a model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from scaling.cli import options

app = typer.Typer(
    rich_markup_mode=None,
    no_args_is_help=True,
    help="Look at checkpoints, verify and remove them, and export one as a model.",
)
Where = Annotated[Path, typer.Argument(help="A checkpoint, or the --out of a run.", metavar="DIR")]


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
    where: Where,
    keep_last: Annotated[int, typer.Option(min=1, help="Checkpoints that stay, the latest ones.", metavar="N")] = 2,
    keep_best: Annotated[
        int, typer.Option(min=0, help="Checkpoints of the lowest evaluation loss that stay besides.", metavar="N")
    ] = 0,
    json: options.AsJson = False,
) -> None:
    """Remove older checkpoints of a run, and print which ones."""
    import json as as_json

    from scaling.checkpoint.inspection import checkpoints_at
    from scaling.checkpoint.retention import prune as prune_folder
    from scaling.run_folder import CHECKPOINTS_FOLDER

    parent = checkpoints_at(where, inside=CHECKPOINTS_FOLDER)[0].parent
    removed = [str(path) for path in prune_folder(parent, keep_last=keep_last, keep_best=keep_best)]
    typer.echo(as_json.dumps(removed) if json else "\n".join(f"removed {path}" for path in removed) or "nothing to do")


@app.command()
def export(
    where: Where,
    out: Annotated[Path, typer.Option(help="Folder to write, which must not exist.", metavar="DIR")],
    json: options.AsJson = False,
) -> None:
    """Write the model of a checkpoint (of a run: the latest whole one) as a folder that from_pretrained opens."""
    import json as as_json

    from scaling.checkpoint_export import export_checkpoint
    from scaling.ranks import results_only_on_stdout

    with results_only_on_stdout():
        source = export_checkpoint(where, out=out)
    text = f"{out}: the model of {source}, opened with from_pretrained and equal to the checkpoint"
    typer.echo(as_json.dumps({"checkpoint": str(source), "model": str(out)}) if json else text)


@app.command("import")
def import_(
    where: Annotated[
        Path, typer.Argument(help="Folder that DeepSpeed's save_checkpoint() has written.", metavar="DIR")
    ],
    model: Annotated[
        str, typer.Option("--model", help="What was trained: a preset, folder or config.json.", metavar="MODEL")
    ],
    out: Annotated[Path, typer.Option(help="Folder to write, which must not exist.", metavar="DIR")],
    json: options.AsJson = False,
) -> None:
    """Write the weights of a DeepSpeed checkpoint (stage 1, 2 or 3) as a model folder, from which a run can start.

    It is unpickled, by DeepSpeed's own converter: take folders only from places you trust.
    """
    import json as as_json

    from scaling.checkpoint_import import import_deepspeed_checkpoint
    from scaling.ranks import results_only_on_stdout

    with results_only_on_stdout():
        num_parameters = import_deepspeed_checkpoint(where, model=model, out=out)
    text = f"{out}: {num_parameters:,} parameters in fp32, opened with from_pretrained and equal to {where}"
    typer.echo(as_json.dumps({"model": str(out), "num_parameters": num_parameters}) if json else text)


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
