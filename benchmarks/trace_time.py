"""What a trace costs: seconds by sequence length, depth and engine, in a fresh process for each figure.

Method: each case runs in a new Python process on the CPU cores of this machine; the import of torch and transformers is
timed apart, so are the trace (two AdamW steps) and the replay through the caching allocator. The median of three runs
is given. Usage: ``python -m benchmarks.trace_time``; writes ``benchmarks/results/trace_time.json`` and ``.md``; exit
code 1 if the 70B model at 131,072 tokens takes more than ten seconds.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.environment import environment

if TYPE_CHECKING:
    from scaling.trace import EngineSpec

RESULTS = Path(__file__).parent / "results"
MODELS = Path(__file__).parents[1] / "configs" / "models"
NUM_RUNS = 3
LIMIT_S = 10.0
LIMITED = ("llama-3-70b", 131_072)
SPAWNED = "--one"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One trace."""

    model: str
    seq_len: int
    activation_checkpointing: str = "full"
    how: str = "three shallow traces"
    """Or ``full depth``, or an engine at full depth."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Seconds of one case, medians over the runs."""

    case: Case
    num_events: int
    import_s: float
    trace_s: float
    replay_s: float
    trace_s_range: tuple[float, float]
    load_average: float
    """Of the last minute, before the first run: other programs on the same cores."""


CASES = (
    *(Case(model="llama-3-70b", seq_len=length) for length in (2_048, 16_384, 131_072)),
    Case(model="llama-3-70b", seq_len=131_072, activation_checkpointing="none"),
    *(Case(model=name, seq_len=8_192) for name in ("llama-3-8b", "llama-3.1-405b")),
    *(Case(model=name, seq_len=8_192, how="full depth") for name in ("llama-3-8b", "llama-3-70b")),
    *(Case(model="llama-3-8b", seq_len=8_192, how=how) for how in ("fsdp2", "zero 2", "zero 3")),
)


def main() -> int:
    """Time all cases, print and store the table."""
    rows = [timed(case) for case in CASES]
    text = table(rows)
    print(text)
    stored = {"environment": environment(), "num_runs": NUM_RUNS, "rows": [asdict(row) for row in rows]}
    (RESULTS / "trace_time.json").write_text(json.dumps(stored, indent=1) + "\n")
    (RESULTS / "trace_time.md").write_text(text + "\n")
    return int(any(row.trace_s > LIMIT_S for row in rows if (row.case.model, row.case.seq_len) == LIMITED))


def timed(case: Case) -> Row:
    """Return the medians of several runs, each in a process of its own."""
    load = os.getloadavg()[0]
    runs = [_spawned(case) for _ in range(NUM_RUNS)]
    traces = [run["trace_s"] for run in runs]
    return Row(
        case=case,
        num_events=int(runs[0]["num_events"]),
        import_s=statistics.median(run["import_s"] for run in runs),
        trace_s=statistics.median(traces),
        replay_s=statistics.median(run["replay_s"] for run in runs),
        trace_s_range=(min(traces), max(traces)),
        load_average=load,
    )


def _spawned(case: Case) -> dict[str, float]:
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.trace_time", SPAWNED, json.dumps(asdict(case))]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(result.stdout.splitlines()[-1])
    return found


def run_once(case: Case) -> dict[str, float]:
    """Trace ``case`` in this process and return what it took."""
    start = time.perf_counter()
    import transformers  # noqa: F401  # timed apart

    from scaling.trace import TraceOptions, TracePrecision, read_config, replay, token_batch, trace_config, trace_step
    from scaling.trace.hugging_face import model_factory
    from scaling.trace.options import Recompute

    imported = time.perf_counter()
    config = read_config(MODELS / f"{case.model}.json")
    batch = token_batch(micro_batch_size=1, seq_len=case.seq_len)
    recompute = Recompute(case.activation_checkpointing)
    if case.how == "three shallow traces":
        log = trace_config(config, batch, TraceOptions(activation_checkpointing=recompute), use_cache=False)
    else:
        precision = TracePrecision.FP32 if case.how == "fsdp2" else TracePrecision.BF16
        options = TraceOptions(activation_checkpointing=recompute, precision=precision)
        log = trace_step(model_factory(config), batch, options, engine=_engine(case.how))
    traced = time.perf_counter()
    replay(log, expandable_segments=True)
    return {
        "num_events": log.num_events,
        "import_s": imported - start,
        "trace_s": traced - imported,
        "replay_s": time.perf_counter() - traced,
    }


def _engine(how: str) -> EngineSpec:
    from scaling.trace import SingleDevice
    from scaling.trace.ranks.deepspeed import Zero
    from scaling.trace.ranks.fsdp2 import Fsdp2

    if how == "full depth":
        return SingleDevice()
    if how == "fsdp2":
        return Fsdp2(world_size=8)
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": int(how.split()[1])},
    }
    return Zero(world_size=8, config=config)


def table(rows: list[Row]) -> str:
    """Return one line a case."""
    lines = [
        "| model | tokens | checkpointing | how | events | trace s (median, range) | replay s | imports s | load |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        low, high = row.trace_s_range
        lines.append(
            f"| {row.case.model} | {row.case.seq_len} | {row.case.activation_checkpointing} | {row.case.how} "
            f"| {row.num_events} | {row.trace_s:.1f} ({low:.1f} to {high:.1f}) | {row.replay_s:.2f} "
            f"| {row.import_s:.1f} | {row.load_average:.1f} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    if sys.argv[1:2] == [SPAWNED]:
        print(json.dumps(run_once(Case(**json.loads(sys.argv[2])))))
    else:
        sys.exit(main())
