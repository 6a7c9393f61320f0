"""The figures that the README shows, from the result files alone: what a script has not written is not shown.

Usage: ``python -m benchmarks.figures`` prints them; ``--write`` puts them into the README. A test holds the README to
the result files (`tests/test_readme_figures.py`).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
RESULTS = ROOT / "benchmarks" / "results"
BEGIN, END = "<!-- figures: python -m benchmarks.figures --write -->", "<!-- end of figures -->"
TOOLS = {
    "ours": "`scaling estimate`",
    "deepspeed": "DeepSpeed's estimators",
    "accelerate": "`accelerate estimate-memory`",
}


def text() -> str:
    """Return the README's part: two tables in Markdown."""
    lines = [
        "| peak memory of 12 published runs on GPUs | answers | of them made for it | median error | ours there "
        "| 1 % or more too low |",
        "|---|---|---|---|---|---|",
        *peers(),
        "",
        "| what was predicted | result | script in `benchmarks/` |",
        "|---|---|---|",
        *(f"| {what} | {result} | `{script}.py` |" for what, result, script in rows()),
    ]
    return "\n".join(lines)


def peers() -> Iterator[str]:
    """Yield a row for each tool: what it answered about the same runs, and how wrong it was."""
    for tool, score in read("peers")["summary"]["published"].items():
        yield (
            f"| {TOOLS[tool]} | {score['answered']} of {score['configurations']} | {score['own']} | "
            f"{percent(score['median_error'])} | {percent(score['median_error_of_ours_there'])} | "
            f"{score['over_1_percent_too_low']} |"
        )


def rows() -> Iterator[tuple[str, str, str]]:
    """Yield (what, result, script)."""
    yield from _memory()
    yield from _time()
    largest = read("largest_model")
    yield (
        "the largest model that two ranks of 64 MiB train: the chosen plan over plain DDP, both run",
        f"{largest['ratio']:.1f} times as many parameters",
        "largest_model",
    )


def _memory() -> Iterator[tuple[str, str, str]]:
    real = read("memory_accuracy")["summary"]
    yield (
        f"peaks of {real['runs']} runs of our engines, DDP to ZeRO-3 with offload, on CPU ranks",
        f"median error {percent(real['median_error'])}, largest {percent(real['largest_error'])}",
        "memory_accuracy",
    )
    published = read("published_memory")["summary"]
    like, every = published["peaks_of_like_implementations"], published["peaks"]
    yield (
        f"published peaks on GPUs: {like['rows']} of implementations like ours, {every['rows']} of all",
        f"median error {percent(like['median_error'])} and {percent(every['median_error'])}; "
        f"{percent(published['peaks_inside_interval'])} inside the 90 % interval",
        "published_memory",
    )
    yield (
        f"published runs that fitted or ran out of memory: {published['outcomes']}, {published['oom']} of them out",
        f"{percent(published['outcomes_right'])} right; {published['oom_right']} of the {published['oom']}",
        "published_memory",
    )


def _time() -> Iterator[tuple[str, str, str]]:
    speed = read("published_throughput")
    yield (
        f"published step times on GPUs: {speed['all']['rows']} runs, {speed['unseen_sources']['rows']} of sources that "
        "no constant has seen",
        f"median error {percent(speed['all']['median'])} and {percent(speed['unseen_sources']['median'])}; rank "
        f"correlation {speed['all']['spearman']:.3f}",
        "published_throughput",
    )
    regret = read("regret")["summary"]
    yield (
        "throughput of the chosen plan over the best of all that fit, all run: 3 models in 3 budgets, two CPU ranks",
        f"median {regret['median_ratio']:.2f}, worst {regret['worst_ratio']:.2f}",
        "regret",
    )
    planning = read("planning_time")
    largest = next(case for case in planning["cases"] if (case["model"], case["gpus"]) == LARGEST)
    yield (
        "`scaling plan` for 405B on 16,384 GPUs, whole process, beside DeepSpeed's estimators",
        f"{largest['median_s']:.2f} s, {planning['deepspeed_estimators']['median_s']:.2f} s",
        "planning_time",
    )
    loops = {(row["strategy"], row["other"]): row["ratio"] for row in read("step_time")["times"]}
    yield (
        "our step time over a loop by hand (DDP, ZeRO-2, FSDP2), accelerate's and the Trainer's (DDP), in turns",
        ", ".join(f"{ratio:.2f}" for ratio in loops.values()),
        "step_time",
    )


LARGEST = ("llama-3.1-405b", 16384)


def read(name: str) -> dict[str, Any]:
    """Return what a script has stored."""
    content: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text())
    return content


def percent(share: float) -> str:
    """Return a share as a percentage, with the digits that say something."""
    return f"{share:.0%}" if share >= 0.2 else f"{share:.1%}" if share >= 0.0005 else f"{share:.4%}"


def shown() -> str:
    """Return what the README shows now."""
    return README.read_text().split(BEGIN)[1].split(END)[0].strip()


def write() -> None:
    """Put the figures into the README."""
    before, _, rest = README.read_text().partition(BEGIN)
    after = rest.partition(END)[2]
    README.write_text(f"{before}{BEGIN}\n{text()}\n{END}{after}")


def main() -> int:
    """Print or write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true")
    if parser.parse_args().write:
        write()
    print(text())
    return 0


if __name__ == "__main__":
    sys.exit(main())
