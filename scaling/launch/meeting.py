"""How the nodes of a run find each other: what a host file and the flags say, or shell variables where they do not."""

from __future__ import annotations

import logging
import socket
from collections.abc import Mapping, Sequence

from scaling.errors import LaunchError
from scaling.launch.asked import Asked
from scaling.launch.hostfile import Host
from scaling.ports import free_port, is_free
from strategies.cluster import Cluster
from strategies.emit.commands import DEFAULT_PORT, HOST_FILE, LOCAL, LauncherName, Nodes, ShellVariable

logger = logging.getLogger(__name__)
VISIBLE = "CUDA_VISIBLE_DEVICES"


def nodes_of(
    asked: Asked,
    cluster: Cluster,
    launcher: LauncherName,
    *,
    hosts: Sequence[Host],
    starts: bool,
    environ: Mapping[str, str],
) -> tuple[Nodes, ...]:
    """Return what the launcher is told: once, or for every host, where nobody says which one this machine is.

    ``starts``: whether it is started here, so that nothing may stay open.

    Raises:
        LaunchError: something is open, or contradicts itself.
    """
    hostfile = str(asked.hostfile or asked.folder / HOST_FILE)
    port = _port(asked, cluster, launcher, starts=starts)
    if cluster.num_nodes == 1:
        if launcher is LauncherName.DEEPSPEED and hosts:
            _require_here(hosts[0], asked)
            return (Nodes(address=LOCAL, port=port, rank="0", hostfile=hostfile, by_ssh=False),)
        return (Nodes(port=port, device_ids=_device_ids(cluster, launcher, environ)),)
    if starts_all_nodes(asked, cluster, launcher):
        if starts and not hosts:
            raise LaunchError(
                f"the plan is for {cluster.num_nodes} nodes, which deepspeed reads from a host file; give --hostfile "
                f"({asked.folder / HOST_FILE}, once it has their names), or --node-rank on every node"
            )
        return (Nodes(port=port, hostfile=hostfile),)
    address = asked.master_addr or (hosts[0].name if hosts else Nodes().address)
    if starts and isinstance(address, ShellVariable):
        raise LaunchError(f"the plan is for {cluster.num_nodes} nodes; give --master-addr, that of the first one")
    ranks = _ranks(asked, cluster, hosts=hosts, starts=starts)
    return tuple(Nodes(address=address, port=port, rank=rank, hostfile=hostfile, by_ssh=False) for rank in ranks)


def starts_all_nodes(asked: Asked, cluster: Cluster, launcher: LauncherName) -> bool:
    """Return whether one launcher here starts those of all nodes."""
    return launcher is LauncherName.DEEPSPEED and cluster.num_nodes > 1 and asked.node_rank is None


def _port(asked: Asked, cluster: Cluster, launcher: LauncherName, *, starts: bool) -> str | None:
    """Return the port on which ranks meet, None for the launcher's own.

    Raises:
        LaunchError: one that was asked for, or that other nodes will look for here, is taken.
    """
    given = None if asked.master_port is None else str(asked.master_port)
    meets_here = cluster.num_nodes == 1 or asked.node_rank == 0
    picks_one = launcher is LauncherName.PYTHON or (launcher is LauncherName.TORCHRUN and cluster.num_nodes == 1)
    wanted = asked.master_port or DEFAULT_PORT
    if not starts or not meets_here or (picks_one and given is None) or is_free(wanted):
        return given
    if given is None and cluster.num_nodes == 1:
        port = free_port()
        logger.warning("port %d is taken on this machine; the ranks meet on %d", wanted, port)
        return str(port)
    raise LaunchError(f"port {wanted} is taken on this machine; give another --master-port, the same on every node")


def _ranks(asked: Asked, cluster: Cluster, *, hosts: Sequence[Host], starts: bool) -> Sequence[str]:
    """Return the node ranks that there are commands for: this machine's, or all that the host file has."""
    if asked.node_rank is not None:
        if asked.node_rank >= cluster.num_nodes:
            raise LaunchError(
                f"--node-rank {asked.node_rank}, but the plan is for {cluster.num_nodes} nodes; give one from 0 to "
                f"{cluster.num_nodes - 1}"
            )
        return [str(asked.node_rank)]
    if not starts:
        return [str(rank) for rank in range(len(hosts))] or [Nodes().rank]
    own = [str(rank) for rank, host in enumerate(hosts) if is_here(host)]
    if not own:
        where = f"{asked.hostfile} does not name {socket.gethostname()}" if hosts else "nothing says which one this is"
        raise LaunchError(
            f"the plan is for {cluster.num_nodes} nodes and {where}; give --node-rank, from 0 to "
            f"{cluster.num_nodes - 1} ($SLURM_NODEID under srun)"
        )
    return own[:1]


def is_here(host: Host) -> bool:
    """Return whether a name of a host file is this machine's, with or without its domain."""
    own = socket.gethostname().casefold()
    return host.is_local or host.name.casefold() in (own, own.partition(".")[0])


def _require_here(host: Host, asked: Asked) -> None:
    if not is_here(host):
        raise LaunchError(
            f"{asked.hostfile} names {host.name}, but this machine is {socket.gethostname()}, and deepspeed starts a "
            f"single node where it runs itself; run `scaling launch` on {host.name}"
        )


def _device_ids(cluster: Cluster, launcher: LauncherName, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the GPUs that ``deepspeed`` must be told of, because it takes the first ones whatever the user says.

    Raises:
        LaunchError: they are not given by number, which is all that it understands.
    """
    visible = environ.get(VISIBLE, "")
    if launcher is not LauncherName.DEEPSPEED or cluster.gpu.is_cpu or not visible:
        return ()
    ids = tuple(part.strip() for part in visible.split(","))
    if not all(part.isdigit() for part in ids):
        raise LaunchError(f"{VISIBLE}={visible}: deepspeed takes numbers only; give them, or use --launcher torchrun")
    return ids[: cluster.ranks_per_node]
