"""``scaling parity``: do all strategies train this model on these data alike?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scaling.cli import options
from strategies.cluster import CPU_NAME
from strategies.detect import LARGEST
from strategies.job import Job, LossImplementation, OptimizerName, Precision
from strategies.plan import ActivationCheckpointing
from strategies.search import FixedParts

if TYPE_CHECKING:
    from scaling.levels import Question
    from scaling.parity.certificate import Certificate
    from scaling.train_config import TrainConfig

NOT_ALIKE = 1
"""The exit code where some strategy does not train alike."""


def parity(
    model: options.Model,
    seq_len: options.SeqLen,
    global_batch_size: options.GlobalBatchSize,
    data: Annotated[str, typer.Option(help="As train takes it: a file, folder, glob or dataset.")] = "builtin:python",
    tokenizer: Annotated[str, typer.Option(help="Tokenizer folder or hub id; bytes needs no download.")] = "bytes",
    steps: Annotated[int, typer.Option(min=1, help="Optimizer steps.", metavar="N")] = 10,
    ranks: Annotated[int, typer.Option(min=1, help="Processes to start here.", metavar="N")] = 2,
    strategies: Annotated[
        str, typer.Option(help="Names with commas; a strategy's own means all its variants. Empty: all.")
    ] = "",
    gpu: Annotated[
        str, typer.Option(help="'auto': the GPUs of this machine, one a rank; or its CPU.", metavar="NAME")
    ] = CPU_NAME,
    precision: options.PrecisionName = Precision.FP32,
    optimizer: options.Optimizer = OptimizerName.ADAMW,
    gradient_clipping: options.GradientClipping = 1.0,
    micro_batch_size: Annotated[
        int | None, typer.Option(help="Default: half of a rank's share, so that it accumulates.", metavar="N")
    ] = None,
    activation_checkpointing: options.Checkpointing = ActivationCheckpointing.NONE,
    loss: options.Loss = LossImplementation.STANDARD,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="Any other setting of train; repeatable.", metavar="NAME=VALUE")
    ] = None,
    out: Annotated[Path, typer.Option(help="Where the certificate is stored.", metavar="FILE")] = Path("parity.json"),
    json: options.AsJson = False,
) -> None:
    """Run a few steps under every strategy, and print how far each one is from plain PyTorch on the whole batch.

    Exit code 0: all alike, 1: not alike, 2: bad input.
    """
    flags = locals()
    from scaling.disk import writing
    from scaling.parity.table import lines
    from scaling.ranks import results_only_on_stdout
    from scaling.train_config import resolve
    from strategies.serialize import to_json

    given = {"plan": "-", "out": out, "data": data, "tokenizer": tokenizer, "steps": steps}
    config = resolve(flags=given, assignments=set_ or [], file=None)
    job = options.picked(Job, flags)
    question = options.question_from_flags(
        model, job=job, gpus=ranks, gpu=gpu, gpu_memory_gib=LARGEST if gpu == CPU_NAME else None
    )
    fixed = FixedParts(
        activation_checkpointing=activation_checkpointing,
        micro_batch_size=micro_batch_size or _half_share(global_batch_size, ranks),
    )
    with results_only_on_stdout() as results:
        certificate = _certificate(question, fixed, strategies=strategies, config=config)
        with writing(out):
            out.write_text(to_json(certificate))
        results.write(to_json(certificate) if json else "\n".join([*lines(certificate), f"stored in {out}"]) + "\n")
    if not certificate.alike:
        raise typer.Exit(NOT_ALIKE)


def _certificate(question: Question, fixed: FixedParts, *, strategies: str, config: TrainConfig) -> Certificate:
    from scaling.parity.certify import certify
    from scaling.parity.own_model import OwnModel
    from scaling.parity.variants import chosen_names, plan_variants

    names = chosen_names([word.strip() for word in strategies.split(",") if word.strip()])
    planned, left_out = plan_variants(names, lambda parts: options.decide_from_flags(question, parts), fixed=fixed)
    return certify(OwnModel(config=config), planned, left_out, config=config)


def _half_share(global_batch_size: int, ranks: int) -> int:
    """Return half the samples of a rank, so that two passes add up; all of them where they are odd."""
    share = max(global_batch_size // ranks, 1)
    return share // 2 if share % 2 == 0 else share
