"""Parts of HTML pages that need no network: the frame, tables, lists, pictures."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

from scaling.errors import ReportError

STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 78rem; padding: 0 1rem; color: #111; }
h1 { font-size: 1.5rem; margin-bottom: 0; } h2 { font-size: 1.15rem; margin: 1.8rem 0 0.4rem; }
table { border-collapse: collapse; } caption { text-align: left; color: #444; padding-bottom: 0.3rem; }
th, td { padding: 0.2rem 0.7rem; border-bottom: 1px solid #ddd; text-align: right; font-variant-numeric: tabular-nums; }
th:first-child, td:first-child { text-align: left; } tr.chosen, tr.total { font-weight: bold; }
.plan { font-size: 1.1rem; padding: 0.6rem 0.9rem; border-left: 0.3rem solid #332288; background: #f4f4f8; }
figure { margin: 1rem 0; } svg { max-width: 100%; height: auto; } .wide { overflow-x: auto; }
"""


def write_page(page: str, path: Path) -> None:
    """Write a page.

    Raises:
        ReportError: the file cannot be written.
    """
    try:
        path.write_text(page, encoding="utf-8")
    except OSError as error:
        raise ReportError(f"cannot write the page {path}: {error}; give a writable .html file") from error


def whole_page(title: str, body: Iterable[str]) -> str:
    """Return a page with its title as first heading."""
    return "\n".join(
        [
            "<!DOCTYPE html>",
            '<html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(title)}</title><style>{STYLE}</style></head><body>",
            f"<h1>{escape(title)}</h1>",
            *body,
            "</body></html>",
            "",
        ]
    )


def picture(svg: str, *, described: str) -> str:
    """Return a picture; ``described``: what those are told who do not see it."""
    return f'<figure role="img" aria-label="{escape(described)}">{svg}</figure>'


def table(caption: str, heads: Sequence[str], rows: Sequence[Sequence[str]], *, classes: dict[int, str]) -> str:
    """Return a table; ``classes`` by the number of the row."""
    head = "".join(f"<th>{escape(cell)}</th>" for cell in heads)
    body = "\n".join(
        f'<tr class="{classes.get(number, "")}">' + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>"
        for number, row in enumerate(rows)
    )
    return (
        f'<div class="wide"><table><caption>{escape(caption)}</caption><thead><tr>{head}</tr></thead>'
        f"<tbody>\n{body}\n</tbody></table></div>"
    )


def bullets(lines: Iterable[str]) -> str:
    """Return the lines as a list; nothing for none."""
    items = "".join(f"<li>{escape(line)}</li>\n" for line in lines)
    return f"<ul>\n{items}</ul>" if items else ""


def section(title: str, content: str) -> list[str]:
    """Return a heading and its content; nothing where there is none."""
    return [f"<h2>{escape(title)}</h2>", content] if content else []
