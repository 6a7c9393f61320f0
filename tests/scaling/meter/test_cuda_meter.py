"""The allocator's meter: its bookkeeping against a scripted allocator, and the real thing where there is a GPU."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from scaling.meter import CudaMeter
from scaling.meter.cuda_meter import split_peak
from scaling.ownership import Cause, module_owners
from strategies.estimate import Phase


@dataclass
class ScriptedAllocator:
    """Stands for torch.cuda's counters: tests move `live`, the peaks follow."""

    live: int = 0
    peak: int = 0

    def hold(self, num_bytes: int) -> None:
        self.live = num_bytes
        self.peak = max(self.peak, num_bytes)

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda _: self.peak)
        monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda _: 2 * self.peak)
        monkeypatch.setattr(torch.cuda, "memory_allocated", lambda _: self.live)
        monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda _: setattr(self, "peak", self.live))


@pytest.fixture
def allocator(monkeypatch: pytest.MonkeyPatch) -> ScriptedAllocator:
    scripted = ScriptedAllocator()
    scripted.install(monkeypatch)
    return scripted


def test_every_phase_has_its_own_peak(allocator: ScriptedAllocator) -> None:
    meter = CudaMeter(device_id=torch.device("cuda", 0), rank=1, world_size=2)
    meter.start()
    with meter.phase(Phase.FORWARD):
        allocator.hold(100)
        allocator.hold(40)
    with meter.phase(Phase.BACKWARD):
        allocator.hold(70)
    with meter.phase(Phase.OPTIMIZER_STEP):
        allocator.hold(60)
    with meter.phase(Phase.FORWARD):
        allocator.hold(65)
    meter.stop()
    spans = meter.measurement().spans
    assert [(span.phase, span.step, span.device.total_bytes) for span in spans] == [
        (Phase.FORWARD, 0, 100),
        (Phase.BACKWARD, 0, 70),
        (Phase.OPTIMIZER_STEP, 0, 70),  # it began with 70
        (Phase.FORWARD, 1, 65),
    ]
    assert [span.device_end.total_bytes for span in spans] == [40, 70, 60, 65]
    assert [span.peak_reserved_bytes for span in spans] == [200, 140, 140, 130]
    assert (meter.measurement().peak_allocated_bytes, meter.measurement().peak_reserved_bytes) == (100, 200)
    assert (meter.measurement().rank, meter.measurement().world_size) == (1, 2)


def test_phase_inside_another_one_leaves_the_outer_peak(allocator: ScriptedAllocator) -> None:
    meter = CudaMeter(device_id=torch.device("cuda", 0))
    meter.start()
    with meter.phase(Phase.OPTIMIZER_STEP):
        allocator.hold(100)
        allocator.hold(10)
        with meter.phase(Phase.SAVE):
            allocator.hold(50)
            allocator.hold(20)
    meter.stop()
    totals = {span.phase: span.device.total_bytes for span in meter.measurement().spans}
    assert totals == {Phase.SAVE: 50, Phase.OPTIMIZER_STEP: 100}


def test_meter_that_is_not_started_reads_nothing(allocator: ScriptedAllocator) -> None:
    meter = CudaMeter(device_id=torch.device("cuda", 0))
    with meter.phase(Phase.FORWARD):
        allocator.hold(100)
    assert meter.measurement().spans == ()
    assert meter.profile().phases == ()


def test_tensors_on_the_cpu_count_as_host(allocator: ScriptedAllocator) -> None:
    model = torch.nn.Linear(10, 10, bias=False)
    meter = CudaMeter(device_id=torch.device("cuda", 0))
    meter.attach(lambda: module_owners(model))
    meter.start()
    with meter.phase(Phase.FORWARD):
        allocator.hold(5)
    meter.stop()
    (span,) = meter.measurement().spans
    assert (span.host.parameters, span.host.total_bytes, span.device.activations) == (400, 400, 5)


@pytest.mark.parametrize(
    ("peak", "start", "end", "expected"),
    [
        # States appear in the step: what is there at the end was there at the peak.
        (100, {Cause.PARAMETERS: 20}, {Cause.PARAMETERS: 20, Cause.OPTIMIZER_STATES: 40}, (20, 40, 40)),
        # Gradients are freed and states appear; both together would be more than the peak.
        (50, {Cause.GRADIENTS: 30}, {Cause.OPTIMIZER_STATES: 40}, (0, 0, 50)),
        (10, {}, {}, (0, 0, 10)),
    ],
)
def test_peak_is_split_into_owners_and_working_memory(
    peak: int, start: dict[Cause, int], end: dict[Cause, int], expected: tuple[int, int, int]
) -> None:
    split = split_peak(peak, start, end, working=Cause.STEP_TEMPORARIES)
    assert (split.parameters, split.optimizer_states, split.step_temporaries) == expected
    assert split.total_bytes == peak


@pytest.mark.gpu
def test_real_allocator_counts_a_tensor_and_writes_a_snapshot(tmp_path: Path) -> None:
    meter = CudaMeter(device_id=torch.device("cuda", 0), record_history=True)
    meter.start()
    with meter.phase(Phase.FORWARD):
        held = torch.zeros(1024, 1024, device="cuda")
    meter.dump_snapshot(tmp_path / "snapshot.pickle")
    meter.stop()
    (span,) = meter.measurement().spans
    assert span.device.total_bytes >= 4 * held.numel()
    assert span.peak_reserved_bytes is not None
    assert span.peak_reserved_bytes >= span.device.total_bytes
    assert (tmp_path / "snapshot.pickle").stat().st_size > 0
