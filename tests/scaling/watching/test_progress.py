"""What is shown where stderr is a file."""

from __future__ import annotations

import io

from scaling.watching.progress import Lines
from tests.scaling.watching.made_up import evaluation, step


def test_a_log_file_gets_the_first_step_the_last_and_one_line_in_half_a_minute() -> None:
    stream, clock = io.StringIO(), iter(range(0, 1000, 4))
    lines = Lines(stream, num_steps=20, now=lambda: float(next(clock)))  # four seconds a step
    for number in range(1, 21):
        lines.show(step(number, seconds=4.0))
    shown = stream.getvalue().splitlines()
    assert [line.split(":")[0] for line in shown] == ["step 1/20", "step 9/20", "step 17/20", "step 20/20"]
    assert shown[0] == "step 1/20: loss 4.0000, 25 tokens/s"
    assert shown[1].endswith(", 44 s left")  # eleven steps of four seconds
    assert "left" not in shown[3]


def test_time_left_counts_what_lies_between_steps() -> None:
    stream, times = io.StringIO(), iter([0.0, 100.0])
    lines = Lines(stream, num_steps=4, now=lambda: next(times))
    lines.show(step(1, seconds=1.0))
    lines.show(evaluation(1))  # takes most of the 100 seconds
    lines.show(step(2, seconds=1.0))
    assert stream.getvalue().splitlines()[1:] == [
        "step 1: eval_loss 2.5000",
        "step 2/4: loss 3.0000, 100 tokens/s, 3 min 20 s left",
    ]
