"""The files of ``--plot`` and ``--html``."""

from __future__ import annotations

from pathlib import Path

from strategies.decision import Decision


def require_pictures(*, plot: Path | None) -> None:
    """Refuse what no picture can be written to, before anything is planned or run.

    Raises:
        ReportError: the ending of ``plot`` is of another type.
    """
    from scaling.plan_pictures import require_file_type

    if plot is not None:
        require_file_type(plot)


def write_pictures(decision: Decision, *, plot: Path | None, html: Path | None) -> list[Path]:
    """Write the picture and the page that are asked for; return their paths.

    Raises:
        ReportError: one of them cannot be written.
    """
    written = []
    if plot is not None:
        from scaling.plan_pictures import plot_decision  # brings matplotlib

        written.append(plot.expanduser())
        plot_decision(decision, path=written[-1])
    if html is not None:
        from scaling.html_report import write_html

        written.append(html.expanduser())
        write_html(decision, path=written[-1])
    return written
