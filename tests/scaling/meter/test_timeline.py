"""The timeline shows what the measurement says: same peak, same phases; its picture is written whole or refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from scaling.cause_styles import STYLES
from scaling.errors import ReportError
from scaling.meter import StorageMeter
from scaling.meter.timeline import Timeline
from scaling.ownership import module_owners
from scaling.plots import plot_timeline
from strategies.estimate import CauseBytes, Phase


@pytest.fixture
def metered() -> StorageMeter:
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    meter = StorageMeter()
    meter.start()
    meter.attach(lambda: module_owners(model, optimizer))
    for _ in range(3):
        with meter.phase(Phase.FORWARD):
            loss = model(torch.ones(32, 64)).square().mean()
        with meter.phase(Phase.BACKWARD):
            loss.backward()
        with meter.phase(Phase.OPTIMIZER_STEP):
            optimizer.step()
            optimizer.zero_grad()
        del loss
    meter.stop()
    return meter


def test_timeline_has_the_peak_of_the_measurement(metered: StorageMeter) -> None:
    timeline = metered.timeline()
    assert timeline.peak_bytes == metered.measurement().peak_allocated_bytes
    at_peak = timeline.events.index(timeline.peak_event)
    assert sum(values[at_peak] for values in timeline.bytes_by_cause.values()) == timeline.peak_bytes
    # weights and biases of both layers, fp32, live at every point after the first
    assert timeline.bytes_by_cause["parameters"][-1] == 4 * (2 * 64 * 256 + 256 + 64)
    assert timeline.bytes_by_cause["optimizer_states"][-1] == 4 * (2 * 64 * 256 + 256 + 64)


def test_timeline_names_every_phase_in_order(metered: StorageMeter) -> None:
    names = [name for name, _, _ in metered.timeline().phases]
    assert names == ["forward", "backward", "optimizer_step"] * 3


def test_every_cause_that_can_be_measured_has_a_style() -> None:
    outside_the_log = {"framework_context", "allocator_slack"}
    assert set(STYLES) == set(CauseBytes.__dataclass_fields__) - outside_the_log


def test_plot_writes_a_picture(metered: StorageMeter, tmp_path: Path) -> None:
    from PIL import Image

    path = tmp_path / "memory.png"
    plot_timeline(metered.timeline(), title="three steps", path=path)
    with Image.open(path) as picture:
        assert picture.size[0] > 1000
        assert len(picture.convert("RGB").getcolors(maxcolors=2**24) or []) > 20  # not an empty page


def test_plot_refuses_a_place_it_cannot_write(metered: StorageMeter, tmp_path: Path) -> None:
    timeline: Timeline = metered.timeline()
    with pytest.raises(ReportError, match=r"cannot write the picture .*no/such/memory\.png"):
        plot_timeline(timeline, title="x", path=tmp_path / "no" / "such" / "memory.png")
