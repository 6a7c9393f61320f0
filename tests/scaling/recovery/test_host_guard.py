"""What is said and refused before host memory ends, and what is said of a process that was killed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from scaling.checkpoint.errors import SaveFailed
from scaling.checkpoint.snapshot import Snapshot
from scaling.errors import TrainingError
from scaling.recovery.host_guard import HostGuard
from scaling.recovery.killed import HostWatch
from scaling.train import main
from scaling.train_config import TrainConfig
from strategies import detect
from strategies.cluster import Cluster, gpu_preset
from strategies.decision import Decision
from strategies.detect import HostMemory
from strategies.job import Job, Precision
from strategies.load_model import load_model_spec
from strategies.plan import OffloadDevice, StrategyName
from strategies.search import FixedParts
from strategies.select import decide
from strategies.units import GIB, MIB
from tests.scaling.decisions import plan_tiny

NUM_PARAMS = 8_030_261_248
"""Of Llama 3.1 8B (its model card says 8.03 billion)."""
OFFLOADED_BYTES = 16 * NUM_PARAMS
"""ZeRO-Offload keeps fp32 masters, moments and gradients on the host (Ren et al. 2021, arXiv:2101.06840, section 4)."""


def llama_8b(**fixed: object) -> Decision:
    """Llama 3.1 8B in bf16 on eight GPUs of one node, ZeRO-3."""
    return decide(
        load_model_spec("llama-3.1-8b"),
        cluster=Cluster(gpu=gpu_preset("A100-80GB-SXM"), gpus=8, gpus_per_node=8),
        job=Job(seq_len=2048, global_batch_size=8, precision=Precision.BF16),
        fixed=FixedParts(strategy=StrategyName.ZERO3, micro_batch_size=1, **fixed),  # type: ignore[arg-type]
        model="llama-3.1-8b",
    )


@pytest.fixture(scope="module")
def offloaded() -> Decision:
    return llama_8b(offload_optimizer=OffloadDevice.CPU, offload_param=OffloadDevice.CPU)


def config(**changes: object) -> TrainConfig:
    settings = {"plan": Path("plan.json"), "out": Path("run"), "steps": 1}
    return TrainConfig(**{**settings, **changes})  # type: ignore[arg-type]


def memory(*, limit: float, used: float = 0) -> HostMemory:
    return HostMemory(limit_bytes=round(limit * GIB), used_bytes=round(used * GIB), of="/sys/fs/cgroup/job_7")


def guard(decision: Decision, now: HostMemory, *, swap: int = 0, **settings: object) -> HostGuard:
    return HostGuard(decision, config(**settings), ranks_here=8, memory=lambda: now, swap=lambda: swap)


def test_a_model_on_every_rank_that_surely_does_not_fit_is_refused(offloaded: Decision) -> None:
    whole = 8 * 2 * NUM_PARAMS / GIB  # 119.7
    with pytest.raises(TrainingError) as caught:
        guard(offloaded, memory(limit=128, used=10)).before_load(is_built=True)
    told = str(caught.value)
    assert (
        f"loading takes a whole model on every rank, {whole:.2f} GiB of host memory, and 118.00 GiB of 128.00 GiB"
        in told
    )
    assert "(/sys/fs/cgroup/job_7) are free" in told
    assert "plan with --offload-param none; plan with --offload-optimizer none" in told
    assert "plan with fewer --gpus-per-node (now 8)" in told


def test_swap_and_files_that_are_mapped_make_it_unsure(offloaded: Decision, caplog: pytest.LogCaptureFixture) -> None:
    now = memory(limit=128, used=10)
    guard(offloaded, now, swap=20 * GIB).before_load(is_built=True)
    guard(offloaded, now).before_load(is_built=False)
    assert len(caplog.messages) == 2
    assert all("a rank may be killed for lack of memory" in each for each in caplog.messages)


def test_what_the_plan_takes_later_is_forecast(offloaded: Decision, caplog: pytest.LogCaptureFixture) -> None:
    # All states are on the host later, more than the copies that every rank loads.
    assert OFFLOADED_BYTES + 2 * NUM_PARAMS > 8 * 2 * NUM_PARAMS
    guard(offloaded, memory(limit=125), num_workers=2, save_async=True).before_load(is_built=True)
    (told,) = caplog.messages
    assert "offloaded states" in told
    assert "to take less: --num-workers 0 (now 2 on each rank); no --save-async" in told
    caplog.clear()
    guard(offloaded, memory(limit=1000)).before_load(is_built=True)
    assert caplog.messages == []


def test_a_plan_that_tells_nothing_stops_nothing(offloaded: Decision, caplog: pytest.LogCaptureFixture) -> None:
    silent = replace(offloaded, estimate=replace(offloaded.estimate, host=None))
    ours = guard(silent, memory(limit=125))
    ours.before_load(is_built=True)
    ours.before_export(checkpoint=Path("c"))
    assert caplog.messages == []


def test_a_checkpoint_is_refused_where_its_pieces_surely_do_not_fit(offloaded: Decision) -> None:
    full = guard(offloaded, memory(limit=128, used=127.9))
    full.before_save(8 * MIB)
    with pytest.raises(
        SaveFailed, match=r"writing a checkpoint takes 256\.00 MiB of host memory, and .*Nothing was wri"
    ):
        full.before_save(32 * MIB)


def test_a_model_is_not_exported_where_its_largest_tensor_has_no_room(
    offloaded: Decision, caplog: pytest.LogCaptureFixture
) -> None:
    # The embedding: 128256 x 4096 in bf16, as it came and as it is written.
    twice = 2 * 2 * 128_256 * 4096 / GIB
    guard(offloaded, memory(limit=128, used=128 - 1.01 * twice)).before_export(
        checkpoint=Path("run/checkpoints/step-9")
    )
    full = guard(offloaded, memory(limit=128, used=128 - 0.99 * twice))
    with pytest.raises(TrainingError, match=r"scaling checkpoint export run/checkpoints/step-9 --out DIR"):
        full.before_export(checkpoint=Path("run/checkpoints/step-9"))
    full.before_export(checkpoint=None)
    assert "tried all the same, since no checkpoint has the last step" in caplog.messages[0]


def test_a_killed_process_is_told_with_the_ledger(offloaded: Decision) -> None:
    counts = iter([3, 4])
    watch = HostWatch(offloaded, config(), memory=lambda: memory(limit=64, used=40), kills=lambda: next(counts))
    kernel, now, plan, less = watch.lines()
    assert kernel == "the kernel has ended a process here for lack of memory since the run began (oom_kill)"
    assert now == "host memory now, after it has gone: 40.00 GiB of 64.00 GiB (/sys/fs/cgroup/job_7) in use"
    assert plan.startswith("the plan takes ")
    assert "pinned buffers of offloaded states" in plan
    assert less.startswith("to take less: plan with --offload-param none")


@pytest.mark.parametrize("counted", [0, None])
def test_where_memory_was_enough_no_change_is_proposed(offloaded: Decision, counted: int | None) -> None:
    watch = HostWatch(offloaded, config(), memory=lambda: memory(limit=2000), kills=lambda: counted)
    told = "\n".join(watch.lines())
    assert ("somebody may have killed it" in told) == (counted == 0)
    assert "to take less" not in told


def fake_group(folder: Path, monkeypatch: pytest.MonkeyPatch, *, free_bytes: int) -> None:
    """Let this process be in a container with so much memory left."""
    (folder / "memory.max").write_text(f"{2 * GIB}\n")
    (folder / "memory.current").write_text(f"{2 * GIB - free_bytes}\n")
    own = folder / "own"
    own.write_text("0::/\n")
    monkeypatch.setattr(detect, "CGROUPS", folder)
    monkeypatch.setattr(detect, "OWN_CGROUPS", own)


def train(plan: Path, *flags: object) -> tuple[int, Path]:
    folder = plan.parent.parent / "run"
    return main([str(flag) for flag in ("--plan", plan, "--out", folder, "--steps", 2, *flags)]), folder


@pytest.mark.distributed
@pytest.mark.slow
@pytest.mark.usefixtures("one_process")
def test_a_run_in_a_container_that_is_full(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    plan = plan_tiny(tmp_path / "plan", "ddp", world_size=1)
    with monkeypatch.context() as patched:
        fake_group(tmp_path, patched, free_bytes=100_000)  # the model: 37,024 parameters in fp32
        assert train(plan)[0] == 2
        told = capfd.readouterr().err
        assert "error: loading takes a whole model on every rank, 144.62 KiB of host memory, and 97.66 KiB" in told
        assert str(tmp_path) in told
        assert not (tmp_path / "run").exists()
        fake_group(tmp_path, patched, free_bytes=1_000_000)
        patched.setattr(Snapshot, "copied_bytes", property(lambda snapshot: 2_000_000))  # as on a GPU
        code, run = train(plan, "--save-every", 1, "--on-save-failure", "continue")
        assert code == 0
    assert "a rank may be killed for lack of memory" in caplog.text  # a step takes more than is left
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert ["writing a checkpoint takes" in line.get("save_error", "") for line in lines] == [False, True] * 2
    assert (run / "final" / "model.safetensors").exists()
