"""A decision as one HTML page that needs no network: the picture, where bytes and seconds go, and why."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path

from scaling.html_page import bullets, picture, section, table, whole_page, write_page
from scaling.plan_pictures import svg_of
from strategies.decision import Decision, RankedPlan
from strategies.explain import CAUSES_OF_TIME, describe_plan, describe_trained, needs, suggestion_line, why
from strategies.planner.safety import needed_bytes
from strategies.units import GIB, MIB, format_bytes, format_seconds

PICTURED = "Bytes by cause of each plan beside the memory of a GPU; memory against step time"


def write_html(decision: Decision, *, path: Path) -> None:
    """Write the page of ``decision``.

    Raises:
        ReportError: the file cannot be written.
    """
    write_page(html_page(decision), path)


def html_page(decision: Decision) -> str:
    """Return the whole page; the same for the same decision, byte for byte."""
    title = f"{decision.model} on {decision.cluster.gpus} x {decision.cluster.gpu.name}"
    return whole_page(
        title,
        [
            *_headlines(decision),
            picture(svg_of(decision), described=PICTURED),
            "<h2>Where the bytes go</h2>",
            _memory_table(decision),
            "<h2>The best plan of every strategy</h2>",
            _plans_table(decision.by_strategy, decision),
            _seconds_table(decision.by_strategy, decision),
            *section("What less memory costs", _plans_table(decision.front, decision) if decision.front else ""),
            *section("What does not fit", bullets(why(decision))),
            *section("What would make it faster", bullets(map(suggestion_line, decision.suggestions))),
        ],
    )


def _headlines(decision: Decision) -> Iterator[str]:
    cluster, job, estimate, time = decision.cluster, decision.job, decision.estimate, decision.time
    trained = f" ({escape(describe_trained(job))})" if not job.trains_all else ""
    yield (
        f"<p>{decision.num_params:,} parameters{trained}, {job.precision}, sequence {job.seq_len:,}, global batch "
        f"{job.global_batch_size:,}; {format_bytes(cluster.gpu.memory_bytes)} a GPU</p>"
    )
    yield f'<p class="plan"><b>Plan</b>: {escape(describe_plan(decision.plan, job.loss))}</p>'
    needed = needed_bytes(estimate, cluster=cluster, safety=decision.safety)
    yield (
        f"<p>Predicted peak {format_bytes(estimate.peak_allocated_bytes)} allocated, "
        f"{needs(estimate.device_bytes, needed, safety=decision.safety)} ({estimate.level} level)."
    )
    if estimate.interval is not None:
        low, high = format_bytes(estimate.interval.low_bytes), format_bytes(estimate.interval.high_bytes)
        yield f" 90 % interval of the measured peak, from {escape(estimate.interval.source)}: {low} to {high}."
    if time is not None:
        rate = job.tokens_per_step / time.total_s
        yield f" A step takes {format_seconds(time.total_s, digits=3)}: {rate:,.0f} tokens/s, MFU {time.mfu:.1%}."
    yield "</p>"
    if notes := [*estimate.warnings, *decision.warnings]:
        yield bullets(notes)


def _memory_table(decision: Decision) -> str:
    """Return bytes by cause and phase of the chosen plan."""
    memory = decision.estimate.memory
    unit, size = ("GiB", GIB) if memory.peak_bytes >= GIB else ("MiB", MIB)
    by_phase = [dict(phase.causes.items()) for phase in memory.phases]
    causes = dict.fromkeys(cause for found in by_phase for cause in found)
    rows = [
        [cause.replace("_", " "), *(f"{found[cause] / size:.2f}" if cause in found else "" for found in by_phase)]
        for cause in causes
    ]
    total = ["total", *(f"{phase.total_bytes / size:.2f}" for phase in memory.phases)]
    heads = [f"{phase.phase.replace('_', ' ')}{' (peak)' if phase is memory.peak else ''}" for phase in memory.phases]
    caption = f"{unit} on one GPU at the highest moment of each phase"
    return table(caption, ["cause", *heads], [*rows, total], classes={len(rows): "total"})


def _plans_table(plans: Sequence[RankedPlan], decision: Decision) -> str:
    unit, size = ("GiB", GIB) if decision.cluster.gpu.memory_bytes >= GIB else ("MiB", MIB)
    heads = ["plan", f"needs, {unit}", f"at safety {decision.safety:g}, {unit}", "step, s", "tokens/s", "MFU"]
    rows = [
        [
            describe_plan(each.plan, each.loss),
            f"{each.device_bytes / size:.2f}",
            f"{each.needed_bytes / size:.2f}",
            *_speed(each, decision),
        ]
        for each in plans
    ]
    return table("", heads, rows, classes=_chosen(plans, decision))


def _speed(ranked: RankedPlan, decision: Decision) -> list[str]:
    time = ranked.time
    if time is None:
        return ["", "", ""]
    return [f"{time.total_s:.3f}", f"{decision.job.tokens_per_step / time.total_s:,.0f}", f"{time.mfu:.1%}"]


def _seconds_table(plans: Sequence[RankedPlan], decision: Decision) -> str:
    rows = [
        [str(each.plan.strategy), *(f"{getattr(each.time, name):.3f}" for name in CAUSES_OF_TIME)]
        for each in plans
        if each.time is not None
    ]
    if not rows:
        return "<p>The step time of this device is not known.</p>"
    return table(
        "Seconds of one step by cause",
        ["strategy", *CAUSES_OF_TIME.values()],
        rows,
        classes=_chosen([each for each in plans if each.time is not None], decision),
    )


def _chosen(plans: Sequence[RankedPlan], decision: Decision) -> dict[int, str]:
    return {row: "chosen" for row, each in enumerate(plans) if each.plan == decision.plan}
