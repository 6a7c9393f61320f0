"""Which runs an interval comes from. With 19 ratios its ends are the least and the largest (Lei et al. 2018)."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from strategies.conformal import conformal_range
from strategies.learning.fit import learn
from strategies.learning.learned import NOTHING, Learned, learned_path, write_learned
from strategies.learning.run_kind import RunKind
from strategies.learning.run_record import RunRecord
from strategies.library import plan
from strategies.memory.interval import REACH, Ends, ends, upper_ratio
from strategies.plan import ActivationCheckpointing, OffloadDevice, StrategyName
from strategies.planner.safety import needed_bytes
from strategies.records import Kind
from tests.strategies.learning.made_up import BYTES, base_record, recorded

SHIPPED = tuple(0.8 + 0.01 * number for number in range(41))  # 0.8 to 1.2
PRIOR = (pytest.approx(0.81), pytest.approx(1.19))  # ranks ceil(42 * 0.95) = 40 and its mirror, of 41
NONE, FULL = ActivationCheckpointing.NONE, ActivationCheckpointing.FULL


@pytest.fixture(scope="module")
def base() -> RunRecord:
    return base_record(on_gpu=True)


def runs(base: RunRecord, ratios: list[float], **changes: object) -> list[RunRecord]:
    return [recorded(base=base, number=number, ratio=ratio, **changes) for number, ratio in enumerate(ratios)]


def learned_from(records: list[RunRecord]) -> Learned:
    return learn(records)[0]


def asked(kind: RunKind, known: Learned, *, num_bytes: int = BYTES) -> Ends:
    found = ends(kind, known, predicted_bytes=num_bytes, shipped=SHIPPED)
    assert found is not None
    return found


def close(number: int) -> list[float]:
    """So many ratios between 1 and 1.02."""
    return [1 + 0.02 * index / (number - 1) for index in range(number)]


def test_without_own_runs_the_shipped_errors_count(base: RunRecord) -> None:
    found = asked(base.kind, NOTHING)
    assert ((found.low, found.high), found.source) == (PRIOR, "recorded errors")


def test_nineteen_setups_of_its_kind_stand_alone(base: RunRecord) -> None:
    records = runs(base, close(19))
    found = asked(records[0].kind, learned_from(records))
    assert (found.low, found.high) == (pytest.approx(1.0), pytest.approx(1.02))
    assert found.source == "your 19 records of ddp on gpu, activation checkpointing none"


def test_eighteen_never_narrow_what_is_shipped(base: RunRecord) -> None:
    records = runs(base, close(18))
    found = asked(records[0].kind, learned_from(records))
    low, high = conformal_range([*SHIPPED, *close(18)]) or (0, 0)
    assert (found.low, found.high) == (low, high)
    assert found.low < 0.9 < 1.1 < found.high
    assert found.source == "recorded errors and your 18 records of ddp on gpu"


@pytest.mark.parametrize(("ratio", "low", "high"), [(1.4, PRIOR[0], 1.4), (0.5, 0.5, PRIOR[1])])
def test_a_single_run_widens(base: RunRecord, ratio: float, low: float, high: float) -> None:
    (record,) = runs(base, [ratio])
    found = asked(record.kind, learned_from([record]))
    assert found.low == pytest.approx(low, abs=0.011)  # one more among 41 moves a rank by one
    assert found.high == pytest.approx(high, abs=0.011)
    assert found.low <= ratio <= found.high


def test_repetitions_count_once_and_the_newest_does(base: RunRecord) -> None:
    again = [recorded(base=base, number=3, ratio=ratio) for ratio in [1.0] * 40]
    last = replace(again[0], at="2026-02-01T00:00:00+00:00", measured_allocated_bytes=round(1.3 * BYTES))
    (errors,) = learned_from([last, *again]).peaks  # the file need not be in order
    assert (errors.num_runs, errors.newest) == (41, last.at)
    assert errors.allocated == (pytest.approx(1.3),)


def test_another_activation_checkpointing_of_the_strategy_helps_only_with_three_of_its_own(base: RunRecord) -> None:
    others = runs(base, close(19))
    kind = replace(others[0].kind, activation_checkpointing=FULL)
    own = [replace(each, activation_checkpointing=FULL) for each in runs(base, [0.9, 1.0, 1.05])]
    assert asked(kind, learned_from([*others, *own[:2]])).source.startswith("recorded errors and your 21 records")
    found = asked(kind, learned_from([*others, *own]))
    assert (found.low, found.high) == (pytest.approx(0.9), pytest.approx(1.05))
    assert found.source == "your 22 records of ddp on gpu"


@pytest.mark.parametrize(
    "changes",
    [{"strategy": StrategyName.ZERO3}, {"offload_optimizer": OffloadDevice.CPU}, {"device": "cpu"}],
    ids=["strategy", "offload", "device"],
)
def test_what_is_computed_otherwise_says_nothing(base: RunRecord, changes: dict[str, object]) -> None:
    known = learned_from(runs(base, close(40), **changes))
    found = asked(replace(base.kind, model=known.peaks[0].kind.model), known)
    assert ((found.low, found.high), found.source) == (PRIOR, "recorded errors")


def test_a_model_that_is_not_on_record_gets_no_narrower_interval(base: RunRecord) -> None:
    known = learned_from(runs(base, close(40)))
    found = asked(replace(base.kind, model="mamba, 7 parameters"), known)
    assert found.low < 0.9 < 1.1 < found.high


def test_peaks_beyond_those_on_record_get_no_narrower_interval(base: RunRecord) -> None:
    records = runs(base, close(40))
    kind, known = records[0].kind, learned_from(records)
    near, far = (asked(kind, known, num_bytes=num_bytes) for num_bytes in (REACH * BYTES, REACH * BYTES + 1))
    assert near.high < 1.03 < 1.1 < far.high
    assert far.low < 0.9 < near.low
    assert far.source == f"{near.source}, and recorded errors"


def test_nine_in_ten_further_runs_of_a_kind_lie_inside(base: RunRecord) -> None:
    """On exchangeable errors, from 19 setups and from more; the bound is exact in expectation."""
    generator = random.Random(0)
    hits = trials = 0
    for count in [19, 30] * 40:
        records = runs(base, [generator.lognormvariate(0.05, 0.05) for _ in range(count)])
        found = asked(records[0].kind, learned_from(records))
        drawn = [generator.lognormvariate(0.05, 0.05) for _ in range(50)]
        hits += sum(found.low <= ratio <= found.high for ratio in drawn)
        trials += len(drawn)
    assert hits / trials >= 0.9 - 0.01


def test_reserved_peaks_have_errors_of_their_own(base: RunRecord) -> None:
    records = [replace(each, measured_reserved_bytes=2 * BYTES) for each in runs(base, close(19))]
    found = ends(records[0].kind, learned_from(records), predicted_bytes=BYTES, peak=Kind.RESERVED, shipped=SHIPPED)
    assert found is not None
    assert (found.low, found.high) == (2.0, 2.0)


def test_runs_that_cannot_be_compared_do_not_count(base: RunRecord) -> None:
    (good,) = runs(base, [1.0])
    bad = {
        "resumed": replace(good, resumed=True),
        "traced": replace(good, level="traced"),
        "not measured": replace(good, measured_allocated_bytes=None),
        "beyond reason": replace(good, measured_allocated_bytes=10**6 * BYTES),
    }
    known, left_out = learn([*bad.values(), replace(good, version="0.0.1")])
    assert known.peaks == ()
    assert (left_out.without_peak, left_out.of_other_versions) == (4, 1)


def test_plans_use_what_was_learned_and_say_so() -> None:
    """The same plan before and after 19 runs of its model: the peak stays, interval and safety follow the runs."""
    question = {"gpus": 2, "gpu": "A100-80GB-SXM", "seq_len": 64, "global_batch_size": 8, "strategy": "ddp"}
    before = plan("llama-demo", **question)
    kind = before.estimate.runs_like
    assert kind is not None
    peak = before.estimate.peak_allocated_bytes
    ratios = [1 + 0.001 * number for number in range(19)]
    record = base_record(on_gpu=True)
    records = [
        replace(
            recorded(base=record, number=number, ratio=1.0),
            num_params=record.num_params,
            num_layers=number + 1,
            activation_checkpointing=kind.activation_checkpointing,
            predicted_allocated_bytes=peak,
            measured_allocated_bytes=round(peak * ratio),
        )
        for number, ratio in enumerate(ratios)
    ]
    write_learned(learn(records)[0], learned_path())
    after = plan("llama-demo", **question)
    interval = after.estimate.interval
    assert after.plan == before.plan
    assert after.estimate.memory == before.estimate.memory
    assert interval is not None
    assert before.estimate.interval is not None
    assert interval.low_bytes == pytest.approx(peak, rel=1e-6)
    assert interval.source == f"your 19 records of ddp on gpu, activation checkpointing {kind.activation_checkpointing}"
    assert before.estimate.interval.high_bytes > 1.15 * peak
    assert upper_ratio(kind, coverage=0.9) == pytest.approx(1.018, rel=1e-6)
    in_allocator = after.estimate.device_bytes - after.estimate.context_bytes
    needed = needed_bytes(after.estimate, cluster=after.cluster, safety=0.9)
    assert needed == pytest.approx(1.018 * in_allocator + after.estimate.context_bytes, abs=2)
