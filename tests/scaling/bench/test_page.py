"""Pages and pictures of results whose names are odd."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from xml.etree import ElementTree

import pytest

from scaling.bench.page import html_page
from scaling.bench.picture_memory import draw_memory
from scaling.bench.pictures import draw_throughput
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


def test_names_of_many_lines_do_not_lie_over_each_other() -> None:
    from matplotlib import pyplot

    [cell] = planned()
    [result] = bench(as_predicted(cell, step_s=1.0)).cells
    names = [f"/home/somebody/{'plans/' * 20}{number}/plan.json" for number in range(12)]
    cells = [replace(result.cell, choice=replace(result.cell.choice, plan_name=name)) for name in names]
    results = [replace(result, cell=each) for each in cells]
    for figure in (draw_throughput(results), draw_memory(results, title="")):
        figure.draw_without_rendering()
        boxes = [label.get_window_extent() for label in figure.axes[0].get_yticklabels()]
        assert len(boxes) == 12
        assert all(above.y0 >= below.y1 for above, below in pairwise(boxes))
        pyplot.close(figure)
