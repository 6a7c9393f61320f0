"""What is said about ranks that stand still, and how a rank knows that its launcher or another rank has gone."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest
from torch._C._distributed_c10d import HashStore

from scaling.recovery import roster as roster_module
from scaling.recovery.launcher import Launcher, is_alive, parent_of
from scaling.recovery.progress import Position, Progress
from scaling.recovery.roster import Rank, Roster
from scaling.recovery.sentinel import describe_stuck


def rank(number: int, host: str = "here") -> Rank:
    return Rank(rank=number, host=host, pid=100 + number)


def at(line: str, *, marks: int, collectives: int = 0) -> Position:
    return Position(marks=marks, collectives=collectives, doing="step 3, data", line=line, stack=("a.py:1 in main",))


def test_the_rank_with_the_fewest_marks_is_named_with_its_line_and_callers() -> None:
    told = describe_stuck({rank(0): at("b.py:2 in wait", marks=9), rank(1): at("c.py:3 in read", marks=8)}, [])
    assert told.splitlines() == [
        "rank 1 (pid 101 on here) held the others up:",
        "  rank 0 (pid 100 on here): step 3, data, at b.py:2 in wait",
        "  rank 1 (pid 101 on here): step 3, data, at c.py:3 in read",
        "  rank 1 (pid 101 on here) came there by",
        "    a.py:1 in main",
    ]


def test_between_equal_marks_the_rank_with_fewer_collectives_is_behind() -> None:
    positions = {rank(0): at("x", marks=9, collectives=4), rank(1): at("y", marks=9, collectives=5)}
    assert describe_stuck(positions, []).startswith("rank 0 (pid 100 on here) held")


def test_nobody_is_named_where_nobody_is_behind_and_a_silent_rank_is() -> None:
    positions = {rank(0): at("x", marks=9), rank(1): at("y", marks=9)}
    assert describe_stuck(positions, []).startswith("no rank is behind the others:")
    told = describe_stuck(positions, [rank(2)])
    assert told.startswith("rank 2 (pid 102 on here) held the others up:")
    assert "  rank 2 (pid 102 on here): no answer; its Python does not run" in told


def test_a_position_is_the_line_that_the_main_thread_runs() -> None:
    progress = Progress()
    progress.begin_step(7)
    progress.mark("micro batch 1 of 2")
    position = progress.position()
    assert position.doing == "step 7, micro batch 1 of 2"
    assert position.marks == 2
    assert "progress.py" in position.line  # where this thread, the main one, asks
    assert any("test_stuck.py" in line for line in position.stack)


def test_a_process_that_has_ended_is_not_alive_even_before_it_is_waited_for() -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    assert is_alive(process.pid)
    process.kill()
    deadline = time.monotonic() + 10
    while is_alive(process.pid) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not is_alive(process.pid)  # a zombie until here
    process.wait()
    assert not is_alive(process.pid)
    assert parent_of(process.pid) is None


def test_a_process_whose_parent_has_ended_knows_that_its_launcher_is_gone() -> None:
    watcher = (
        "import sys, time; from scaling.recovery.launcher import Launcher; launcher = Launcher.now(); "
        "print(launcher.is_gone, flush=True); sys.stdin.read(); time.sleep(0.2); print(launcher.is_gone, flush=True)"
    )
    parent = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {watcher!r}]); sys.stdin.read(1)"
    with subprocess.Popen(
        [sys.executable, "-c", parent], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stdout.readline() == "False\n"
        process.kill()
        process.stdin.close()
        assert process.stdout.readline() == "True\n"
    assert not Launcher.now().is_gone


def rosters(num: int, *, hosts: list[str]) -> list[Roster]:
    """Return what ranks of other hosts see of each other, all in this process."""
    store = HashStore()
    ranks = [rank(number, host) for number, host in enumerate(hosts)]
    return [Roster(number, lambda _: ranks, store, host=hosts[number]) for number in range(num)]


def test_a_rank_of_another_machine_is_missed_when_it_falls_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roster_module, "BREATH_S", 0.0)
    monkeypatch.setattr(roster_module, "SILENT_S", 0.3)
    first, second = rosters(2, hosts=["here", "there"])
    for _ in range(5):
        first.breathe()
        second.breathe()
        assert first.left() is None
        time.sleep(0.1)
    time.sleep(0.4)  # the second one does not breathe
    left = first.left()
    assert left is not None
    assert str(left).startswith("rank 1 (pid 101 on there) has gone without a word")
    assert second.left() == left  # read from the board


def test_a_farewell_is_read_by_all_and_told_by_one() -> None:
    first, second, third = rosters(3, hosts=["a", "b", "c"])
    assert first.left() is None
    second.say_farewell("no data")
    for each in (first, third):
        left = each.left()
        assert str(left) == "rank 1 (pid 101 on b) has ended: no data"
    assert [each.is_first_to("tell") for each in (first, third)] == [True, False]
