"""The picture holds the decision's numbers and is legible; the page stands alone and is the same every time."""

from __future__ import annotations

import itertools
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from typer.testing import CliRunner

import strategies
from scaling import plan_pictures
from scaling.cause_styles import STYLES
from scaling.cli import app
from scaling.errors import ReportError
from scaling.html_report import html_page, write_html
from scaling.plan_bars import OUTSIDE, bars, pieces
from scaling.plan_pictures import MARKERS, MAX_NUMBERED, numbered, plot_decision
from strategies.decision import Decision
from strategies.estimate import CAUSE_NAMES
from strategies.explain import describe_plan
from strategies.plan import PYTORCH_STRATEGIES, StrategyName


@pytest.fixture(scope="module")
def decision() -> Decision:
    return strategies.plan("llama-3.1-8b", gpus=8, gpu="H100-80GB-SXM", seq_len=4096, global_batch_size=64)


@pytest.fixture(scope="module")
def on_cpu() -> Decision:
    return strategies.plan("llama-demo", gpus=2, gpu="cpu", gpu_memory_gib=0.0625, seq_len=128, global_batch_size=8)


def test_every_strategy_has_a_bar_whose_pieces_are_its_bytes(decision: Decision) -> None:
    shown = bars(decision)
    assert [bar.plan.strategy for bar in shown] == list(PYTORCH_STRATEGIES)
    assert [bar.is_chosen for bar in shown].count(True) == 1
    memory = decision.cluster.gpu.memory_bytes
    for bar in shown:
        assert sum(num_bytes for _, num_bytes, _, _ in pieces(bar)) == bar.device_bytes
        assert bar.fits is (bar.needed_bytes <= memory)
    # 18 bytes a parameter and more: model states alone are 134 GiB.
    assert not shown[0].fits
    assert shown[0].needed_bytes > memory


def test_every_cause_can_be_drawn() -> None:
    outside_of_live_tensors = {"framework_context", "allocator_slack"}
    assert set(CAUSE_NAMES) - outside_of_live_tensors == set(STYLES)
    assert set(MARKERS) == set(StrategyName)


def test_neighbours_differ_without_colour_vision() -> None:
    """Grey values that are close have different hatches, as WCAG 2.2 (1.4.1) asks for a second sign beside colour."""

    def brightness(colour: str) -> float:
        red, green, blue = (int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5))
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    styles = [*STYLES.values(), OUTSIDE[1:]]
    for (one, hatch), (other, other_hatch) in itertools.pairwise(styles):
        assert hatch != other_hatch or abs(brightness(one) - brightness(other)) > 0.08


def test_picture_has_units_and_the_memory_line(decision: Decision) -> None:
    figure = plan_pictures._figure(decision)
    left, _, right, _ = figure.axes
    assert left.get_xlabel().startswith("GiB on one GPU")
    assert left.get_xlabel().endswith("ends at what is needed at safety 0.9")
    assert right.get_xlabel() == "GiB that the plan needs (point estimate)"
    assert right.get_ylabel() == "seconds of one optimizer step"
    usable = decision.cluster.gpu.memory_bytes / 2**30
    for axes in (left, right):
        assert any(list(line.get_xdata()) == [usable, usable] for line in axes.lines)
    ends = [patch.get_x() + patch.get_width() for patch in left.patches]
    for bar in bars(decision):
        assert any(end == pytest.approx(bar.device_bytes / 2**30) for end in ends)
    plan_pictures._close(figure)


def test_front_is_drawn_where_times_are_known(decision: Decision, on_cpu: Decision) -> None:
    figure = plan_pictures._figure(decision)
    drawn = {(float(line.get_xdata()[0]), float(line.get_ydata()[0])) for line in figure.axes[2].lines}
    for ranked in decision.front:
        assert ranked.time is not None
        assert (ranked.device_bytes / 2**30, ranked.time.total_s) in drawn
    plan_pictures._close(figure)
    figure = plan_pictures._figure(on_cpu)
    assert len(figure.axes) == 2, "one picture and its legend"
    assert figure.axes[0].get_xlabel().startswith("MiB on one GPU")
    plan_pictures._close(figure)


def test_no_more_points_are_numbered_than_can_be_read() -> None:
    assert numbered(2) == {0: 1, 1: 2}
    many = numbered(50)
    assert list(many.values()) == list(range(1, MAX_NUMBERED + 1))
    assert (min(many), max(many)) == (0, 49)


def test_picture_is_a_png(decision: Decision, tmp_path: Path) -> None:
    path = tmp_path / "plan.png"
    plot_decision(decision, path=path)
    header = path.read_bytes()[:24]
    assert header[:8] == b"\x89PNG\r\n\x1a\n"
    assert int.from_bytes(header[16:20], "big") == 1920


def test_picture_that_cannot_be_written_is_refused(decision: Decision, tmp_path: Path) -> None:
    with pytest.raises(ReportError, match=r"cannot write the picture .*; give a writable file"):
        plot_decision(decision, path=tmp_path / "missing" / "plan.png")


@pytest.mark.parametrize("name", ["plan.gif", "plan.jpg", "plan.nothing", "plan"])
def test_picture_of_another_type_is_refused(decision: Decision, name: str, tmp_path: Path) -> None:
    with pytest.raises(ReportError, match=r"cannot draw the picture .*: its ending must be one of .png, .svg, .pdf"):
        plot_decision(decision, path=tmp_path / name)
    assert list(tmp_path.iterdir()) == []


class Balanced(HTMLParser):
    """Collects text, and fails where a tag is closed that is not open."""

    WITHOUT_END = frozenset({"meta"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in self.WITHOUT_END:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def test_page_is_whole_and_needs_no_network(decision: Decision) -> None:
    page, parser = html_page(decision), Balanced()
    parser.feed(page)
    assert parser.open == []
    text = " ".join(parser.text)
    for ranked in (*decision.by_strategy, *decision.front):
        assert describe_plan(ranked.plan, ranked.loss) in text
    assert f"{decision.estimate.device_bytes / 2**30:.2f}" in text
    # Names of the SVG vocabulary are no addresses to load from.
    links = set(re.findall(r"https?://[^\s\"'<]+", page))
    assert links == {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}
    assert not re.search(r"<(script|link|img|iframe)\b|@import|url\(http", page)
    assert all(target.startswith("#") for target in re.findall(r"href=\"([^\"]*)\"", page))


def test_page_is_the_same_every_time(decision: Decision) -> None:
    assert html_page(decision) == html_page(decision)


def test_page_of_a_device_without_known_rates(on_cpu: Decision) -> None:
    assert "The step time of this device is not known." in html_page(on_cpu)


def test_names_are_text_not_markup(on_cpu: Decision) -> None:
    from dataclasses import replace

    page = html_page(replace(on_cpu, model="<b>&"))
    assert "<h1>&lt;b&gt;&amp; on 2 x cpu</h1>" in page


def test_page_that_cannot_be_written_is_refused(on_cpu: Decision, tmp_path: Path) -> None:
    with pytest.raises(ReportError, match=r"cannot write the page .*; give a writable .html file"):
        write_html(on_cpu, path=tmp_path / "missing" / "plan.html")


def test_command_writes_both(tmp_path: Path) -> None:
    job = ["--gpu", "cpu", "--gpus", "2", "--gpu-memory-gib", "1", "--seq-len", "128", "--global-batch-size", "8"]
    files = [tmp_path / "plan.png", tmp_path / "plan.html"]
    asked = ["--plot", str(files[0]), "--html", str(files[1])]
    result = CliRunner().invoke(app, ["plan", "llama-demo", *job, *asked])
    assert result.exit_code == 0, result.output
    for path in files:
        assert path.stat().st_size > 10_000
        assert f"Wrote {path}" in result.output
