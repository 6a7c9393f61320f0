"""Variables that are left from other runs, or wrong."""

from __future__ import annotations

import pytest

from scaling.doctor import allocator_config, collective_variables, environment, model
from scaling.doctor.asked import Needs
from scaling.doctor.findings import Finding
from scaling.severity import Severity
from tests.scaling.doctor.plans import CPU, cpu_plan, gpu_plan, told

RANKS = {"RANK": "3", "LOCAL_RANK": "3", "WORLD_SIZE": "8", "MASTER_ADDR": "node1", "MASTER_PORT": "29500"}


def found(plan: Needs | None = None, *, cores: int = 8, **environ: str) -> list[Finding]:
    return list(environment.findings(environ, plan, cores=cores))


@pytest.fixture(autouse=True)
def no_default_config(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    monkeypatch.setenv("HOME", str(tmp_path_factory.mktemp("home")))


def test_a_clean_environment_has_no_findings() -> None:
    for plan in (None, cpu_plan("ddp"), gpu_plan("zero3")):
        assert found(plan) == []


def test_variables_of_another_run() -> None:
    finding = told(found(**RANKS), "RANK=3 and WORLD_SIZE=8 are set here")
    assert finding.severity is Severity.WARNING
    assert finding.fix == "unset RANK LOCAL_RANK WORLD_SIZE MASTER_ADDR MASTER_PORT"
    assert told(found(cpu_plan("ddp"), **RANKS), "WORLD_SIZE=8").severity is Severity.ERROR  # started without launcher
    assert told(found(WORLD_SIZE="8"), "but not RANK").fix == "unset WORLD_SIZE"
    assert found(MASTER_ADDR="node1") == []


def test_slurm_beside_the_plan() -> None:
    job = {"SLURM_JOB_NUM_NODES": "4", "SLURM_NTASKS": "32", "SLURM_PROCID": "0"}
    assert "--nodes 1" in told(found(gpu_plan("zero3"), **job), "SLURM_JOB_NUM_NODES=4").fix
    assert "--ntasks-per-node 1" in told(found(**job), "each would start a launcher").fix
    assert told(found(gpu_plan("zero3", gpus=16)), "launch lines name NODE_RANK and MASTER_ADDR")


def test_settings_of_accelerate_that_are_left(tmp_path_factory: pytest.TempPathFactory) -> None:
    finding = told(found(ACCELERATE_USE_FSDP="true", ACCELERATE_MIXED_PRECISION="fp16"), "set here: ACCELERATE")
    assert finding.fix == "unset ACCELERATE_MIXED_PRECISION ACCELERATE_USE_FSDP"
    stops = told(found(gpu_plan("zero3"), ACCELERATE_MIXED_PRECISION="fp16"), "mixed_precision=fp16")
    assert stops.severity is Severity.ERROR
    home = tmp_path_factory.mktemp("hf")
    (home / "accelerate").mkdir()
    (home / "accelerate" / "default_config.yaml").touch()
    assert told(found(HF_HOME=str(home)), "accelerate launch without --config_file reads").severity is Severity.NOTE


def test_nodes_that_torchrun_would_wait_for() -> None:
    assert told(found(cpu_plan("ddp", ranks=2), PET_NNODES="2"), "PET_NNODES=2").fix == "unset PET_NNODES"
    assert found(cpu_plan("ddp", ranks=2), PET_NNODES="1") == []


def test_threads() -> None:
    assert told(found(cpu_plan("ddp", ranks=4), OMP_NUM_THREADS="4"), "4 ranks on 8 cores").fix.endswith("=2")
    assert found(cpu_plan("ddp", ranks=4), cores=2, OMP_NUM_THREADS="1") == []
    assert told(found(OMP_NUM_THREADS="all"), "OMP_NUM_THREADS=all is no number").fix == "unset OMP_NUM_THREADS"
    offloaded = gpu_plan("zero2", offload_optimizer=CPU)
    assert told(found(offloaded, cores=64, OMP_NUM_THREADS="1"), "uses 1 of 8 cores").fix.endswith("=8")
    assert found(gpu_plan("zero2"), cores=64, OMP_NUM_THREADS="1") == []


def test_variables_of_the_frameworks() -> None:
    assert told(found(cpu_plan("zero1", ranks=2), DS_ACCELERATOR="cuda"), "DS_ACCELERATOR=cuda")
    assert told(found(NCCL_P2P_DISABLE="1"), "NVLink").severity is Severity.WARNING
    assert found(NCCL_P2P_DISABLE="0") == []
    assert found(cpu_plan("ddp"), NCCL_P2P_DISABLE="1") == []
    assert told(found(NCCL_BLOCKING_WAIT="1"), "renamed").fix.startswith("export TORCH_NCCL_BLOCKING_WAIT=1")
    assert told(found(CUDA_LAUNCH_BLOCKING="1"), "every kernel is waited for")


@pytest.mark.parametrize(
    ("variable", "value", "is_there"),
    [
        ("NCCL_SOCKET_IFNAME", "eth", True),  # the beginning of a name
        ("NCCL_SOCKET_IFNAME", "=eth", False),
        ("NCCL_SOCKET_IFNAME", "^lo,docker", True),
        ("NCCL_SOCKET_IFNAME", "ib0,bond", False),
        ("GLOO_SOCKET_IFNAME", "eth", False),
        ("GLOO_SOCKET_IFNAME", "eth0", True),
    ],
)
def test_network_interfaces(variable: str, value: str, is_there: bool) -> None:
    told_of = list(collective_variables.findings({variable: value}, None, interfaces=("lo", "eth0", "docker0")))
    assert (told_of == []) is is_there
    assert "lo" in collective_variables.interfaces_here()


TAKEN = (
    "expandable_segments:True",
    "max_split_size_mb:20",
    "expandable_segments: True , max_split_size_mb : 64",
    "roundup_power2_divisions:[256:1,512:2,>:4]",
    "garbage_collection_threshold:0.8,pinned_use_background_threads:False",
    "large_segment_size_mb:20",
    "max_non_split_rounding_mb:20",
)
REFUSED = (
    "expandable_segments:true",
    "expandable_segments",
    "expandable_segments:1",
    "max_split_size_mb:abc",
    "garbage_collection_threshold:1.5",
    "garbage_collection_threshold:1",
    "garbage_collection_threshold:0",
    "large_segment_size_mb:10",
    "max_non_split_rounding_mb:10",
)


@pytest.mark.parametrize("text", [*TAKEN, *REFUSED])
def test_allocator_settings_match_torch(text: str) -> None:
    import torch

    def torch_takes() -> bool:
        try:
            torch._C._accelerator_setAllocatorSettings(text)
        except (ValueError, RuntimeError):
            return False
        return True

    before = torch._C._accelerator_getAllocatorSettings()
    try:
        assert (list(allocator_config.problems(text)) == []) is torch_takes() is (text in TAKEN)
    finally:
        torch._C._accelerator_setAllocatorSettings(before or "expandable_segments:False")


def test_allocator_settings_are_put_right() -> None:
    # torch on a GPU refuses keys that it does not know; without one nothing reads them.
    name = "PYTORCH_CUDA_ALLOC_CONF"
    finding = told(found(gpu_plan("zero3"), PYTORCH_CUDA_ALLOC_CONF="max_split_size:64"), "is no setting")
    assert finding.severity is Severity.ERROR
    assert finding.fix == f"export {name}=max_split_size_mb:64"
    assert told(found(**{name: "expandable_segments:true"}), "True or False").fix.endswith("expandable_segments:True")
    both = found(PYTORCH_ALLOC_CONF="expandable_segments:True", PYTORCH_CUDA_ALLOC_CONF="max_split_size_mb:64")
    assert told(both, "only the first is read").fix == f"unset {name}"


def test_a_model_that_is_not_here() -> None:
    from dataclasses import replace

    def model_findings(name: str, **environ: str) -> list[Finding]:
        plan = Needs(decision=replace(cpu_plan().decision, model=name))
        return list(model.findings(plan, {"HF_HOME": "/nowhere", **environ}))

    assert model_findings("llama-demo", HF_HUB_OFFLINE="1") == []
    assert told(model_findings("org/model-7b"), "training downloads it").severity is Severity.NOTE
    offline = told(model_findings("org/model-7b", HF_HUB_OFFLINE="1"), "the hub may not be asked")
    assert offline.severity is Severity.ERROR
    assert "hf download org/model-7b" in offline.fix
    assert told(model_findings("/data/models/mine"), "is not here").severity is Severity.ERROR
    assert told(model_findings("~nobody-of-that-name/x"), "is not here")
