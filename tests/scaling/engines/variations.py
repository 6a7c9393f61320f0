"""Ways to train that the planner does not search, each on real ranks beside plain PyTorch."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.parity_models import Demo, planner
from scaling.parity.certify import run_all, run_plainly, save_reference
from scaling.parity.plain import Trajectory
from scaling.parity.ranks import Outcome, Run
from scaling.train_config import TrainConfig
from strategies.decision import Decision
from strategies.job import Job, LossImplementation, OptimizerName, Precision
from strategies.plan import ActivationCheckpointing, OffloadDevice, StrategyName
from strategies.search import FixedParts

BUCKET_SIZES = ("reduce_bucket_size", "allgather_bucket_size", "stage3_prefetch_bucket_size")


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
    bucket_elements: int | None = None
    """Of every buffer; None leaves them as planned."""

    def of(self, decision: Decision) -> Decision:
        """Return ``decision`` with what differs."""
        sizes = {} if self.bucket_elements is None else dict.fromkeys(BUCKET_SIZES, self.bucket_elements)
        changed = replace(
            decision.plan,
            buckets=replace(decision.plan.buckets, **sizes),
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
EVERY = (*WHOLE, StrategyName.FSDP2)
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
        for name in EVERY
    },
    **{
        f"{name}-every-second": Variation(
            strategy=name, activation_checkpointing=ActivationCheckpointing.FULL, checkpoint_every=2
        )
        for name in EVERY
    },
    **{f"{name}-fused": Variation(strategy=name, loss=LossImplementation.FUSED) for name in EVERY},
    **{
        f"{name}-fused-bf16-autocast": Variation(
            strategy=name, loss=LossImplementation.FUSED, precision=Precision.BF16_AUTOCAST
        )
        for name in (StrategyName.DDP, StrategyName.ZERO3, StrategyName.FSDP2)
    },
    **{f"{name}-chunked": Variation(strategy=name, loss=LossImplementation.CHUNKED) for name in ZERO3_AND_FSDP2},
    "ddp-fused-fp16-autocast": Variation(
        strategy=StrategyName.DDP, loss=LossImplementation.FUSED, precision=Precision.FP16_AUTOCAST
    ),
    "zero3-fused-bf16": Variation(strategy=StrategyName.ZERO3, loss=LossImplementation.FUSED, precision=Precision.BF16),
    **{
        f"{name}-buckets-of-{elements}": Variation(strategy=name, bucket_elements=elements)
        for name in WHOLE
        for elements in (1000, 10**8)
    },
    **{f"{name}-for-each": Variation(strategy=name, fused_optimizer=False) for name in EVERY},
    **{f"{name}-sgd": Variation(strategy=name, optimizer=OptimizerName.SGD) for name in WHOLE},
    "fsdp2-sgd": replace(FSDP2, optimizer=OptimizerName.SGD, fused_optimizer=False),
    "zero2-cpu-optimizer-sgd": Variation(
        strategy=StrategyName.ZERO2, offload_optimizer=CPU, optimizer=OptimizerName.SGD
    ),
    "zero2-sgd-for-each": Variation(strategy=StrategyName.ZERO2, optimizer=OptimizerName.SGD, fused_optimizer=False),
    **{
        f"{name}-{precision}": Variation(strategy=name, precision=precision)
        for name in EVERY
        for precision in (Precision.FP16, Precision.FP16_AUTOCAST)
    },
    "zero3-cpu-both-fp16": Variation(
        strategy=StrategyName.ZERO3, offload_optimizer=CPU, offload_param=CPU, precision=Precision.FP16
    ),
    **{f"{name}-{OptimizerName.LION}": Variation(strategy=name, optimizer=OptimizerName.LION) for name in WHOLE},
    **{
        f"{name}-{OptimizerName.ADAMW_8BIT}": Variation(strategy=name, optimizer=OptimizerName.ADAMW_8BIT)
        for name in WHOLE
    },
    "zero2-cpu-optimizer-lion": Variation(
        strategy=StrategyName.ZERO2, offload_optimizer=CPU, optimizer=OptimizerName.LION
    ),
    "fsdp2-cpu": replace(FSDP2, offload_param=CPU),
    "fsdp2-cpu-both-bf16": replace(FSDP2, offload_optimizer=CPU, offload_param=CPU, precision=Precision.BF16),
    "fsdp2-cpu-whole-gradients": replace(FSDP2, offload_param=CPU, sync_each_batch=False),
    **{name: Variation(strategy=name) for name in WHOLE},
    **{
        f"{name}-full": Variation(strategy=name, activation_checkpointing=ActivationCheckpointing.FULL)
        for name in EVERY
    },
}


@dataclass(frozen=True, kw_only=True)
class Outcomes:
    """What every variation came to, and what plain PyTorch went through in fp32."""

    plain: Trajectory
    found: dict[str, Outcome]


def outcomes(demo: Demo, names: Sequence[str], *, config: TrainConfig, num_ranks: int = 2) -> Outcomes:
    """Return what every named variation came to; one launch."""
    job = Job(seq_len=64, global_batch_size=8, precision=Precision.FP32)
    plan = planner(demo, job, num_ranks=num_ranks)
    decisions = {
        name: VARIATIONS[name].of(plan(FixedParts(strategy=VARIATIONS[name].planned_as, micro_batch_size=2)))
        for name in names
    }
    plain = run_plainly(demo, decisions[names[0]], config=config)
    with tempfile.TemporaryDirectory() as folder:
        reference = save_reference(plain, Path(folder))
        found, failed = run_all(
            [
                Run(key=name, problem=demo, decision=decision, config=config, reference=reference)
                for name, decision in decisions.items()
            ]
        )
    assert not failed, failed
    return Outcomes(plain=plain, found=found)
