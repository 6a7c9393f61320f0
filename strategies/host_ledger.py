"""`HostLedger`: RAM and disk of one node, beside what the GPUs hold."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class HostBytes:
    """RAM of one node at one moment."""

    pinned: int = 0
    """Locked in RAM: the kernel cannot take it back."""
    pageable: int = 0

    @property
    def total_bytes(self) -> int:
        return self.pinned + self.pageable

    def __add__(self, more: HostBytes) -> HostBytes:
        return HostBytes(pinned=self.pinned + more.pinned, pageable=self.pageable + more.pageable)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostLedger:
    """RAM of the node that holds most, the first one, and bytes on its disks."""

    load: HostBytes
    """Every rank has built or read the whole model."""
    initialise: HostBytes
    """While buffers are pinned, which copies them; the model may still be there."""
    steady: HostBytes
    save: HostBytes
    locked_bytes: int
    """What one rank locks by ``mlock``, for NVMe. What CUDA pins is locked by its driver, which asks for no limit."""
    nvme_bytes: int
    """States that rest on the node's NVMe."""
    model_checkpoint_bytes: int
    """An exported model, in the format of the forward pass."""
    training_checkpoint_bytes: int
    """The model with its fp32 masters and optimizer states."""

    @property
    def peak(self) -> HostBytes:
        return max(self.load, self.initialise, self.steady, self.save, key=lambda moment: moment.total_bytes)
