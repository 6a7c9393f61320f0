"""The certificate as lines to print."""

from __future__ import annotations

from collections.abc import Iterator

from scaling.parity.certificate import Certificate, Row
from strategies.job import OptimizerName, Precision

WIDTH = 24


def lines(certificate: Certificate) -> Iterator[str]:
    """Yield the question, a line a variant, what was left out, and the verdict."""
    job = certificate.job
    yield (
        f"{certificate.model}: {certificate.steps} steps of {job.global_batch_size} samples of {job.seq_len} on "
        f"{certificate.ranks} ranks, {job.precision}, {job.optimizer}; largest differences from plain PyTorch"
    )
    yield f"{'':{WIDTH}} {'passes':>6} {'loss (rel)':>11} {'norm (rel)':>11} {'weights (abs)':>13}  same bits as"
    yield from map(_row, certificate.rows)
    limits = [
        "" if limit is None else f"{limit:.0e}"
        for limit in (certificate.limits.loss, certificate.limits.norm, certificate.limits.parameter)
    ]
    yield f"{'limit':{WIDTH}} {'':>6} {limits[0]:>11} {limits[1]:>11} {limits[2]:>13}"
    yield from (f"not run: {each.name}: {each.reason}" for each in certificate.left_out)
    yield from (f"failed: {each.name}: {each.reason}" for each in certificate.failed)
    yield from _notes(certificate)
    yield verdict(certificate)


def verdict(certificate: Certificate) -> str:
    """Return the answer in one line."""
    losses = f"loss {certificate.first_loss:.4f} -> {certificate.last_loss:.4f}"
    if certificate.alike:
        return f"alike: all {len(certificate.rows)} train the same model ({losses})"
    others = [row.name for row in certificate.rows if not row.alike] + [each.name for each in certificate.failed]
    return f"NOT alike: {', '.join(others)} ({losses})"


def _row(row: Row) -> str:
    same = "" if row.same_bits_as == row.name else row.same_bits_as
    return (
        f"{row.name:{WIDTH}} {row.accumulation:>6} {row.loss:>11.1e} {row.norm:>11.1e} {row.parameter:>13.1e}  "
        f"{same}{'' if row.alike else '  NOT ALIKE'}"
    ).rstrip()


def _notes(certificate: Certificate) -> Iterator[str]:
    if certificate.job.precision is not Precision.FP32:
        yield "Note: plain PyTorch ran in fp32; norms and weights of 16-bit runs are shown, not judged."
    elif certificate.job.optimizer is OptimizerName.ADAMW:
        yield (
            "Note: Adam divides a gradient by its own size, so where one is near zero the order of a sum decides the "
            "update; compare with --optimizer sgd for a tighter limit on the weights."
        )
