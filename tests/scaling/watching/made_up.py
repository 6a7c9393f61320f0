"""Records of a run that never was."""

from __future__ import annotations

from scaling.watching.records import EvaluationRecord, StepRecord

MIB = 2**20


def step(number: int, *, seconds: float, peak: int | None = 60 * MIB) -> StepRecord:
    return StepRecord(
        step=number,
        loss=5.0 - number,
        grad_norm=2.0,
        grad_norm_clipped=1.0,
        lr=1e-3,
        lr_groups=(1e-3, 1e-3),
        tokens_per_s=100 / seconds,
        mfu=0.4,
        step_time_s=seconds,
        data_time_s=0.0,
        forward_time_s=0.3 * seconds,
        backward_time_s=0.6 * seconds,
        optimizer_time_s=0.1 * seconds,
        other_time_s=0.0,
        slowest_data_time_s=0.0,
        epoch=0.1,
        peak_allocated_bytes=peak,
        peak_reserved_bytes=None,
    )


def evaluation(number: int) -> EvaluationRecord:
    return EvaluationRecord(step=number, eval_loss=2.5, eval_tokens=64, eval_time_s=0.5)
