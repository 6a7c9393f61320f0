"""Predicted against measured peaks on one GPU; what can be checked of it without one."""

from __future__ import annotations

import pytest
import torch

from benchmarks import on_gpu
from benchmarks.on_gpu import ALLOCATED_LIMIT, RESERVED_LIMIT, SETUPS, Setup, as_preset
from strategies.cluster import CPU_NAME, Cluster, Gpu, gpu_preset
from strategies.errors import ClusterError
from strategies.units import GIB, MIB


@pytest.mark.gpu
@pytest.mark.slow
def test_peaks_of_plans_match_the_allocators() -> None:
    decisions = on_gpu.fitting(on_gpu.here(), SETUPS)
    assert decisions, "no plan is predicted to fit this GPU"
    for row in map(on_gpu.row_of, decisions):
        assert abs(row.allocated_error) <= ALLOCATED_LIMIT, row
        assert row.reserved_error is not None
        assert abs(row.reserved_error) <= RESERVED_LIMIT, row
        assert row.measured.reserved_bytes is not None
        assert row.measured.reserved_bytes >= row.measured.allocated_bytes


@pytest.mark.distributed
def test_a_plan_runs_in_a_rank_of_its_own_and_is_predicted() -> None:
    # Without a GPU the storage meter stands in for the allocator; everything else is the same.
    cluster = Cluster(gpu=Gpu(name=CPU_NAME, memory_bytes=GIB), gpus=1, gpus_per_node=1)
    setup = Setup(micro_batch_size=2, gradient_accumulation_steps=2)
    (decision,) = on_gpu.fitting(cluster, [setup], model="benchmarks/models/tiny-llama.json", seq_len=64)
    row = on_gpu.row_of(decision)
    assert row.allocated_error == pytest.approx(0, abs=0.04)  # the limit of benchmarks/memory_accuracy.py
    assert row.measured.reserved_bytes is None
    assert len(row.measured.steps_s) == on_gpu.TIMED_STEPS - on_gpu.DROPPED_STEPS
    assert row.step_s > 0
    assert "not known" in on_gpu.report([row])


def test_a_plan_that_does_not_fit_is_left_out_and_said(capsys: pytest.CaptureFixture[str]) -> None:
    cluster = Cluster(gpu=Gpu(name="small", memory_bytes=GIB), gpus=1, gpus_per_node=1)
    assert on_gpu.fitting(cluster, SETUPS[:1]) == []
    assert "left out, predicted not to fit" in capsys.readouterr().out


def test_all_plans_fit_a_40_gb_gpu_and_have_a_step_time() -> None:
    cluster = Cluster(gpu=gpu_preset("A100-40GB-SXM"), gpus=1, gpus_per_node=1)
    for setup in SETUPS:
        decision = on_gpu.decision_of(setup, cluster=cluster, model=on_gpu.MODEL, seq_len=on_gpu.SEQ_LEN)
        assert decision.estimate.device_bytes < cluster.gpu.memory_bytes, setup
        assert decision.time is not None


@pytest.mark.parametrize(
    ("name", "mib", "preset"),
    [  # as nvidia-smi prints them
        ("NVIDIA H200", 143771, "H200-141GB-SXM"),
        ("NVIDIA H100 80GB HBM3", 81559, "H100-80GB-SXM"),
        ("NVIDIA H100 PCIe", 81559, "H100-80GB-PCIe"),
        ("NVIDIA A100-SXM4-40GB", 40960, "A100-40GB-SXM"),
        ("NVIDIA A100 80GB PCIe", 81920, "A100-80GB-PCIe"),
    ],
)
def test_the_drivers_name_finds_the_preset(name: str, mib: int, preset: str) -> None:
    found = as_preset(Gpu(name=name, memory_bytes=mib * MIB, source="nvidia-smi memory.total"))
    assert found.name == preset
    assert found.memory_bytes == mib * MIB


def test_an_unknown_gpu_stays_what_it_is() -> None:
    found = Gpu(name="NVIDIA Something", memory_bytes=24 * GIB)
    assert as_preset(found) is found


def test_without_a_gpu_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ClusterError, match="needs a CUDA device"):
        on_gpu.here()
