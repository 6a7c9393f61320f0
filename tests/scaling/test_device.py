"""The device a rank gets is the one the plan was made for, or a message."""

from __future__ import annotations

import logging
import os
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from scaling.device import choose_device
from scaling.errors import LaunchError
from scaling.launch_env import LaunchEnvironment
from strategies.cluster import Gpu
from strategies.decision import Decision
from strategies.job import Precision
from strategies.units import GIB
from tests.scaling.decisions import toy_decision

RANK_1_OF_2 = LaunchEnvironment(rank=1, local_rank=1, world_size=2, local_world_size=2, is_launched=True)


def planned_for(gpu: str) -> Decision:
    toy = toy_decision("ddp", world_size=2, accumulation=1, precision=Precision.BF16)
    return replace(toy, cluster=replace(toy.cluster, gpu=Gpu(name=gpu, memory_bytes=24 * GIB)))


@pytest.fixture
def two_small_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Test GPU")
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: True)
    properties = SimpleNamespace(total_memory=16 * GIB)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)


def test_a_plan_for_cpus_gets_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # the threads of this process are left alone
    assert choose_device(planned_for("cpu"), RANK_1_OF_2) == torch.device("cpu")


@pytest.mark.parametrize(("num_cores", "num_ranks", "threads"), [(16, 4, 4), (2, 2, 1), (7, 2, 3), (2, 4, 1)], ids=str)
def test_ranks_share_the_cores_where_nobody_has_said_how(
    num_cores: int, num_ranks: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", chosen.append)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(num_cores)))
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    choose_device(planned_for("cpu"), replace(RANK_1_OF_2, world_size=num_ranks, local_world_size=num_ranks))
    assert chosen == [threads]


@pytest.mark.parametrize("alone", [True, False], ids=["one rank", "OMP_NUM_THREADS given"])
def test_threads_are_left_as_they_are(alone: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", chosen.append)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if not alone:
        monkeypatch.setenv("OMP_NUM_THREADS", "3")
    launch = replace(RANK_1_OF_2, rank=0, local_rank=0, world_size=1, local_world_size=1) if alone else RANK_1_OF_2
    choose_device(planned_for("cpu"), launch)
    assert chosen == []


def test_a_plan_for_gpus_is_refused_where_there_are_too_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(LaunchError, match="local_world_size=2 ranks were started here, but this machine has 1 CUDA"):
        choose_device(planned_for("L4"), RANK_1_OF_2)


@pytest.mark.usefixtures("two_small_gpus")
def test_a_rank_gets_the_gpu_of_its_number_and_hears_of_less_memory(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="scaling"):
        assert choose_device(planned_for("L4"), RANK_1_OF_2) == torch.device("cuda", 1)
    assert "gpu=L4 with 24.00 GiB, but Test GPU has 16.00 GiB" in caplog.text


@pytest.mark.usefixtures("two_small_gpus")
def test_a_gpu_without_bf16_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: False)
    with pytest.raises(LaunchError, match="precision=bf16, but Test GPU has no bf16"):
        choose_device(planned_for("V100"), RANK_1_OF_2)
