import pytest

from strategies.errors import PlanError
from strategies.offload import require_possible_offload
from strategies.plan import Buckets, OffloadDevice, Plan, StrategyName

CPU, NVME, NONE = OffloadDevice.CPU, OffloadDevice.NVME, OffloadDevice.NONE


def _plan(strategy: StrategyName, optimizer: OffloadDevice, param: OffloadDevice) -> Plan:
    buckets = Buckets(
        reduce_bucket_size=1,
        allgather_bucket_size=1,
        stage3_prefetch_bucket_size=0,
        stage3_param_persistence_threshold=0,
        stage3_max_live_parameters=0,
        overlap_comm=False,
    )
    return Plan(
        strategy=strategy,
        micro_batch_size=1,
        gradient_accumulation_steps=1,
        offload_optimizer=optimizer,
        offload_param=param,
        buckets=buckets,
    )


@pytest.mark.parametrize(
    ("strategy", "optimizer", "param"),
    [
        (StrategyName.DDP, CPU, NONE),
        (StrategyName.ZERO2, NONE, CPU),
        (StrategyName.ZERO1, NVME, NONE),
        (StrategyName.FSDP2, CPU, NONE),
        (StrategyName.FSDP2, NONE, NVME),
    ],
)
def test_impossible_offload_is_refused(strategy: StrategyName, optimizer: OffloadDevice, param: OffloadDevice) -> None:
    with pytest.raises(PlanError, match=f"strategy {strategy} cannot run with offload_optimizer={optimizer}"):
        require_possible_offload(_plan(strategy, optimizer, param))


@pytest.mark.parametrize(
    ("strategy", "optimizer", "param"),
    [(StrategyName.ZERO1, CPU, NONE), (StrategyName.ZERO3, NVME, NVME), (StrategyName.FSDP2, NONE, CPU)],
)
def test_possible_offload_passes(strategy: StrategyName, optimizer: OffloadDevice, param: OffloadDevice) -> None:
    require_possible_offload(_plan(strategy, optimizer, param))
