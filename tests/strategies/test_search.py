"""The search space: what is tried, what fixed parts narrow it to, what is refused."""

from dataclasses import replace

import pytest

from strategies.cluster import CPU_NAME
from strategies.errors import PlanError
from strategies.job import LossImplementation
from strategies.offload import POSSIBLE
from strategies.plan import PYTORCH_STRATEGIES, ActivationCheckpointing, OffloadDevice, StrategyName
from strategies.search import FUSED_LOSS_FAMILIES, FixedParts, Variant, variants
from tests.strategies.builders import small_cluster, small_job, tiny_spec

NONE, CPU, NVME = OffloadDevice.NONE, OffloadDevice.CPU, OffloadDevice.NVME
FULL = ActivationCheckpointing.FULL


def found(*, name: str = "test-gpu", family: str = "llama", **fixed: object) -> list[Variant]:
    spec = replace(tiny_spec(), family=family)
    return variants(spec, cluster=small_cluster(name=name), job=small_job(), fixed=FixedParts(**fixed))  # type: ignore[arg-type]


def test_every_strategy_is_tried_with_every_offload_it_can_have() -> None:
    tried = {(each.strategy, each.offload_optimizer, each.offload_param) for each in found()}
    possible = {
        (name, *places)
        for name, pairs in POSSIBLE.items()
        for places in pairs
        if NVME not in places and name in PYTORCH_STRATEGIES  # the other framework's is for those who name it
    }
    # FSDP2 moves the optimizer with the weights: naming the weights alone means the same.
    assert tried == possible - {(StrategyName.FSDP2, NONE, CPU)}


def test_variants_come_simplest_first() -> None:
    kinds = [
        (each.offload_optimizer, each.offload_param, each.strategy, each.reshard_after_forward) for each in found()
    ]
    assert kinds[0] == (NONE, NONE, StrategyName.DDP, True)
    last_without_offload = max(index for index, kind in enumerate(kinds) if kind[:2] == (NONE, NONE))
    assert kinds[last_without_offload] == (NONE, NONE, StrategyName.FSDP2, False)
    assert all(kind[:2] != (NONE, NONE) for kind in kinds[last_without_offload + 1 :])
    checkpointing = [each.activation_checkpointing for each in found(strategy=StrategyName.DDP)]
    assert checkpointing == ["none", "selective", "full"]


def test_the_fused_loss_is_tried_only_where_the_loss_is_open_and_the_family_has_one() -> None:
    assert {each.job.loss for each in found()} == {LossImplementation.STANDARD}
    assert {each.job.loss for each in found(searches_loss=True)} == {"standard", "fused"}
    assert {each.job.loss for each in found(searches_loss=True, family="bloom")} == {LossImplementation.STANDARD}
    assert "bloom" not in FUSED_LOSS_FAMILIES


def test_nothing_is_offloaded_on_cpu_ranks_unless_it_is_named() -> None:
    assert {(each.offload_optimizer, each.offload_param) for each in found(name=CPU_NAME)} == {(NONE, NONE)}
    assert {each.offload_optimizer for each in found(name=CPU_NAME, offload_optimizer=CPU)} == {CPU}


def test_nvme_is_only_taken_where_it_is_named() -> None:
    assert all(NVME not in (each.offload_optimizer, each.offload_param) for each in found())
    assert {each.strategy for each in found(offload_optimizer=NVME)} == {StrategyName.ZERO3}


def test_fixed_parts_leave_the_strategies_that_can_obey() -> None:
    assert {each.strategy for each in found(offload_param=CPU)} == {StrategyName.ZERO3, StrategyName.FSDP2}
    assert {each.strategy for each in found(reshard_after_forward=False)} == {StrategyName.FSDP2}
    assert {each.activation_checkpointing for each in found(checkpoint_every=2)} == {"selective", "full"}


@pytest.mark.parametrize(
    ("fixed", "message"),
    [
        (
            {"strategy": StrategyName.DDP, "reshard_after_forward": False},
            "reshard_after_forward=False has no meaning under strategy ddp",
        ),
        (
            {"checkpoint_every": 2, "activation_checkpointing": ActivationCheckpointing.NONE},
            "checkpoint_every=2 has no meaning with activation_checkpointing=none",
        ),
        (
            {"strategy": StrategyName.ZERO1, "offload_param": CPU},
            "strategy zero1 cannot run with offload_optimizer=any and offload_param=cpu",
        ),
        (
            {"reshard_after_forward": False, "offload_optimizer": NVME},
            "strategy fsdp2 cannot run with offload_optimizer=nvme and offload_param=any",
        ),
    ],
)
def test_fixed_parts_that_contradict_each_other_are_refused(fixed: dict[str, object], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        found(**fixed)


def test_whole_gradients_are_searched_where_there_is_more_than_one_micro_batch() -> None:
    # A window of one micro batch is reduced at its end in any case.
    assert {each.sync_each_batch for each in found(strategy=StrategyName.FSDP2, micro_batch_size=1)} == {True, False}
    assert {each.sync_each_batch for each in found(strategy=StrategyName.ZERO3)} == {True}
    assert {each.strategy for each in found(sync_each_batch=False)} == {StrategyName.FSDP2}
