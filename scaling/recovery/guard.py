"""`RunGuard`: everything that lets a run survive, or end with a reason, in one object that a run makes at its start."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, final

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore

from scaling.errors import TrainingError
from scaling.interrupt import RunStatus
from scaling.launch_env import LaunchEnvironment
from scaling.memory_watch import MemoryWatch
from scaling.recovery.agreement import StepAgreement
from scaling.recovery.failure import Failure
from scaling.recovery.host_guard import HostGuard
from scaling.recovery.killed import HostWatch
from scaling.recovery.ladder import Ladder
from scaling.recovery.launcher import Launcher
from scaling.recovery.post_mortem import post_mortem
from scaling.recovery.progress import Progress
from scaling.recovery.roster import Roster
from scaling.recovery.sentinel import Sentinel
from scaling.train_config import TrainConfig
from strategies.decision import Decision
from strategies.errors import ScalingError

GROUP_PATIENCE_S = 60
"""By how much collectives wait longer than the sentinel, which says more than they do."""


@final
class RunGuard:
    """Made on every rank after they have met; a collective."""

    def __init__(
        self,
        decision: Decision,
        launch: LaunchEnvironment,
        status: RunStatus,
        *,
        device: torch.device,
        config: TrainConfig,
    ) -> None:
        patience_s = config.timeout_s
        self.host = HostGuard(decision, config, ranks_here=launch.local_world_size)
        self._decision, self._device, self._status = decision, device, status
        self.memory: MemoryWatch | None = None
        """Whose measurement a post-mortem tells, once there is one."""
        self.progress = Progress()
        self.agreement = StepAgreement(
            timeout_s=patience_s + GROUP_PATIENCE_S, is_asked_to_stop=lambda: status.asked_by is not None
        )
        self.ladder = Ladder(self.agreement, micro_batch_size=decision.plan.micro_batch_size, progress=self.progress)
        self._roster = Roster(launch.rank, self.agreement.gather, _own_store() if launch.world_size > 1 else None)
        self._sentinel = Sentinel(
            self._roster,
            self.progress,
            status,
            launcher=Launcher.now() if launch.is_launched else None,
            host=HostWatch(decision, config),
            patience_s=patience_s,
        )

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch the ranks until the context ends; a collective must follow that no rank leaves early."""
        with self._sentinel.watching():
            yield

    @contextmanager
    def training(self) -> Iterator[None]:
        """Return a context in which signals wait for the end of the step, and ranks that stand still are told."""
        self._status.is_training = True
        try:
            with self.progress.watched():
                yield
        finally:
            self._status.is_training = False

    @contextmanager
    def explaining(self) -> Iterator[None]:
        """Turn what ends this rank into words, for the user and for the other ranks.

        Raises:
            TrainingError: memory ran out, with the post-mortem.
        """
        try:
            yield
        except torch.OutOfMemoryError as error:
            told = TrainingError(self._post_mortem(error))
            self._roster.say_farewell(str(told))
            raise told from error
        except ScalingError as error:
            self._roster.say_farewell(str(error))
            raise
        except RuntimeError as error:  # as torch's collectives raise where a rank has gone
            self._sentinel.explain_failed_collective()
            self._roster.say_farewell(f"{type(error).__name__}: {error}")
            raise
        except Exception as error:
            self._roster.say_farewell(f"{type(error).__name__}: {error}")
            raise

    def _post_mortem(self, error: torch.OutOfMemoryError) -> str:
        return post_mortem(
            Failure.of(error, rank=self._roster.me.rank, device=self._device),
            self._decision,
            micro_batch_size=self.ladder.micro_batch_size,
            measured=self.memory.meter.profile() if self.memory else None,
        )


def _own_store() -> Any:
    """Return a connection of its own to the store of the process group: a thread that asks must not wait for others."""
    store: Any = dist.distributed_c10d._get_default_store()  # torch 2.13 has no public way to it
    return PrefixStore("memory-scaling/roster", store.clone())
