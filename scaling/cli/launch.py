"""``scaling launch``: a plan started, printed, or handed to Slurm."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scaling.cli import options
from scaling.launch.choice import LaunchBy

if TYPE_CHECKING:
    from scaling.launch.asked import Asked


def launch(
    plan: Annotated[Path, typer.Option(help="plan.json as `scaling plan --out` writes it.", metavar="FILE")],
    flags: Annotated[
        list[str] | None, typer.Argument(help="After --: flags of scaling.train.", metavar="[-- FLAGS]")
    ] = None,
    launcher: Annotated[
        LaunchBy | None,
        typer.Option(help=options.one_of(LaunchBy, "What starts it; default: what suits the plan"), metavar="NAME"),
    ] = None,
    only_print: Annotated[bool, typer.Option("--print", help="Print it; start nothing.")] = False,
    submit: Annotated[bool, typer.Option("--submit", help="slurm: hand the script to sbatch.")] = False,
    hostfile: Annotated[
        Path | None, typer.Option(help="The nodes, a line each: HOST slots=N, as for deepspeed.", metavar="FILE")
    ] = None,
    node_rank: Annotated[int | None, typer.Option(help="This machine among the nodes, from 0.", metavar="N")] = None,
    master_addr: Annotated[str | None, typer.Option(help="Address of the first node.", metavar="HOST")] = None,
    master_port: Annotated[int | None, typer.Option(help="Port of the first node.", metavar="N")] = None,
    nodes: Annotated[int | None, typer.Option(min=1, help="Refuse if the plan has others.", metavar="N")] = None,
    gpus_per_node: Annotated[
        int | None, typer.Option(min=1, help="Refuse if the plan has others.", metavar="N")
    ] = None,
    time: Annotated[str | None, typer.Option(help="slurm: time limit.", metavar="HH:MM:SS")] = None,
    partition: Annotated[str | None, typer.Option(help="slurm: as of sbatch.", metavar="NAME")] = None,
    account: Annotated[str | None, typer.Option(help="slurm: as of sbatch.", metavar="NAME")] = None,
    qos: Annotated[str | None, typer.Option(help="slurm: as of sbatch.", metavar="NAME")] = None,
    constraint: Annotated[str | None, typer.Option(help="slurm: as of sbatch.", metavar="TEXT")] = None,
    job_name: Annotated[str, typer.Option(help="slurm: as of sbatch.", metavar="NAME")] = "scaling",
    mem: Annotated[
        str | None, typer.Option(help="slurm: RAM of a node; default: what the plan needs.", metavar="SIZE")
    ] = None,
    cpus_per_task: Annotated[
        int | None, typer.Option(help="slurm: cores of a node; default: 4 a rank.", metavar="N")
    ] = None,
    signal_s: Annotated[
        int | None,
        typer.Option(help="slurm: told to save so long before the end; default: by the checkpoint.", metavar="S"),
    ] = None,
    sbatch: Annotated[
        list[str] | None, typer.Option(help="slurm: any other option, such as exclusive; repeat it.", metavar="OPTION")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print it as JSON; start nothing.")] = False,
) -> None:
    """Start training under a plan, on as many processes as it is for, or refuse before there is any.

    After -- come the flags of scaling.train. On one machine it starts everything; of several nodes it starts one, or
    all by ssh (--hostfile), or writes the script for Slurm. The exit code is the launcher's.
    """
    from scaling.launch.asked import Asked
    from scaling.launch.world import Shape
    from strategies.emit.slurm import SlurmOptions

    slurm = SlurmOptions(
        time=time,
        partition=partition,
        account=account,
        qos=qos,
        constraint=constraint,
        job_name=job_name,
        mem=mem,
        cpus_per_task=cpus_per_task,
        signal_s=signal_s,
        more=tuple(sbatch or ()),
    )
    asked = Asked(
        plan=plan,
        launcher=launcher,
        shape=Shape(nodes=nodes, per_node=gpus_per_node),
        hostfile=hostfile,
        node_rank=node_rank,
        master_addr=master_addr,
        master_port=master_port,
        flags=tuple(flags or ()),
        slurm=slurm,
    )
    raise typer.Exit(_launch(asked, starts=not (only_print or json), submit=submit, json=json))


def _launch(asked: Asked, *, starts: bool, submit: bool, json: bool) -> int:
    import os
    import sys

    from scaling.errors import LaunchError
    from scaling.launch import report
    from scaling.launch.prepare import prepare
    from scaling.launch.start import start, submit_script
    from scaling.ranks import set_up_logging

    set_up_logging(is_main=True)
    prepared = prepare(asked, starts=starts, environ=os.environ)
    if submit and not starts:
        raise LaunchError("--submit starts a job, and --print and --json start nothing; leave one of them out")
    if submit and prepared.script is None:
        raise LaunchError(f"--submit hands a script to Slurm, but the launcher is {prepared.choice.launcher}")
    if json:
        typer.echo(report.as_json(prepared))
        return 0
    print(f"launcher: {prepared.choice.launcher} ({prepared.choice.why})", file=sys.stderr)
    if prepared.script is not None and starts and submit:
        return submit_script(prepared.script)
    if prepared.script is not None or not starts:
        typer.echo(report.text(prepared), nl=False)
        return 0
    return start(prepared, environ=os.environ)
