"""docs/doctor.md names every area and every flag, and its example is what is printed."""

from __future__ import annotations

from pathlib import Path

import pytest

from scaling.doctor import port
from scaling.doctor.findings import Area
from tests.scaling.doctor.plans import cpu_plan
from tests.scaling.test_cli_help import flags_of

TEXT = (Path(__file__).parents[1] / "docs" / "doctor.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("area", Area)
def test_every_area_has_a_row(area: Area) -> None:
    assert f"\n| {area} |" in TEXT


def test_every_flag_has_a_row() -> None:
    assert [flag for flag in flags_of("doctor") if f"| `{flag}" not in TEXT] == []


def test_the_example_is_what_is_printed() -> None:
    facts = port.PortFacts(
        number=29500, named_by="the launchers' default", is_free=False, holder="python (process 4711)", another=41243
    )
    (finding,) = port.findings(facts, cpu_plan("zero2", ranks=2))
    assert f"{finding.severity:9}{finding.message}\n" in TEXT
    assert f"-> {finding.fix}\n" in TEXT
