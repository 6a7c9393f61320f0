"""A bench as one HTML page that needs no network: its table, what did not run, and all its pictures."""

from __future__ import annotations

from html import escape
from pathlib import Path

from scaling.bench.pictures import DESCRIBED, pictures
from scaling.bench.result import Bench, Outcome
from scaling.bench.table import heading, meanings, problems, table
from scaling.html_page import bullets, picture, section, whole_page, write_page
from scaling.html_page import table as html_table
from scaling.plots import svg_text


def write_html(bench: Bench, path: Path) -> None:
    """Write the page of ``bench``.

    Raises:
        ReportError: the file cannot be written.
    """
    write_page(html_page(bench), path)


def html_page(bench: Bench) -> str:
    """Return the whole page; the same for the same result, byte for byte."""
    if not bench.cells:
        return whole_page("Bench", ["<p>no cells</p>"])
    title, *rest = heading(bench)
    head, *rows = table(bench)
    failed = {row: "failed" for row, each in enumerate(bench.cells) if each.outcome is not Outcome.DONE}
    versions = bench.cells[0].environment.versions
    return whole_page(
        title,
        [
            *(f"<p>{escape(line)}</p>" for line in rest),
            html_table("", head, rows, classes=failed),
            bullets(meanings(bench)),
            *section("What did not run, or not to its end", bullets(problems(bench))),
            *(
                part
                for name, draw in pictures(bench).items()
                for part in section(DESCRIBED[name], picture(svg_text(draw), described=DESCRIBED[name]))
            ),
            *section("Versions", bullets(f"{name}: {version}" for name, version in versions.items())),
        ],
    )
