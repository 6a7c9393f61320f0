"""The file of what was learned: what is not used of it, and says why."""

from __future__ import annotations

import json

import pytest

from strategies.errors import CalibrationError
from strategies.learning import learned as module
from strategies.learning.fit import learn
from strategies.learning.learned import NOTHING, learned, learned_path, write_learned
from strategies.learning.run_record import RunRecord
from tests.strategies.learning.made_up import base_record, recorded


@pytest.fixture(scope="module")
def records() -> list[RunRecord]:
    return [recorded(base=base_record(), number=number, step_ratio=1.5) for number in range(3)]


def test_it_reads_back(records: list[RunRecord]) -> None:
    found, _ = learn(records)
    write_learned(found, learned_path())
    assert learned() == found
    assert len(found.peaks) == len(found.times) == 3  # a model each


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"format": 99}, "has format=99"),
        ({"version": "0.0.1"}, "version=0.0.1"),
        ({"colour": "red"}, "unknown keys colour"),
        ({"peaks": 3}, "peaks=3 must be a list"),
        (None, "it is not JSON"),
    ],
)
def test_a_file_of_another_kind_is_not_used_and_one_warning_says_why(
    change: dict[str, object] | None, why: str, records: list[RunRecord], caplog: pytest.LogCaptureFixture
) -> None:
    module._warn_once.cache_clear()
    path = learned_path()
    write_learned(learn(records)[0], path)
    path.write_text("{" if change is None else json.dumps(json.loads(path.read_text()) | change))
    module._usable.cache_clear()
    assert learned() is NOTHING
    assert learned() is NOTHING
    assert len(caplog.messages) == 1
    assert why in caplog.messages[0]
    assert str(path) in caplog.messages[0]


def test_a_file_that_is_no_text_is_named(records: list[RunRecord], caplog: pytest.LogCaptureFixture) -> None:
    path = learned_path()
    write_learned(learn(records)[0], path)
    path.write_bytes(b"\xff\x00")
    module._usable.cache_clear()
    assert learned() is NOTHING
    assert f"cannot read {path}: it is not text; make it again with" in caplog.messages[0]


def test_a_ratio_beyond_reason_is_refused(records: list[RunRecord], caplog: pytest.LogCaptureFixture) -> None:
    path = learned_path()
    write_learned(learn(records)[0], path)
    path.write_text(path.read_text().replace("1.5", "1e9"))
    module._usable.cache_clear()
    assert learned() is NOTHING
    assert "measured / predicted = 1e+09" in caplog.messages[0]


def test_a_folder_that_cannot_be_written_is_told(records: list[RunRecord], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", "/proc")
    with pytest.raises(CalibrationError, match=r"cannot write /proc/memory-scaling/learned\.json"):
        write_learned(learn(records)[0], learned_path())
