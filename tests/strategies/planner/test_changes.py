"""What would change the answer: kinds of change, single before double, faster where a plan fits."""

from __future__ import annotations

from strategies.decision import Suggestion
from strategies.plan import ActivationCheckpointing, OffloadDevice, StrategyName
from strategies.planner.changes import what_if
from strategies.planner.reverse import best_fit
from strategies.planner.sweep import Question
from strategies.search import FixedParts
from strategies.select import decide
from strategies.units import GIB
from tests.strategies.planner.builders import question

NOT_OFFLOADED = {"offload_optimizer": OffloadDevice.NONE, "offload_param": OffloadDevice.NONE}


def by_flag(asked: Question) -> dict[str, Suggestion]:
    """Return single suggestions by the name of the flag."""
    return {each.changes[0].split()[0]: each for each in what_if(asked) if len(each.changes) == 1}


def test_nothing_fits_two_small_gpus_without_the_host_and_each_change_alone_would_do() -> None:
    asked = question(gpu="RTX4090", gpus=2, fixed=FixedParts(**NOT_OFFLOADED))
    assert best_fit(asked) is None
    found = by_flag(asked)
    # An 8B model's states are 128 GB (16 bytes a parameter, arXiv:1910.02054): six 24 GB cards at the very least.
    assert found["--gpus"].cluster.gpus * asked.cluster.gpu.memory_bytes > 16 * asked.spec.num_params
    assert found["--gpu"].cluster.gpu.memory_bytes * 2 > 16 * asked.spec.num_params
    assert found["--offload-optimizer"].plan.offload_optimizer is OffloadDevice.CPU
    assert "--seq-len" not in found  # states alone are too much


def test_a_fixed_part_is_named_with_the_value_that_fits() -> None:
    fixed = FixedParts(strategy=StrategyName.ZERO3, micro_batch_size=8, **NOT_OFFLOADED, searches_loss=True)
    asked = question(gpu="A100-40GB-SXM", gpus=8, seq_len=8192, global_batch_size=64, fixed=fixed)
    found = by_flag(asked)
    assert found["--micro-batch-size"].changes == (
        f"--micro-batch-size {found['--micro-batch-size'].plan.micro_batch_size}",
    )
    assert found["--micro-batch-size"].plan.micro_batch_size < 8
    assert found["--seq-len"].job.seq_len < 8192
    assert found["--seq-len"].job.seq_len % 128 == 0


def test_the_loss_is_suggested_where_the_framework_s_own_was_asked_for() -> None:
    fixed = FixedParts(
        strategy=StrategyName.ZERO3, micro_batch_size=16, activation_checkpointing=_FULL, **NOT_OFFLOADED
    )
    asked = question("gemma-2b", gpu="A100-40GB-SXM", gpus=8, seq_len=4096, global_batch_size=128, fixed=fixed)
    assert best_fit(asked) is None
    # 256,000 words: 16 x 4096 x 256,000 logits in fp32 alone are 62 GiB.
    assert by_flag(asked)["--loss"].changes == ("--loss fused",)


_FULL = ActivationCheckpointing.FULL


def test_more_host_memory_is_suggested_where_that_is_missing() -> None:
    asked = question("llama-3.1-70b", gpu="A100-80GB-SXM", seq_len=8192, host_memory_bytes=256 * GIB)
    found = by_flag(asked)["--host-memory-gib"]
    assert found.cluster.host_memory_bytes is not None
    # Every rank builds the whole model in 16 bits first: 8 x 141 GB.
    assert found.cluster.host_memory_bytes > 8 * 2 * asked.spec.num_params


def test_two_changes_are_looked_for_only_where_none_alone_is_enough() -> None:
    fixed = FixedParts(strategy=StrategyName.DDP)
    suggestions = what_if(question("llama-3.1-70b", gpu="RTX4090", seq_len=8192, fixed=fixed))
    assert suggestions
    assert {len(each.changes) for each in suggestions} == {2}
    assert all(each.changes[0].startswith("--strategy ") for each in suggestions)


def test_what_would_be_faster_is_told_where_a_plan_fits() -> None:
    asked = question(fixed=FixedParts(strategy=StrategyName.ZERO3))
    decision = decide(asked.spec, cluster=asked.cluster, job=asked.job, fixed=asked.fixed)
    assert decision.time is not None
    before = asked.job.tokens_per_step / decision.time.total_s
    suggestions = what_if(asked)
    assert {"--strategy", "--gpus"} <= {each.changes[0].split()[0] for each in suggestions}
    for each in suggestions:
        assert each.time is not None
        assert each.job.tokens_per_step / each.time.total_s > 1.01 * before


def test_gpus_are_added_one_by_one_in_a_node_and_then_by_node() -> None:
    small = question(gpu="RTX4090", gpus=2, global_batch_size=66)
    assert by_flag(small)["--gpus"].cluster.gpus == 3
    by_node = question("llama-3.1-405b", gpus=64, global_batch_size=512, fixed=FixedParts(**NOT_OFFLOADED))
    # 16 x 405e9 bytes over 64 GPUs are 101 GB each.
    assert best_fit(by_node) is None
    found = by_flag(by_node)["--gpus"].cluster
    assert (found.gpus % 8, found.gpus_per_node) == (0, 8)


def test_a_batch_that_does_not_divide_grows_and_is_named() -> None:
    asked = question(gpu="RTX4090", gpus=2, global_batch_size=64)
    found = by_flag(asked)["--gpus"]
    assert found.changes == ("--gpus 3 --global-batch-size 66",)
    assert found.job.global_batch_size == 66
