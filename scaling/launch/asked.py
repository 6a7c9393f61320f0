"""`Asked`: what the flags of ``scaling launch`` say."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from scaling.errors import LaunchError
from scaling.launch.choice import LaunchBy
from scaling.launch.world import Shape
from strategies.emit.slurm import SlurmOptions

MAX_PORT = 65535


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One launch, as the user describes it; None for what is left open."""

    plan: Path
    launcher: LaunchBy | None = None
    shape: Shape = field(default_factory=Shape)
    hostfile: Path | None = None
    node_rank: int | None = None
    """Of this machine among the nodes."""
    master_addr: str | None = None
    master_port: int | None = None
    flags: tuple[str, ...] = ()
    """Of training."""
    slurm: SlurmOptions = field(default_factory=SlurmOptions)

    def __post_init__(self) -> None:
        if self.master_port is not None and not 0 < self.master_port <= MAX_PORT:
            raise LaunchError(f"--master-port {self.master_port} must be from 1 to {MAX_PORT}")
        if self.node_rank is not None and self.node_rank < 0:
            raise LaunchError(f"--node-rank {self.node_rank} must not be negative; the first node is 0")

    @property
    def folder(self) -> Path:
        """Of the plan's files."""
        return self.plan.parent
