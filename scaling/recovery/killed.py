"""Why a process was killed (signal 9, exit code -9 or 137), as far as the host tells: its memory and the plan's ledger.

The kernel says nothing to the process that it ends. It counts, per control group.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import final

from scaling.train_config import TrainConfig
from strategies.decision import Decision
from strategies.detect import HostMemory, host_memory, oom_kills
from strategies.host_needs import highest_moment
from strategies.plan import OffloadDevice, StrategyName
from strategies.units import GIB, ceil_div, format_bytes


@final
class HostWatch:
    """Made while all is well, asked when a process of this machine has gone."""

    def __init__(
        self,
        decision: Decision,
        config: TrainConfig,
        *,
        memory: Callable[[], HostMemory] = host_memory,
        kills: Callable[[], int | None] = oom_kills,
    ) -> None:
        """``memory`` and ``kills``: what reads the host's memory and the kernel's counter."""
        self._decision, self._config = decision, config
        self._memory, self._kills = memory, kills
        self._kills_before = kills()

    @property
    def kills(self) -> int:
        """How many processes the kernel has ended for lack of memory since this was made; 0 where it does not tell."""
        now = self._kills()
        return 0 if now is None or self._kills_before is None else max(now - self._kills_before, 0)

    def lines(self) -> Iterator[str]:
        """Yield what the kernel counted, what is held now, what the plan takes, and what would take less."""
        kills, memory = self.kills, self._memory()
        if kills:
            processes = "a process" if kills == 1 else f"{kills} processes"
            yield f"the kernel has ended {processes} here for lack of memory since the run began (oom_kill)"
        elif self._kills_before is not None:
            yield "the kernel has counted no process that it ended for lack of memory: somebody may have killed it"
        yield (
            f"host memory now, after it has gone: {format_bytes(memory.used_bytes)} of "
            f"{format_bytes(memory.limit_bytes)} ({memory.of}) in use"
        )
        if (moment := highest_moment(self._decision)) is None:
            yield "the plan says nothing of host memory; plan again with `scaling plan` to have it checked"
            return
        yield f"the plan takes {format_bytes(moment.total_bytes)} a node {moment.when}: {moment.by_cause()}"
        if kills or moment.total_bytes > memory.limit_bytes:
            needed = max(moment.total_bytes, memory.limit_bytes)
            yield f"to take less: {'; '.join(advice(self._decision, self._config, needed_bytes=needed))}"


def advice(decision: Decision, config: TrainConfig, *, needed_bytes: int) -> Iterator[str]:
    """Yield what makes a run take less host memory, what costs least first."""
    if config.num_workers:
        yield f"--num-workers 0 (now {config.num_workers} on each rank)"
    if config.save_async:
        yield "no --save-async, which copies what it saves"
    plan, cluster = decision.plan, decision.cluster
    for name, device in (("offload-param", plan.offload_param), ("offload-optimizer", plan.offload_optimizer)):
        if device is OffloadDevice.CPU and not (plan.strategy is StrategyName.FSDP2 and name == "offload-optimizer"):
            yield f"plan with --{name} none"
    if cluster.ranks_per_node > 1:
        flag = "gpus" if cluster.gpu.is_cpu else "gpus-per-node"
        yield f"plan with fewer --{flag} (now {cluster.ranks_per_node})"
    yield f"give the container more than {ceil_div(needed_bytes, GIB)} GiB"
