from __future__ import annotations

import json
import logging
import math
from dataclasses import replace
from pathlib import Path

import pytest

from strategies.cluster import gpu_preset
from strategies.errors import CalibrationError, ScalingError
from strategies.library import plan
from strategies.serialize import to_json
from strategies.time.calibration import (
    Calibration,
    calibration_for,
    calibration_path,
    prepared,
    read_calibration,
    write_calibration,
)
from tests.strategies.time.calibrations import cpu_calibration, cpu_ranks


def test_a_calibration_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "new" / "calibration.json"
    write_calibration(cpu_calibration(), path)
    assert read_calibration(path) == cpu_calibration()
    assert [each.name for each in path.parent.iterdir()] == ["calibration.json"]


def test_the_file_lies_in_the_data_folder_of_the_xdg_specification(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert calibration_path("cpu") == tmp_path / "memory-scaling" / "calibration-cpu.json"
    assert calibration_path("NVIDIA H100 80GB HBM3").name == "calibration-nvidia-h100-80gb-hbm3.json"


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("copy_bytes_per_s", -1.0, r"copy_bytes_per_s=-1.0; measure again with `scaling calibrate`"),
        ("adam_elements_per_s", math.inf, "adam_elements_per_s=inf"),
        ("operator_s", math.nan, "operator_s=nan"),
        ("products", (), "no products"),
        ("ranks", 0, "no ranks"),
        pytest.param("ranks", 10**400, r"ranks=1000000000\.\.\. \(401 digits\)", id="401 digits"),
        ("operator_s", 1e308, r"operator_s=1e\+308"),
        ("model", (replace(cpu_calibration().model[1], s_per_block=1e308),), r"model\[0\].s_per_block=1e\+308"),
        (
            "elementwise",
            (replace(cpu_calibration().elementwise[1], bytes_per_s=5e-324),),
            r"elementwise\[0\].bytes_per_s=5e-324",
        ),
        (
            "collectives",
            (replace(cpu_calibration().collectives[0], seconds=5e-324),),
            r"collectives\[0\].seconds=5e-324",
        ),
        (
            "products",
            (replace(cpu_calibration().products[0], flops_per_s=0.0),),
            "a rate of products or memory is zero",
        ),
        ("engines", (replace(cpu_calibration().engines[0], step_s_per_param=-1.0),), r"engines\[0\].step_s_per_param"),
    ],
)
def test_impossible_numbers_are_refused(field: str, value: object, message: str) -> None:
    with pytest.raises(CalibrationError, match=message):
        replace(cpu_calibration(), **{field: value})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not a valid Calibration: .*; measure again with `scaling calibrate`"),
        (to_json(replace(cpu_calibration(), format=99)), "has format=99, this version reads format=2"),
        (json.dumps(json.loads(to_json(cpu_calibration())) | {"speed": 1}), "unknown keys speed"),
        (to_json(cpu_calibration()).replace("200000000", "-200000000"), r"copy_bytes_per_s=-2"),
    ],
)
def test_a_file_that_holds_none_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "calibration.json"
    path.write_text(text)
    with pytest.raises(ScalingError, match=message):
        read_calibration(path)


def test_a_missing_file_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(CalibrationError, match=r"cannot read .*nothing\.json: .*No such file"):
        read_calibration(tmp_path / "nothing.json")


def test_a_folder_that_cannot_be_written_is_refused_before_measuring(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CalibrationError, match=r"cannot write in .*file/folder: Not a directory; give a writable"):
        prepared(tmp_path / "file" / "folder")
    with pytest.raises(CalibrationError, match=r"cannot write .*file/folder/c.json: Not a directory; give a writable"):
        write_calibration(cpu_calibration(), tmp_path / "file" / "folder" / "c.json")


def test_nothing_is_found_without_a_file() -> None:
    assert calibration_for(cpu_ranks()) is None


def test_this_machines_calibration_is_found_for_its_device_only() -> None:
    write_calibration(cpu_calibration(), calibration_path("cpu"))
    assert calibration_for(cpu_ranks()) == cpu_calibration()
    assert calibration_for(replace(cpu_ranks(), gpu=gpu_preset("A100-80GB-SXM"))) is None


def test_a_later_calibration_replaces_an_earlier_one_in_the_same_process() -> None:
    later = replace(cpu_calibration(), measured_at="2026-12-01T12:00:00+00:00")
    for calibration in (cpu_calibration(), later):
        write_calibration(calibration, calibration_path("cpu"))
        assert calibration_for(cpu_ranks()) == calibration


@pytest.mark.parametrize(
    ("stale", "reason"),
    [
        (replace(cpu_calibration(), machine="another processor"), "measured on machine='another processor', this is"),
        (replace(cpu_calibration(), torch="1.0"), "it was measured with torch=1.0, installed is"),
        (replace(cpu_calibration(), device="A100"), "it was measured on device=A100, not on cpu"),
        (cpu_calibration(ranks=1), "was measured with one rank and says nothing about 2"),
    ],
    ids=["machine", "torch", "device", "ranks"],
)
def test_a_stale_file_is_ignored_with_a_sentence(
    stale: Calibration, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    write_calibration(stale, calibration_path("cpu"))
    with caplog.at_level(logging.WARNING):
        assert calibration_for(cpu_ranks()) is None
    assert reason in caplog.text
    assert "measure again with `scaling calibrate`" in caplog.text


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("model", 1, "s_per_block"), 1e308),
        (("operator_s",), 1e308),
        (("elementwise", 1, "bytes_per_s"), 5e-324),
        (("ranks",), 10**400),
        (("ranks",), True),
        (("adam_elements_per_s",), "fast"),
    ],
    ids=lambda each: ".".join(map(str, each)) if isinstance(each, tuple) else str(each)[:9],
)
def test_planning_goes_on_with_one_warning_where_a_number_is_impossible(
    path: tuple[str | int, ...], value: object, caplog: pytest.LogCaptureFixture
) -> None:
    content = target = json.loads(to_json(cpu_calibration()))
    for key in path[:-1]:
        target = target[key]
    target[path[-1]] = value
    prepared(calibration_path("cpu").parent)
    calibration_path("cpu").write_text(json.dumps(content))
    with caplog.at_level(logging.WARNING):
        decision = plan("llama-demo", gpu="cpu", gpus=4, gpu_memory_gib=1, seq_len=128, global_batch_size=8)
    assert decision.time is None  # nothing but a calibration tells the rates of a CPU
    (warning,) = [record.getMessage() for record in caplog.records]
    assert "the calibration is not used" in warning
    assert str(path[-1]) in warning


def test_a_broken_file_is_ignored_with_a_sentence(caplog: pytest.LogCaptureFixture) -> None:
    prepared(calibration_path("cpu").parent)
    calibration_path("cpu").write_text("not json")
    with caplog.at_level(logging.WARNING):
        assert calibration_for(cpu_ranks()) is None
    assert "the calibration is not used" in caplog.text


def test_a_calibration_with_one_rank_serves_one_rank() -> None:
    write_calibration(cpu_calibration(ranks=1), calibration_path("cpu"))
    assert calibration_for(cpu_ranks(1)) is not None
