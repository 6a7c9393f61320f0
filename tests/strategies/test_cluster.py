"""Hardware facts."""

import csv
from pathlib import Path

import pytest

from strategies.cluster import Cluster, Gpu, gpu_preset, gpu_presets
from strategies.errors import ClusterError
from strategies.presets import configs_folder
from strategies.units import GIB


def test_gpu_preset_reads_usable_memory_and_rates() -> None:
    # torchtitan logs: 59.48 GiB is 75.15 % of what an A100-80GB reports (configs/gpus.csv names the source).
    gpu = gpu_preset("A100-80GB-SXM")
    assert gpu.memory_bytes / GIB == pytest.approx(59.48 / 0.7515, rel=2e-4)
    assert gpu.bf16_flops_per_s == 312e12  # NVIDIA A100 data sheet, dense


def test_every_row_with_known_memory_is_a_preset() -> None:
    with (configs_folder() / "gpus.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    known = {row["name"] for row in rows if row["memory_gib_usable"]}
    assert set(gpu_presets()) == known
    assert len(known) >= 30
    for gpu in gpu_presets().values():
        assert gpu.source
        assert 8 * GIB < gpu.memory_bytes < 300 * GIB


def test_gpu_preset_names_the_closest_when_unknown() -> None:
    with pytest.raises(ClusterError, match=r"gpu='A100-80GB' is not in configs/gpus.csv; closest: .*A100-80GB-SXM"):
        gpu_preset("A100-80GB")


@pytest.mark.parametrize(("gpus", "per_node"), [(0, 8), (-1, 8), (8, 0), (12, 8)])
def test_cluster_refuses_impossible_counts(gpus: int, per_node: int) -> None:
    with pytest.raises(ClusterError, match=r"gpus"):
        Cluster(gpu=Gpu(name="x", memory_bytes=1), gpus=gpus, gpus_per_node=per_node)


def test_configs_folder_is_the_checkout() -> None:
    assert configs_folder() == Path(__file__).parents[2] / "configs"
