"""The job script: what it asks of Slurm, and whether a shell can read it. It is run in tests/scaling/launch."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from strategies.decision import Decision
from strategies.emit.slurm import SlurmOptions, signal_s, slurm_script
from strategies.errors import ScalingError
from strategies.plan import StrategyName
from strategies.units import GIB
from tests.strategies.emit.test_commands import on_nodes
from tests.strategies.emit.test_files import decision_for

FLAGS = ("--data", 'it\'s "my" $HOME.txt', "--steps", "3", "--out", "run")


def script(decision: Decision, **options: object) -> str:
    slurm = SlurmOptions(**options)  # type: ignore[arg-type]
    return slurm_script(decision, folder=Path("/plans/a b"), flags=FLAGS, options=slurm, program="/venv/bin/torchrun")


def directives(text: str) -> list[str]:
    return re.findall(r"^#SBATCH --(.*)$", text, flags=re.MULTILINE)


@pytest.mark.parametrize(
    "decision", [on_nodes(StrategyName.ZERO3), decision_for(StrategyName.DDP, name="cpu")], ids=str
)
def test_a_shell_can_read_the_script(decision: Decision, tmp_path: Path) -> None:
    path = tmp_path / "job.sh"
    path.write_text(script(decision, time="12:00:00"))
    assert subprocess.run(["bash", "-n", str(path)], check=False).returncode == 0
    if shellcheck := shutil.which("shellcheck"):
        assert subprocess.run([shellcheck, str(path)], check=False).returncode == 0


def test_options_come_before_the_first_command_and_have_the_plans_shape() -> None:
    text = script(on_nodes(StrategyName.ZERO3), time="1-12:00:00", partition="gpu", account="lab", more=("exclusive",))
    found = directives(text)
    assert {"nodes=2", "ntasks-per-node=1", "gpus-per-node=8", "cpus-per-task=32"} <= set(found)
    assert {"time=1-12:00:00", "partition=gpu", "account=lab", "exclusive", "requeue", "open-mode=append"} <= set(found)
    assert "output='/plans/a b/slurm-%j.log'" in found
    # sbatch(1): options after the first line that is neither empty nor a comment are not read.
    head = text[: text.rindex("#SBATCH")]
    assert all(line.startswith("#") for line in head.splitlines() if line)
    assert '--nnodes 2 --node_rank "$SLURM_NODEID" --master_addr "$MASTER_ADDR" --master_port "$MASTER_PORT"' in text
    assert "$(scontrol show hostnames" in text


def test_cpu_ranks_ask_for_no_gpus_and_one_node_needs_no_address() -> None:
    text = script(decision_for(StrategyName.DDP, name="cpu"))
    assert not [line for line in directives(text) if "gpu" in line]
    assert "--standalone" in text
    assert "MASTER_ADDR" not in text


def test_memory_is_what_the_plan_takes_of_a_node_and_more() -> None:
    decision = on_nodes(StrategyName.ZERO3)
    host = decision.estimate.host
    assert host is not None
    (mem,) = [line for line in directives(script(decision)) if line.startswith("mem=")]
    asked = int(mem.removeprefix("mem=").removesuffix("G")) * GIB
    assert 1.2 * host.peak.total_bytes < asked < 1.3 * host.peak.total_bytes + GIB
    assert "mem=0" in directives(script(decision, mem="0"))


def test_the_job_is_told_before_its_end_long_enough_for_a_checkpoint() -> None:
    decision = on_nodes(StrategyName.ZERO3)
    assert f"signal=B:USR1@{signal_s(decision)}" in directives(script(decision))
    assert "signal=B:USR1@900" in directives(script(decision, signal_s=900))
    host = decision.estimate.host
    assert host is not None
    larger = replace(
        decision, estimate=replace(decision.estimate, host=replace(host, training_checkpoint_bytes=10**12))
    )
    # 10^12 bytes from two nodes at 2e8 bytes a second.
    assert signal_s(larger) == pytest.approx(2500, abs=120)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"time": "2 days"}, "--time '2 days'"),
        ({"time": "1:2:3:4"}, "--time '1:2:3:4'"),
        ({"partition": "gpu\n#SBATCH --account=other"}, "--partition"),
        ({"account": ""}, "--account '' is empty"),
        ({"time": "٣"}, "--time '٣'"),
        ({"more": ("mail-type=END\nx",)}, "--sbatch 'mail-type=END\\nx'"),
        ({"more": ("nodes=7",)}, "--sbatch 'nodes=7' is for the plan to say"),
        ({"mem": "lots"}, "--mem 'lots'"),
        ({"cpus_per_task": 0}, "--cpus-per-task 0"),
        ({"signal_s": 70000}, "--signal-s 70000"),
        ({"more": ("--exclusive",)}, "--sbatch '--exclusive'"),
    ],
)
def test_options_that_slurm_would_refuse_are_named(options: dict[str, object], named: str) -> None:
    with pytest.raises(ScalingError, match=re.escape(named)):
        SlurmOptions(**options)  # type: ignore[arg-type]


def test_what_is_given_is_one_word_for_sbatch() -> None:
    text = script(on_nodes(StrategyName.ZERO3), constraint="a#b|c", more=("comment=it's #1", "exclusive"))
    found = [shlex.split(line, comments=True) for line in directives(text)]
    assert ["constraint=a#b|c"] in found
    assert ["comment=it's #1"] in found
    assert all(len(words) == 1 for words in found)


def test_a_folder_is_neither_a_command_nor_a_pattern() -> None:
    options, decision = SlurmOptions(), on_nodes(StrategyName.ZERO3)

    def of(folder: str) -> str:
        return slurm_script(decision, folder=Path(folder), flags=FLAGS, options=options, program="torchrun")

    assert "output='/a%%j b/slurm-%j.log'" in directives(of("/a%j b"))  # sbatch(1), filename pattern
    with pytest.raises(ScalingError, match=r"the plan '/a\\ntouch b/plan.json' has a line break"):
        of("/a\ntouch b")


@pytest.mark.parametrize("time", ["30", "30:00", "1:30:00", "2-0", "2-12:30", "2-12:30:15", "infinite"])
def test_every_form_of_a_time_limit_is_taken(time: str) -> None:  # sbatch(1), --time
    assert SlurmOptions(time=time).time == time
