"""`Cluster`: the hardware facts. Presets come from ``configs/gpus.csv``."""

from __future__ import annotations

import csv
import difflib
from dataclasses import dataclass
from functools import cache

from strategies.errors import ClusterError
from strategies.job import Precision
from strategies.presets import configs_folder
from strategies.units import GIB

CPU_NAME = "cpu"
"""Name of the device that stands in for a GPU where there is none: one rank is one 'GPU', memory is host memory."""
GIVEN = "given"
"""Source of a memory that was typed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One accelerator. Rates are dense; None where the source gives none."""

    name: str
    memory_bytes: int
    """What a process can use: the total that the framework reports, not the marketing figure."""
    bf16_flops_per_s: float | None = None
    hbm_bytes_per_s: float | None = None
    link_bytes_per_s: float | None = None
    """Inside a node, per direction."""
    supports_bf16: bool = True
    source: str = ""

    def __post_init__(self) -> None:
        if self.memory_bytes <= 0:
            raise ClusterError(f"gpu {self.name}: memory_bytes={self.memory_bytes} must be above zero")

    @property
    def is_cpu(self) -> bool:
        return self.name == CPU_NAME

    @property
    def shares_host_memory(self) -> bool:
        """Whether the memory is a CPU rank's share of its machine's: more ranks have less each."""
        return self.is_cpu and self.source != GIVEN

    def computes_in(self, precision: Precision) -> bool:
        """Whether its arithmetic knows the number format."""
        return self.supports_bf16 or not precision.is_bf16


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """GPUs of one kind, evenly spread over nodes."""

    gpu: Gpu
    gpus: int
    gpus_per_node: int
    host_memory_bytes: int | None = None
    """Per node; None where unknown."""
    locked_memory_bytes: int | None = None
    """What one process may lock in RAM (``ulimit -l``); None where unknown or unlimited."""
    inter_node_bytes_per_s: float | None = None
    """What collectives reach between nodes, per node and direction; None: as in configs/gpu_rates.csv."""

    def __post_init__(self) -> None:
        sizes: dict[str, float] = {"gpus": self.gpus, "gpus_per_node": self.gpus_per_node}
        if self.inter_node_bytes_per_s is not None:
            sizes["inter_node_bytes_per_s"] = self.inter_node_bytes_per_s
        if bad := [f"{name}={value}" for name, value in sizes.items() if value <= 0]:
            raise ClusterError(f"{', '.join(bad)} must be above zero; give positive whole numbers")
        if self.gpus > self.gpus_per_node and self.gpus % self.gpus_per_node:
            raise ClusterError(
                f"gpus={self.gpus} is not a multiple of gpus_per_node={self.gpus_per_node}; "
                f"give whole nodes, for instance gpus={-(-self.gpus // self.gpus_per_node) * self.gpus_per_node}"
            )

    @property
    def num_nodes(self) -> int:
        return -(-self.gpus // self.gpus_per_node)

    @property
    def ranks_per_node(self) -> int:
        return min(self.gpus, self.gpus_per_node)


def gpu_preset(name: str, *, memory_bytes: int | None = None) -> Gpu:
    """Return the GPU called ``name`` (in any case) in ``configs/gpus.csv``, with ``memory_bytes`` where given.

    Raises:
        ClusterError: no such GPU (the message names the closest ones), or its usable memory is not known.
    """
    rows = _gpu_rows()
    by_folded_name = {known.casefold(): known for known in rows}
    known = by_folded_name.get(name.casefold())
    if known is None:
        raise ClusterError(
            f"gpu={name!r} is not in configs/gpus.csv; closest: {', '.join(_closest(name, list(rows)))}. "
            f"For another GPU give the nearest name with --gpu-memory-gib, or --gpu auto to detect this machine's"
        )
    if memory_bytes is None and not rows[known]["memory_gib_usable"]:
        raise ClusterError(f"the usable memory of {known} is not known yet; give it with --gpu-memory-gib")
    return _gpu_from_row(rows[known], memory_bytes=memory_bytes)


def _closest(name: str, known: list[str]) -> list[str]:
    """Return up to four names that contain ``name``, else those spelt most like it."""
    containing = [other for other in known if name.casefold() in other.casefold()] if name else []
    return containing[:4] or difflib.get_close_matches(name, known, n=4, cutoff=0.3) or known[:4]


def gpu_presets() -> dict[str, Gpu]:
    """Return every GPU of ``configs/gpus.csv`` whose usable memory is known, by name."""
    return {name: _gpu_from_row(row) for name, row in _gpu_rows().items() if row["memory_gib_usable"]}


@cache
def _gpu_rows() -> dict[str, dict[str, str]]:
    with (configs_folder() / "gpus.csv").open(newline="") as file:
        return {row["name"]: row for row in csv.DictReader(file)}


def _gpu_from_row(row: dict[str, str], *, memory_bytes: int | None = None) -> Gpu:
    tera, giga = 10**12, 10**9
    return Gpu(
        name=row["name"],
        memory_bytes=round(float(row["memory_gib_usable"]) * GIB) if memory_bytes is None else memory_bytes,
        bf16_flops_per_s=_scaled(row["bf16_dense_tflops"] or row["fp16_dense_tflops"], tera),
        hbm_bytes_per_s=_scaled(row["hbm_gb_s"], giga),
        link_bytes_per_s=_scaled(row["intra_link_gb_s_per_direction"], giga),
        supports_bf16=bool(row["bf16_dense_tflops"]),
        source=GIVEN if memory_bytes else row["usable_source"],
    )


def _scaled(text: str, factor: float) -> float | None:
    return float(text) * factor if text else None
