"""Pages and pictures of results whose names are odd."""

from __future__ import annotations

from dataclasses import replace
from xml.etree import ElementTree

import pytest

from scaling.bench.page import html_page
from scaling.bench.result import Bench
from tests.scaling.bench.results import as_predicted, bench, planned

ODD_NAMES = {
    "markup": "<script>alert(1)</script>",
    "formula": "a$_{b$",  # with an even number of them matplotlib reads a formula
    "long": "very-long-" * 30,
}


@pytest.mark.parametrize("model", ODD_NAMES.values(), ids=ODD_NAMES)
def test_a_model_of_an_odd_name_is_drawn_and_escaped(model: str) -> None:
    [cell] = planned()
    found = bench(as_predicted(cell, step_s=1.0))
    [result] = found.cells
    page = html_page(Bench(version=found.version, cells=(replace(result, cell=replace(result.cell, model=model)),)))
    assert "<script>" not in page
    assert page.count("<svg") == 5
    for svg in page.split("<svg")[1:]:
        ElementTree.fromstring(f"<svg{svg.partition('</svg>')[0]}</svg>")
