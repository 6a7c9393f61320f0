"""A simulated rank holds what a real one holds, to the byte; the meter counts what the allocator counts."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from scaling.measured_ranks import measure_ranks
from scaling.meter import Measurement
from scaling.simulate import simulate, simulated_rank
from strategies.estimate import Phase
from tests.scaling.engine_programs import SETUPS, count_setups, measure_setups, watch_setups

pytestmark = [pytest.mark.distributed, pytest.mark.deepspeed, pytest.mark.slow]
TWO, FOUR = tuple(SETUPS), ("ddp", "fsdp2", "zero2", "zero3")
COUNTED = ("ddp", "fsdp2", "zero0", "zero1", "zero2", "zero3")


@cache
def outcomes(program: Callable[..., None], names: tuple[str, ...], *, world_size: int, real: bool) -> dict[str, Any]:
    """Return what the program found on rank 0 for every setup; one launch for all of them."""
    with TemporaryDirectory() as folder:
        job = partial(program, names, Path(folder))
        if real:
            measure_ranks(job, world_size=world_size)
        else:
            simulate(job, world_size=world_size)
        found: dict[str, Any] = pickle.loads((Path(folder) / "0").read_bytes())
        return found


def measured(name: str, *, world_size: int, real: bool) -> Measurement:
    names = {2: TWO, 4: FOUR}[world_size]
    measurement: Measurement = outcomes(measure_setups, names, world_size=world_size, real=real)[name]
    return measurement


@pytest.mark.parametrize(
    ("world_size", "name"), [(2, name) for name in TWO] + [(4, name) for name in FOUR], ids=lambda value: str(value)
)
def test_simulated_rank_matches_real_ranks_to_the_byte(world_size: int, name: str) -> None:
    simulated = measured(name, world_size=world_size, real=False)
    real = measured(name, world_size=world_size, real=True)
    assert (simulated.rank, simulated.world_size) == (real.rank, real.world_size) == (0, world_size)
    assert simulated.spans == real.spans
    assert simulated.num_steps == SETUPS[name].num_steps


@pytest.mark.parametrize("name", COUNTED)
def test_meter_matches_allocator_in_every_phase(name: str) -> None:
    measurement, counts = outcomes(count_setups, COUNTED, world_size=2, real=False)[name]
    assert [span.phase.value for span in measurement.spans] == [count.phase for count in counts]
    for span, count in zip(measurement.spans, counts, strict=True):
        assert span.device.total_bytes == pytest.approx(count.peak_bytes, rel=1e-3), span.phase


@pytest.mark.parametrize("name", TWO)
def test_meter_agrees_with_owners_asked_after_every_operator(name: str) -> None:
    assert outcomes(watch_setups, TWO, world_size=2, real=False)[name] == []


@pytest.mark.parametrize("stage", [2, 3])
def test_offloaded_states_are_on_the_host(stage: int) -> None:
    offloaded = measured(f"zero{stage}-offload", world_size=2, real=False)
    kept = measured(f"zero{stage}", world_size=2, real=False).device(step=2)
    states = next(phase.causes for phase in kept.phases if phase.phase is Phase.FORWARD)
    for phase in offloaded.device(step=2).phases:
        assert phase.causes.master_weights == phase.causes.optimizer_states == 0
        assert phase.causes.parameters == (states.parameters if stage == 2 else 0)
    for phase in offloaded.host(step=2).phases:
        assert phase.causes.master_weights == states.master_weights
        assert phase.causes.optimizer_states == states.optimizer_states
        assert phase.causes.parameters == (0 if stage == 2 else states.parameters)


@pytest.fixture
def rank_of_four() -> Iterator[None]:
    with simulated_rank(4):
        yield


@pytest.mark.usefixtures("rank_of_four")
def test_all_reduce_of_a_simulated_rank_gives_its_own_values() -> None:
    import torch
    import torch.distributed as dist

    values = torch.arange(3.0)
    dist.all_reduce(values)
    assert values.tolist() == [0.0, 1.0, 2.0]
    assert (dist.get_rank(), dist.get_world_size()) == (0, 4)
