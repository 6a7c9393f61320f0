"""The table of `benchmarks/bytes_per_parameter.py` as Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from benchmarks.reference_rows import Difference
from benchmarks.small_llama import Setup
from scaling.meter import Measurement
from strategies.estimate import MemoryProfile, Phase

Row = tuple[str, Setup, Measurement]
STEP_PHASES = (Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER_STEP)
SPLIT_WORLD_SIZE = 8


def markdown(rows: Sequence[Row], differences: Sequence[Difference], num_parameters: int) -> str:
    """Return both tables and the comparison."""
    lines = [
        "# Bytes per parameter by phase",
        "",
        f"Rank 0 of N, small Llama of {num_parameters:,} parameters, 8 tokens. Device bytes at the highest moment of",
        "each phase, divided by the number of parameters; host: the highest moment of what is offloaded. On a CPU a",
        "copy from host to device is the same tensor: with parameter offload at N = 1 gathered weights count as host.",
        "AdamW is torch's, without a fused kernel unless stated (a loop over tensors on CPU).",
        "",
        *_totals(rows, num_parameters),
        "",
        f"## Split by cause at N = {SPLIT_WORLD_SIZE}, third step, bucket of 5,000,000 elements",
        "",
        *_split(rows, num_parameters),
        "",
        "## Compared with earlier measurements",
        "",
        *_comparison(differences),
    ]
    return "\n".join(lines) + "\n"


def _totals(rows: Sequence[Row], num_parameters: int) -> Iterator[str]:
    yield (
        "| setup | accumulation | bucket | N | initialise | first step: forward | backward | step "
        "| third step: forward | backward | step | host |"
    )
    yield "|---|---|---|---|---|---|---|---|---|---|---|---|"
    for name, setup, measurement in rows:
        first, last = measurement.device(step=0), measurement.device(step=setup.num_steps - 1)
        cells = [_total(first, Phase.INITIALISE)]
        cells += [_total(profile, phase) for profile in (first, last) for phase in STEP_PHASES]
        cells.append(measurement.host().peak_bytes)
        numbers = " | ".join(f"{cell / num_parameters:.3f}" for cell in cells)
        yield (
            f"| {name} | {setup.gradient_accumulation_steps} | {setup.bucket_size:.0e} | {measurement.world_size} "
            f"| {numbers} |"
        )


def _split(rows: Sequence[Row], num_parameters: int) -> Iterator[str]:
    yield "| setup | accumulation | phase | total | causes |"
    yield "|---|---|---|---|---|"
    for name, setup, measurement in rows:
        if measurement.world_size != SPLIT_WORLD_SIZE or setup.bucket_size != 5_000_000:
            continue
        for phase in measurement.device(step=setup.num_steps - 1).phases:
            causes = [(cause, held / num_parameters) for cause, held in phase.causes.items()]
            text = ", ".join(f"{cause} {held:.3f}" for cause, held in causes if held >= 0.0005)
            total = phase.total_bytes / num_parameters
            yield f"| {name} | {setup.gradient_accumulation_steps} | {phase.phase.value} | {total:.3f} | {text} |"


def _comparison(differences: Sequence[Difference]) -> Iterator[str]:
    equal = sum(difference.equal for difference in differences)
    yield f"{equal} of {len(differences)} values equal those in `benchmarks/reference/` to four decimals."
    unequal = [difference for difference in differences if not difference.equal]
    if unequal:
        yield ""
        yield "| setup | N | step | value | measured | reference |"
        yield "|---|---|---|---|---|---|"
    for difference in unequal:
        yield (
            f"| {difference.setup} | {difference.world_size} | {difference.step + 1} | {difference.column} "
            f"| {difference.measured} | {difference.reference} |"
        )


def _total(profile: MemoryProfile, phase: Phase) -> int:
    return next(found.total_bytes for found in profile.phases if found.phase is phase)
