"""What would change the answer: kinds of change, single before double, faster where a plan fits."""

from __future__ import annotations

from dataclasses import replace

import pytest

from strategies import detect
from strategies.cluster import gpu_preset
from strategies.decision import Rejection, Resource, Suggestion
from strategies.detect import build_cluster
from strategies.plan import ActivationCheckpointing, OffloadDevice, StrategyName
from strategies.planner.changes import what_if
from strategies.planner.reverse import best_fit, fits
from strategies.planner.sweep import Question, Sweep
from strategies.search import FixedParts
from strategies.select import decide
from strategies.units import GIB, ceil_div
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
    # A node's size may have been typed too: the last one counts.
    assert found.changes == ("--gpus 3 --gpus-per-node 3 --global-batch-size 66",)
    assert found.job.global_batch_size == 66


def test_host_memory_is_suggested_to_the_gibibyte() -> None:
    asked = question("llama-3-70b", host_memory_bytes=512 * GIB)
    found = by_flag(asked)["--host-memory-gib"].cluster
    lacking = [each for each in Sweep(asked).outcomes() if isinstance(each, Rejection)]
    least = min(each.needed_bytes for each in lacking if each.resource is Resource.HOST_MEMORY)
    assert found.host_memory_bytes == ceil_div(least, GIB) * GIB
    assert fits(asked.on(cluster=found))
    assert not fits(asked.on(cluster=replace(found, host_memory_bytes=found.host_memory_bytes - GIB)))


def test_fewer_gpus_a_node_are_suggested_where_their_ranks_build_too_much() -> None:
    """Every rank builds 141 GB of weights: eight of them a node are too many for 512 GiB, three are not."""
    asked = question("llama-3-70b", gpus=64, global_batch_size=512, host_memory_bytes=512 * GIB)
    found = by_flag(asked)["--gpus-per-node"]
    assert found.changes == ("--gpus-per-node 2",)
    assert (found.cluster.num_nodes, found.cluster.gpus) == (32, 64)


def test_small_nodes_are_suggested_more_of_where_a_full_one_would_lack_host_memory() -> None:
    asked = question("qwen2.5-7b", gpu="RTX4090", gpus=2, host_memory_bytes=64 * GIB)
    found = by_flag(asked)["--gpus"]
    assert found.changes == (f"--gpus {found.cluster.gpus} --gpus-per-node 2",)
    assert found.cluster.ranks_per_node == 2


def test_a_faster_gpu_of_the_same_memory_counts_where_a_plan_fits() -> None:
    """By the names 80 GB both, by what torch reports 79.15 and 79.10 GiB."""
    found = by_flag(question(gpu="A100-80GB-SXM"))["--gpu"]
    assert found.changes == ("--gpu H100-80GB-SXM",)
    assert found.cluster.gpu.memory_bytes < gpu_preset("A100-80GB-SXM").memory_bytes


@pytest.mark.parametrize("memory_gib", [None, 24.0])
def test_more_ranks_on_cpus_have_more_memory_only_where_it_was_given_for_each(
    memory_gib: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(detect, "host_memory_bytes", lambda: 24 * GIB)

    def typed(gpus: int) -> Question:
        cluster = build_cluster(
            gpu="cpu", gpus=gpus, gpus_per_node=None, gpu_memory_gib=memory_gib, host_memory_gib=None
        )
        return question().on(cluster=cluster)

    assert best_fit(typed(1)) is None
    found = by_flag(typed(1))
    assert ("--gpus" in found) is (memory_gib is not None)
    if memory_gib is not None:
        assert fits(typed(found["--gpus"].cluster.gpus))


def test_fewer_ranks_on_cpus_have_more_memory_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight ranks have 4 GiB each, where 2.5 GB of weights are built before they are shared."""
    monkeypatch.setattr(detect, "host_memory_bytes", lambda: 32 * GIB)
    words = {"gpus_per_node": None, "gpu_memory_gib": None, "host_memory_gib": None}
    asked = question("llama-3.2-1b").on(cluster=build_cluster(gpu="cpu", gpus=8, **words))
    assert best_fit(asked) is None
    found = by_flag(asked)["--gpus"]
    assert found.cluster == build_cluster(gpu="cpu", gpus=found.cluster.gpus, **words)
    assert found.changes == (f"--gpus {found.cluster.gpus}",)
    assert found.cluster.gpus < 8
