"""Ways to train that the planner does not search, each on real ranks beside plain PyTorch. Rank 0 stores trajectories.

python -m tests.scaling.engines.variations SETTING.json NAMES OUT.pt (under torchrun for several ranks)
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import torch.distributed as dist

from benchmarks.parity_worker import Samples, Setting, plan, train
from benchmarks.plain_loop import Trajectory
from scaling.launch_env import end_process_group, join_process_group, read_launch_environment
from strategies.decision import Decision
from strategies.job import LossImplementation, OptimizerName, Precision
from strategies.plan import ActivationCheckpointing, OffloadDevice, StrategyName
from strategies.serialize import read_json, to_json
from tests.scaling.launching import TORCHRUN, succeed


@dataclass(frozen=True, kw_only=True)
class Variation:
    """What differs from the plan that is searched."""

    strategy: StrategyName
    precision: Precision = Precision.FP32
    activation_checkpointing: ActivationCheckpointing = ActivationCheckpointing.NONE
    checkpoint_every: int = 1
    reshard_after_forward: bool = True
    sync_each_batch: bool = True
    offload_optimizer: OffloadDevice = OffloadDevice.NONE
    offload_param: OffloadDevice = OffloadDevice.NONE
    loss: LossImplementation = LossImplementation.STANDARD
    optimizer: OptimizerName = OptimizerName.ADAMW
    fused_optimizer: bool = True

    def of(self, decision: Decision) -> Decision:
        """Return ``decision`` with what differs."""
        changed = replace(
            decision.plan,
            strategy=self.strategy,
            activation_checkpointing=self.activation_checkpointing,
            checkpoint_every=self.checkpoint_every,
            reshard_after_forward=self.reshard_after_forward,
            sync_each_batch=self.sync_each_batch,
            offload_optimizer=self.offload_optimizer,
            offload_param=self.offload_param,
        )
        job = replace(
            decision.job,
            precision=self.precision,
            loss=self.loss,
            optimizer=self.optimizer,
            fused_optimizer=self.fused_optimizer,
        )
        return replace(decision, plan=changed, job=job)

    @property
    def planned_as(self) -> StrategyName:
        """The strategy whose buckets it takes."""
        return StrategyName.DDP if self.strategy is StrategyName.FSDP2 else self.strategy


CPU = OffloadDevice.CPU
ZERO = (StrategyName.ZERO1, StrategyName.ZERO2, StrategyName.ZERO3)
WHOLE = (StrategyName.DDP, *ZERO)
ZERO3_AND_FSDP2 = (StrategyName.ZERO3, StrategyName.FSDP2)
FSDP2 = Variation(strategy=StrategyName.FSDP2)
VARIATIONS = {
    "fsdp2": FSDP2,
    "fsdp2-kept": replace(FSDP2, reshard_after_forward=False),
    "fsdp2-whole-gradients": replace(FSDP2, sync_each_batch=False),
    "fsdp2-bf16": replace(FSDP2, precision=Precision.BF16),
    **{f"{name}-bf16-autocast": Variation(strategy=name, precision=Precision.BF16_AUTOCAST) for name in WHOLE},
    "ddp-bf16-pure": Variation(strategy=StrategyName.DDP, precision=Precision.BF16_PURE),
    "fsdp2-bf16-pure": replace(FSDP2, precision=Precision.BF16_PURE),
    "fsdp2-bf16-autocast": replace(FSDP2, precision=Precision.BF16_AUTOCAST),
    **{f"{name}-cpu-optimizer": Variation(strategy=name, offload_optimizer=CPU) for name in ZERO},
    "zero3-cpu-parameters": Variation(strategy=StrategyName.ZERO3, offload_param=CPU),
    "zero3-cpu-both": Variation(strategy=StrategyName.ZERO3, offload_optimizer=CPU, offload_param=CPU),
    "zero2-cpu-optimizer-bf16": Variation(strategy=StrategyName.ZERO2, offload_optimizer=CPU, precision=Precision.BF16),
    "zero3-cpu-both-bf16": Variation(
        strategy=StrategyName.ZERO3, offload_optimizer=CPU, offload_param=CPU, precision=Precision.BF16
    ),
    **{
        f"{name}-selective": Variation(strategy=name, activation_checkpointing=ActivationCheckpointing.SELECTIVE)
        for name in (*WHOLE, StrategyName.FSDP2)
    },
    **{
        f"{name}-every-second": Variation(
            strategy=name, activation_checkpointing=ActivationCheckpointing.FULL, checkpoint_every=2
        )
        for name in ZERO3_AND_FSDP2
    },
    **{
        f"{name}-fused": Variation(strategy=name, loss=LossImplementation.FUSED)
        for name in (*WHOLE, StrategyName.FSDP2)
    },
    **{
        f"{name}-fused-bf16-autocast": Variation(
            strategy=name, loss=LossImplementation.FUSED, precision=Precision.BF16_AUTOCAST
        )
        for name in (StrategyName.DDP, StrategyName.ZERO3, StrategyName.FSDP2)
    },
    **{f"{name}-chunked": Variation(strategy=name, loss=LossImplementation.CHUNKED) for name in ZERO3_AND_FSDP2},
    "zero3-fused-bf16": Variation(strategy=StrategyName.ZERO3, loss=LossImplementation.FUSED, precision=Precision.BF16),
    **{f"{name}-for-each": Variation(strategy=name, fused_optimizer=False) for name in (*WHOLE, StrategyName.FSDP2)},
    **{f"{name}-sgd": Variation(strategy=name, optimizer=OptimizerName.SGD) for name in WHOLE},
    "fsdp2-sgd": replace(FSDP2, optimizer=OptimizerName.SGD, fused_optimizer=False),
    "zero2-cpu-optimizer-sgd": Variation(
        strategy=StrategyName.ZERO2, offload_optimizer=CPU, optimizer=OptimizerName.SGD
    ),
    "zero2-sgd-for-each": Variation(strategy=StrategyName.ZERO2, optimizer=OptimizerName.SGD, fused_optimizer=False),
    "fsdp2-full": replace(FSDP2, activation_checkpointing=ActivationCheckpointing.FULL),
}


def trajectories(setting: Setting, names: Sequence[str], *, num_ranks: int = 2) -> dict[str, Trajectory]:
    """Return the trajectory of every named variation."""
    with tempfile.TemporaryDirectory() as folder:
        setting_path, out = Path(folder) / "setting.json", Path(folder) / "out.pt"
        setting_path.write_text(to_json(setting))
        head = [*TORCHRUN, str(num_ranks)]
        succeed([*head, "-m", "tests.scaling.engines.variations", setting_path, ",".join(names), out])
        stored = torch.load(out)
    return {
        name: Trajectory(losses=losses, norms=norms, parameters=parameters)
        for name, (losses, norms, parameters) in stored.items()
    }


def main(setting_path: Path, names: str, out: Path) -> None:
    setting = read_json(Setting, setting_path)
    launch = read_launch_environment(os.environ)
    join_process_group(launch, device=torch.device("cpu"), timeout_s=120)
    samples = Samples(setting)
    found = {}
    for name in names.split(","):
        variation = VARIATIONS[name]
        searched = plan(variation.planned_as, setting, num_ranks=dist.get_world_size())
        one = train(variation.of(searched), setting, samples)
        found[name] = (one.losses, one.norms, one.parameters)
    if launch.is_main:
        torch.save(found, out)
    end_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
