"""Lines for one machine and for several, as the launchers' own parsers read them."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import pytest

from strategies.decision import Decision
from strategies.emit.commands import LaunchCommand, LauncherName, Nodes, hostfile_template, launch_command
from strategies.emit.files import write_plan
from strategies.plan import StrategyName
from tests.strategies.emit.test_files import decision_for

FLAGS = ("--steps", "3", "--out", "my run")


def on_nodes(strategy: StrategyName, *, gpus: int = 16, per_node: int = 8) -> Decision:
    decision = decision_for(strategy, gpus=gpus)
    return replace(decision, cluster=replace(decision.cluster, gpus_per_node=per_node))


def command(decision: Decision, launcher: LauncherName, folder: Path, **nodes: object) -> LaunchCommand:
    return launch_command(decision, launcher, folder=folder, flags=FLAGS, nodes=replace(Nodes(), **nodes))  # type: ignore[arg-type]


@pytest.mark.parametrize("strategy", [StrategyName.ZERO3, StrategyName.DDP])
def test_accelerate_starts_one_node_of_several_by_itself(tmp_path: Path, strategy: StrategyName) -> None:
    from accelerate.commands.launch import _validate_launch_command, launch_command_parser
    from accelerate.utils.launch import prepare_deepspeed_cmd_env, prepare_multi_gpu_env

    decision = on_nodes(strategy)
    write_plan(decision, folder=tmp_path)
    line = command(decision, LauncherName.ACCELERATE, tmp_path, rank="1", address="node1", port="29511")
    args, *_ = _validate_launch_command(launch_command_parser().parse_args(list(line.words[2:])))
    if strategy is StrategyName.ZERO3:
        # Of its other ways each is a `deepspeed` that starts every node: here it would be one on every node.
        args.deepspeed_fields_from_accelerate_config = ""  # as its launch_command does
        started, _ = prepare_deepspeed_cmd_env(args)
        assert started is None
    else:
        prepare_multi_gpu_env(args)
    assert (args.nnodes, args.nproc_per_node, args.node_rank) == ("2", "8", 1)
    assert args.rdzv_endpoint == "node1:29511"
    assert args.training_script == "scaling.train"
    assert args.training_script_args[-4:] == list(FLAGS)


def test_torchrun_is_told_nodes_and_ranks(tmp_path: Path) -> None:
    from torch.distributed.run import parse_args

    read = parse_args(
        command(on_nodes(StrategyName.DDP), LauncherName.TORCHRUN, tmp_path, rank="1", address="a").words[1:]
    )
    assert (read.nnodes, read.nproc_per_node, read.node_rank) == ("2", "8", 1)
    assert (read.master_addr, read.master_port, read.rdzv_backend) == ("a", 29500, "static")
    one = parse_args(command(decision_for(StrategyName.DDP), LauncherName.TORCHRUN, tmp_path).words[1:])
    assert (one.standalone, one.nproc_per_node, one.training_script_args[-4:]) == (True, "4", list(FLAGS))


def read_by_deepspeed(line: LaunchCommand) -> argparse.Namespace:
    from deepspeed.launcher.runner import parse_args

    read: argparse.Namespace = parse_args(list(line.words[1:]))
    return read


@pytest.mark.deepspeed
def test_deepspeed_is_told_nodes_by_host_file(tmp_path: Path) -> None:
    decision = on_nodes(StrategyName.ZERO2)
    all_nodes = read_by_deepspeed(command(decision, LauncherName.DEEPSPEED, tmp_path, hostfile="hosts"))
    assert (all_nodes.num_nodes, all_nodes.num_gpus, all_nodes.hostfile) == (2, 8, "hosts")
    assert not all_nodes.no_ssh
    assert all_nodes.module
    one = read_by_deepspeed(
        command(decision, LauncherName.DEEPSPEED, tmp_path, by_ssh=False, rank="1", address="a", port="29511")
    )
    assert (one.no_ssh, one.node_rank, one.master_addr, one.master_port) == (True, 1, "a", 29511)
    assert one.user_args[-4:] == list(FLAGS)


@pytest.mark.deepspeed
def test_deepspeed_takes_the_gpus_that_are_visible(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from deepspeed.launcher.runner import parse_inclusion_exclusion

    read = read_by_deepspeed(
        command(decision_for(StrategyName.ZERO2), LauncherName.DEEPSPEED, tmp_path, device_ids=("4", "6"), port="29511")
    )
    assert parse_inclusion_exclusion({"localhost": 8}, read.include, "") == {"localhost": [4, 6]}
    assert read.num_gpus == -1  # which excludes --include


@pytest.mark.deepspeed
def test_the_host_file_to_fill_in_is_one(tmp_path: Path) -> None:
    from deepspeed.launcher.runner import fetch_hostfile

    path = tmp_path / "hostfile"
    path.write_text(hostfile_template(on_nodes(StrategyName.ZERO2, gpus=24).cluster))
    assert list(fetch_hostfile(str(path)).values()) == [8, 8, 8]


def test_a_host_file_that_was_filled_in_stays(tmp_path: Path) -> None:
    decision = on_nodes(StrategyName.ZERO2)
    assert tmp_path / "hostfile" in write_plan(decision, folder=tmp_path)
    (tmp_path / "hostfile").write_text("gpu17 slots=8\ngpu18 slots=8\n")
    assert tmp_path / "hostfile" not in write_plan(decision, folder=tmp_path)
    assert (tmp_path / "hostfile").read_text().startswith("gpu17")
    assert not (tmp_path / "one").exists()
    write_plan(decision_for(StrategyName.ZERO2), folder=tmp_path / "one")
    assert not (tmp_path / "one" / "hostfile").exists()
