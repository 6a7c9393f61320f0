"""What the doctor is asked: about which plan, which folders, in which environment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from scaling.check_plan import FROM_BITSANDBYTES
from strategies.decision import Decision
from strategies.emit.deepspeed import STAGES
from strategies.host_needs import HostMoment, device_bytes, highest_moment
from strategies.plan import Framework, OffloadDevice

PIN_BACKEND = "DS_PIN_MEMORY_BACKEND"
"""``native``: DeepSpeed 0.19.8 locks what it pins by ``mlock``, by an operator it compiles (utils/pin_memory.py)."""


def pins_itself(environ: Mapping[str, str]) -> bool:
    """Return whether DeepSpeed pins by its own operator, and not by CUDA."""
    return environ.get(PIN_BACKEND, "").strip().lower() == "native"


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What a plan takes of each of its machines."""

    decision: Decision

    @property
    def ranks(self) -> int:
        """On one node."""
        return self.decision.cluster.ranks_per_node

    @property
    def num_nodes(self) -> int:
        return self.decision.cluster.num_nodes

    @property
    def on_gpus(self) -> bool:
        return not self.decision.cluster.gpu.is_cpu

    @property
    def gpu_ranks(self) -> int:
        """Ranks of one node that need a GPU each."""
        return self.ranks if self.on_gpus else 0

    @property
    def runs_deepspeed(self) -> bool:
        return self.decision.plan.strategy in STAGES

    @property
    def runs_tensorflow(self) -> bool:
        return self.decision.plan.strategy.framework is Framework.TENSORFLOW

    @property
    def needs_bitsandbytes(self) -> bool:
        return self.decision.job.optimizer in FROM_BITSANDBYTES

    @property
    def offloads_optimizer(self) -> bool:
        return self.decision.plan.offload_optimizer is OffloadDevice.CPU

    @property
    def uses_nvme(self) -> bool:
        return OffloadDevice.NVME in (self.decision.plan.offload_optimizer, self.decision.plan.offload_param)

    @property
    def device_bytes(self) -> int | None:
        """Of one rank's device, at the plan's safety; None where nothing was predicted."""
        return device_bytes(self.decision)

    @property
    def host_bytes(self) -> int | None:
        """Of one node at its highest moment; None where nothing was predicted."""
        return self.host_moment.total_bytes if self.host_moment else None

    @property
    def host_moment(self) -> HostMoment | None:
        """The moment at which one node holds most, by cause."""
        return highest_moment(self.decision)

    @property
    def nvme_bytes(self) -> int:
        """States of one node that rest on NVMe."""
        host = self.decision.estimate.host
        return host.nvme_bytes if host and self.uses_nvme else 0

    @property
    def checkpoint_bytes(self) -> tuple[int, int]:
        """A model for `from_pretrained`, and a checkpoint to go on from; zeros where nothing was predicted."""
        host = self.decision.estimate.host
        return (host.model_checkpoint_bytes, host.training_checkpoint_bytes) if host else (0, 0)

    def locked_bytes(self, environ: Mapping[str, str]) -> int:
        """Return what one rank locks by ``mlock``: buffers for NVMe, and all it pins where DeepSpeed is told to."""
        host = self.decision.estimate.host
        if host is None or not self.runs_deepspeed:
            return 0
        return max(host.locked_bytes, host.steady.pinned // self.ranks if pins_itself(environ) else 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One question to the doctor."""

    plan: Needs | None
    """None: what this machine can run, whatever is planned."""
    environ: Mapping[str, str]
    out: Path
    """Where a run would write."""
    nvme_path: Path | None = None
    port: int | None = None
    """Where ranks would meet; None: MASTER_PORT, else the launchers' own."""
