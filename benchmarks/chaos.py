"""Does a run that is killed again and again end as if nothing had happened?

Method: short runs of the trainer on two ranks; after a random time a random rank gets SIGKILL, the other one too a
moment later, as launchers do; the same command starts again with ``--resume auto``. When a run has done all its steps
the next begins, until the kills are as many as asked for. Each finished run is compared with one that nobody disturbed:
sample ids, losses and gradient norms of every step, weights and optimizer states at the end. All must be equal to the
bit. Ranks are forked from a process that has imported the libraries, so that most of the time is the run's own.

Usage: ``python -m benchmarks.chaos [--kills N]``; it writes ``benchmarks/results/chaos.json`` and ``chaos.md``.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from multiprocessing import Array
from pathlib import Path
from typing import Any

from benchmarks.environment import environment
from benchmarks.resume_pieces import largest_difference
from scaling.checkpoint.names import find_checkpoints
from scaling.data.order import SampleOrder
from scaling.ports import free_port
from strategies.learning.run_store import OFF, VARIABLE

RESULTS = Path(__file__).parent / "results"
STRATEGIES = ("ddp", "fsdp2", "zero2", "zero3")
SEED, STEPS, SAVE_EVERY, EVAL_EVERY, GLOBAL_BATCH_SIZE = 11, 40, 2, 1, 8
LONGEST_S = 4.0
"""Of the random times after which a rank is killed."""
SHARE_WHILE_STARTING = 0.2
"""Of the kills whose time counts from the start; that of the others counts from the victim's first step."""
PHASES = ("starting", "training", "evaluating", "saving", "exporting")
IDS_FILE = "ids.jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """What is run, again and again."""

    plan: Path
    data: Path
    out: Path
    steps: int = STEPS
    num_ranks: int = 2

    def again(self, number: int) -> Command:
        """Return the same run in a folder of its own."""
        return replace(self, out=self.out.with_name(f"{self.out.name}-killed-{number}"))

    def arguments(self) -> list[str]:
        flags = {
            "plan": self.plan,
            "data": self.data,
            "out": self.out,
            "steps": self.steps,
            "save-every": SAVE_EVERY,
            "eval-every": EVAL_EVERY,
            "eval-batches": 2,
            "eval-fraction": 0.2,
            "learning-rate": 1e-2,
            "warmup-steps": 2,
            "measure-steps": 0,
            "resume": "auto",
        }
        return [part for name, value in flags.items() for part in (f"--{name}", str(value))]


@dataclass(kw_only=True)
class Ended:
    """How one start came to its end."""

    killed_in: str | None
    """What the killed rank was doing; None where the run did all its steps."""
    exit_codes: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    """Who is killed and when."""

    victim: int
    after_s: float
    from_first_step: bool
    """Whether the time counts from the victim's first step, else from the start."""

    @classmethod
    def drawn(cls, draw: random.Random, *, num_ranks: int, longest_s: float) -> Kill:
        return cls(
            victim=draw.randrange(num_ranks),
            after_s=draw.uniform(0.0, longest_s),
            from_first_step=draw.random() >= SHARE_WHILE_STARTING,
        )


def start(command: Command, kill: Kill | None) -> Ended:
    """Run the command in forked ranks; kill one after a time, and then the others."""
    phases: Any = Array("i", command.num_ranks, lock=False)
    port = free_port()
    children = [_fork(command, rank, port, phases) for rank in range(command.num_ranks)]
    victim = kill.victim if kill else 0
    deadline = time.monotonic() + kill.after_s if kill and not kill.from_first_step else None
    codes: dict[int, int] = {}
    killed_in = None
    while len(codes) < len(children):
        for rank, child in enumerate(children):
            if rank not in codes and (ended := os.waitpid(child, os.WNOHANG))[0]:
                codes[rank] = os.waitstatus_to_exitcode(ended[1])
        has_begun = PHASES[phases[victim]] != "starting"
        if kill and deadline is None and killed_in is None and has_begun:
            deadline = time.monotonic() + kill.after_s
        if deadline is not None and killed_in is None and time.monotonic() > deadline and victim not in codes:
            killed_in = PHASES[phases[victim]]
            os.kill(children[victim], signal.SIGKILL)
            time.sleep(0.05)
            for rank, child in enumerate(children):
                if rank not in codes and rank != victim:
                    os.kill(child, signal.SIGKILL)
        elif any(code != 0 for code in codes.values()) and killed_in is None:
            for rank, child in enumerate(children):  # one has failed by itself: as launchers do, end the others
                if rank not in codes:
                    os.kill(child, signal.SIGKILL)
            time.sleep(0.05)
        time.sleep(0.005)
    return Ended(killed_in=killed_in, exit_codes=[codes[rank] for rank in range(command.num_ranks)])


def _fork(command: Command, rank: int, port: int, phases: Any) -> int:
    if child := os.fork():
        return child
    code = 70
    try:
        code = _rank(command, rank, port, phases)
    except BaseException as error:
        print(f"rank {rank}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        code = error.code if isinstance(error, SystemExit) and isinstance(error.code, int) else 70
    finally:
        os._exit(code)


def _rank(command: Command, rank: int, port: int, phases: Any) -> int:
    log = os.open(command.out.with_name(f"{command.out.name}.rank{rank}.log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    size = str(command.num_ranks)
    place = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size}
    os.environ.update({**place, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)})
    os.environ[VARIABLE] = OFF  # runs that were disturbed on purpose are nothing to learn from
    _observe(command.out.with_name(f"{command.out.name}.rank{rank}.{IDS_FILE}"), rank, phases)
    from scaling.train import main

    return main(command.arguments())


def _observe(ids_path: Path, rank: int, phases: Any) -> None:
    """Note what the rank is doing, and the ids of every step that it trains."""
    from scaling import trainer, training_run
    from scaling.saving import Saving

    def telling(phase: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def told(*args: Any, **kwargs: Any) -> Any:
            phases[rank] = PHASES.index(phase)
            try:
                return function(*args, **kwargs)
            finally:
                phases[rank] = PHASES.index("exporting" if phase == "exporting" else "training")

        return told

    for module, name, phase in (
        (trainer, "evaluate", "evaluating"),
        (trainer, "train_step", "training"),
        (training_run, "_export", "exporting"),
        (Saving, "save", "saving"),
    ):
        setattr(module, name, telling(phase, getattr(module, name)))
    draw = SampleOrder.rank_draws

    def noted(self: SampleOrder, step: int, **kwargs: Any) -> Any:
        draws = draw(self, step, **kwargs)
        with ids_path.open("a") as file:
            file.write(json.dumps([step, [each.ids.tolist() for each in draws]]) + "\n")
        return draws

    SampleOrder.rank_draws = noted  # type: ignore[method-assign]


def ids_by_step(command: Command) -> list[list[int]]:
    """Return the sample ids of every step, as the last time it was trained, in the order of the global batch."""
    by_rank: list[dict[int, list[list[int]]]] = []
    for rank in range(command.num_ranks):
        path = command.out.with_name(f"{command.out.name}.rank{rank}.{IDS_FILE}")
        by_rank.append(dict(json.loads(line) for line in path.read_text().splitlines() if line.endswith("]]]")))
    # Micro batches are dealt to the ranks in turn.
    return [
        [sample for dealt in zip(*(ids[step] for ids in by_rank), strict=True) for micro in dealt for sample in micro]
        for step in range(command.steps)
    ]


def numbers_by_step(out: Path) -> list[tuple[Any, ...]]:
    """Return what metrics.jsonl says of every step and evaluation, without times."""
    records = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [
        (each["step"], each.get("loss"), each.get("grad_norm"), each.get("lr"), each.get("eval_loss"))
        for each in records
    ]


@dataclass(kw_only=True)
class Tally:
    """What one strategy went through."""

    strategy: str
    kills: dict[str, int] = field(default_factory=lambda: dict.fromkeys(PHASES, 0))
    """By what the killed rank was doing."""
    starts: int = 0
    finished_runs: int = 0
    failed_starts: int = 0
    """Starts that ended by themselves with an error: none must."""
    different_runs: int = 0
    """Finished runs that differ from the undisturbed one: none must."""


def torment(
    undisturbed: Command,
    strategy: str,
    *,
    num_kills: int,
    draw: random.Random,
    longest_s: float = LONGEST_S,
    most_starts: int = 1000,
) -> Tally:
    """Run and kill until there were so many kills, and the last run has finished."""
    tally = Tally(strategy=strategy)
    whole = start(undisturbed, None)
    assert whole.exit_codes == [0] * undisturbed.num_ranks, _tail(undisturbed)
    command = undisturbed.again(0)
    while tally.starts < most_starts:
        is_last = sum(tally.kills.values()) >= num_kills
        kill = None if is_last else Kill.drawn(draw, num_ranks=command.num_ranks, longest_s=longest_s)
        ended = start(command, kill)
        tally.starts += 1
        if ended.killed_in is not None:
            tally.kills[ended.killed_in] += 1
            continue
        if ended.exit_codes != [0] * command.num_ranks:
            tally.failed_starts += 1
            print(_tail(command), file=sys.stderr)
            return tally
        tally.finished_runs += 1
        tally.different_runs += not _same(command, undisturbed)
        if is_last:
            return tally
        command = undisturbed.again(tally.finished_runs)
    return tally


def _same(command: Command, other: Command) -> bool:
    mine, theirs = (find_checkpoints(each.out / "checkpoints")[0] for each in (command, other))
    return (
        ids_by_step(command) == ids_by_step(other)
        and numbers_by_step(command.out) == numbers_by_step(other.out)
        and mine.name == theirs.name
        and set(largest_difference(mine, theirs).values()) == {0.0}
    )


def _tail(command: Command) -> str:
    logs = [command.out.with_name(f"{command.out.name}.rank{rank}.log") for rank in range(command.num_ranks)]
    return "\n".join(log.read_text()[-3000:] for log in logs if log.exists())


def prepare(folder: Path, strategy: str, *, steps: int = STEPS) -> Command:
    """Write a plan for a small model with dropout and a text of a few dozen samples."""
    from benchmarks.chaos_plan import write_text, write_tiny_plan

    plan = write_tiny_plan(folder / f"{strategy}-plan", strategy, global_batch_size=GLOBAL_BATCH_SIZE)
    return Command(plan=plan, data=write_text(folder), out=folder / strategy, steps=steps)


def import_all(strategies: Sequence[str]) -> None:
    """Import what ranks need, before they are forked."""
    import torch

    import scaling.training_run  # noqa: F401  # for its imports
    from scaling.engines.deepspeed import import_deepspeed

    torch.set_num_threads(1)
    if any(each.startswith("zero") for each in strategies):
        import_deepspeed(torch.device("cpu"))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=112, help="over all strategies")
    num_kills = parser.parse_args().kills
    import_all(STRATEGIES)
    tallies = []
    with tempfile.TemporaryDirectory() as folder:
        for strategy in STRATEGIES:
            draw = random.Random(f"{SEED} {strategy}")
            command = prepare(Path(folder), strategy)
            tally = torment(command, strategy, num_kills=-(-num_kills // len(STRATEGIES)), draw=draw)
            tallies.append(tally)
            print(asdict(tally), flush=True)
    content = {"seed": SEED, "environment": environment(), "strategies": [asdict(each) for each in tallies]}
    (RESULTS / "chaos.json").write_text(json.dumps(content, indent=2) + "\n")
    (RESULTS / "chaos.md").write_text(table(tallies))


def table(tallies: Sequence[Tally]) -> str:
    """Return the tallies as a Markdown table."""
    head = ["strategy", *(f"killed {phase}" for phase in PHASES), "kills", "starts", "finished runs", "failed starts"]
    lines = [[*head, "different runs"], ["---"] * (len(head) + 1)]
    for each in tallies:
        kills = [each.kills[phase] for phase in PHASES]
        numbers = [*kills, sum(kills), each.starts, each.finished_runs, each.failed_starts, each.different_runs]
        lines.append([each.strategy, *map(str, numbers)])
    text = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    method = f"Method: `benchmarks/chaos.py`, seed {SEED}, 2 ranks, {STEPS} steps of {GLOBAL_BATCH_SIZE} samples."
    return f"# Runs killed at random times\n\n{method}\n\n{text}\n"


if __name__ == "__main__":
    main()
