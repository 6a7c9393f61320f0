"""The batch identity: train_batch_size = micro batch x accumulation x data-parallel ranks.

Source: deepspeed 0.19.8, runtime/config.py, DeepSpeedConfig._set_batch_related_parameters and _batch_assertion.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from scaling.explain.findings import Finding, Severity, Topic, removing, setting
from scaling.explain.tree import AUTO, Tree, get, whole

TOTAL, MICRO, STEPS = "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """The three sizes; None where one is not given as a number."""

    total: int | None
    micro: int | None
    steps: int | None
    is_auto: bool = False
    """Whether any of them is left to the launcher."""

    def completed(self, ranks: int | None) -> Batch:
        """Return the batch with what DeepSpeed works out; as far as that goes where the ranks are not known."""
        total, micro, steps = self.total, self.micro, self.steps
        if ranks is None or ranks < 1:
            return replace(self, steps=steps or 1) if micro and total is None else self
        if total and micro and steps is None:
            return replace(self, steps=total // micro // ranks or None)
        if total and micro is None:
            return replace(self, micro=total // ranks // (steps or 1) or None, steps=steps or 1)
        if micro and total is None:
            return replace(self, total=micro * (steps or 1) * ranks, steps=steps or 1)
        return self


def batch_of(tree: Tree) -> Batch:
    """Return the sizes that a DeepSpeed file gives."""
    values = [get(tree, name, None) for name in (TOTAL, MICRO, STEPS)]
    total, micro, steps = map(whole, values)
    return Batch(total=total, micro=micro, steps=steps, is_auto=AUTO in values)


def batch_findings(tree: Tree, *, file: str, ranks: int | None) -> list[Finding]:
    """Return what is wrong with the three sizes for ``ranks`` data-parallel ranks, None where those are not known."""
    batch = batch_of(tree)
    found = list(_not_positive(tree, file))
    if found:
        return found
    if batch.total is None and batch.micro is None:
        is_given = any(get(tree, name, None) is not None for name in (TOTAL, MICRO))  # as "auto", or as no number
        return [] if batch.is_auto or is_given else [_no_sizes(file)]
    if batch.is_auto and (batch.total is None or batch.micro is None):
        return []
    return list(_without_ranks(batch, file) if ranks is None else _with_ranks(batch, file, ranks))


def _not_positive(tree: Tree, file: str) -> Iterator[Finding]:
    for name in (TOTAL, MICRO, STEPS):
        size = whole(get(tree, name, None))
        if size is not None and size < 1:
            yield Finding(
                severity=Severity.ERROR,
                topic=Topic.CONTRADICTION,
                file=file,
                key=name,
                message=f"{name}={size} must be above zero",
                fix=f"give {name} a positive number, or leave it out",
                repairs=(removing(name),),
            )


def _no_sizes(file: str) -> Finding:
    return Finding(
        severity=Severity.WARNING,
        topic=Topic.INCOMPLETE,
        file=file,
        key=MICRO,
        message=f"neither {TOTAL} nor {MICRO} is given: DeepSpeed stops unless the program puts one in",
        fix=f"give {MICRO}",
    )


def _without_ranks(batch: Batch, file: str) -> Iterator[Finding]:
    total, micro, steps = batch.total, batch.micro, batch.steps
    if total is None:
        return
    divisor = (micro or 1) * (steps or 1)
    what = " x ".join(f"{name}={size}" for name, size in ((MICRO, micro), (STEPS, steps)) if size)
    if total % divisor:
        yield _contradiction(
            file,
            f"{TOTAL}={total} is not a multiple of {what} = {divisor}: right for no number of ranks",
            replace(batch, total=max(1, round(total / divisor)) * divisor),
        )
    elif micro and steps:
        ranks = total // divisor
        yield Finding(
            severity=Severity.WARNING,
            topic=Topic.ONE_WORLD,
            file=file,
            key=TOTAL,
            message=f"{TOTAL}: {total} = {micro} x {steps} x {ranks} is right for {ranks} ranks only",
            fix=f"leave out {STEPS}, or start {ranks} ranks; give --world-size to check",
            world_size=ranks,
        )
    else:
        name = what or TOTAL
        yield Finding(
            severity=Severity.NOTE,
            topic=Topic.HINT,
            file=file,
            key=TOTAL,
            message=f"{TOTAL}={total} is fixed: the number of ranks must divide {total // divisor:,} ({name})",
        )


def _with_ranks(batch: Batch, file: str, ranks: int) -> Iterator[Finding]:
    total, micro, steps = batch.total, batch.micro, batch.steps
    if total is None:
        return
    done = batch.completed(ranks)
    product = (done.micro or 0) * (done.steps or 0) * ranks
    if total == product:
        return
    shown_micro, shown_steps = micro or done.micro or 0, steps or done.steps or 0
    yield _contradiction(
        file,
        f"{TOTAL}: {total} != {shown_micro} x {shown_steps} x {ranks} = {shown_micro * shown_steps * ranks} "
        f"({MICRO} x {STEPS} x data-parallel ranks)",
        _agreeing(batch, ranks),
    )


def _agreeing(batch: Batch, ranks: int) -> Batch:
    """Return sizes that agree: the global batch as it is where it divides, for it decides what is learnt."""
    total, micro = batch.total or 1, batch.micro or 1
    if total % (micro * ranks) == 0:
        return Batch(total=total, micro=micro, steps=total // (micro * ranks))
    if total % ranks == 0:
        share = total // ranks
        micro = next(size for size in range(min(micro, share), 0, -1) if share % size == 0)
        return Batch(total=total, micro=micro, steps=share // micro)
    steps = batch.steps or 1
    return Batch(total=micro * steps * ranks, micro=micro, steps=steps)


def _contradiction(file: str, message: str, better: Batch) -> Finding:
    sizes = ((TOTAL, better.total), (MICRO, better.micro), (STEPS, better.steps))
    given = [(name, size) for name, size in sizes if size is not None]
    return Finding(
        severity=Severity.ERROR,
        topic=Topic.CONTRADICTION,
        file=file,
        key=TOTAL,
        message=message,
        fix=f"for instance {', '.join(f'{name}={size}' for name, size in given)}; or leave one of the three out",
        repairs=tuple(setting(name, size) for name, size in given),
    )
