"""Seconds of collectives, and the part that computation does not hide."""

from __future__ import annotations

from dataclasses import dataclass

from strategies.cluster import Cluster
from strategies.time.rates import Rates


@dataclass(frozen=True, slots=True, kw_only=True)
class Fabric:
    """The links of a cluster as a ring over all ranks sees them."""

    seconds_per_byte: float
    """Of what is gathered or scattered in all, at the slower of the two links."""
    seconds_per_message: float
    interference: float

    def seconds(self, num_bytes: float, *, messages: int) -> float:
        """Return the seconds of a gather (or a scatter) of ``num_bytes``, cut into ``messages``."""
        return num_bytes * self.seconds_per_byte + messages * self.seconds_per_message

    def exposed(self, communication_s: float, *, beside_s: float) -> float:
        """Return the seconds that communication adds to computation that takes ``beside_s`` and runs beside it."""
        hidden = min(communication_s, beside_s)
        return communication_s - hidden + self.interference * hidden


def fabric(cluster: Cluster, rates: Rates) -> Fabric:
    """Return the fabric: every rank receives what the others hold, every node what the other nodes hold.

    Rings use all network cards of a node, so that its bandwidth is the sum over its GPUs.
    """
    gpus, nodes = cluster.gpus, cluster.num_nodes
    inside = (gpus - 1) / gpus / rates.link_bytes_per_s
    network = cluster.inter_node_bytes_per_s or rates.inter_node_bytes_per_s * cluster.ranks_per_node
    return Fabric(
        seconds_per_byte=max(inside, (nodes - 1) / nodes / network),
        seconds_per_message=(gpus - 1) * rates.hop_s,
        interference=rates.interference,
    )
