"""Questions turned round: the answer fits, and one step further does not."""

from dataclasses import replace

import pytest

from strategies.cluster import Cluster, Gpu, gpu_preset
from strategies.errors import NoPlanFitsError, PlanError
from strategies.load_model import load_model_spec
from strategies.plan import OffloadDevice
from strategies.planner import sweep
from strategies.planner.ranking import TIE
from strategies.planner.reverse import (
    best_fit,
    best_global_batch_size,
    fits,
    grown,
    largest_model,
    longest_seq_len,
    preferred,
    smallest_cluster,
    without_offload,
)
from strategies.planner.sweep import Question
from strategies.search import FixedParts
from strategies.units import GIB
from tests.strategies.planner.builders import question

ON_GPUS = FixedParts(offload_optimizer=OffloadDevice.NONE, offload_param=OffloadDevice.NONE, searches_loss=True)


def at_length(asked: Question, seq_len: int) -> Question:
    return asked.on(job=replace(asked.job, seq_len=seq_len))


def test_the_longest_sequence_fits_and_the_next_multiple_of_128_does_not() -> None:
    asked = question(gpu="A100-40GB-SXM", global_batch_size=8, fixed=ON_GPUS)
    longest = longest_seq_len(asked)
    assert longest % 128 == 0
    assert longest < load_model_spec("llama-3.1-8b").max_seq_len
    assert fits(at_length(asked, longest))
    assert not fits(at_length(asked, longest + 128))


def test_the_longest_sequence_ends_at_the_model_s_positions() -> None:
    assert longest_seq_len(question("gpt2-xl", fixed=ON_GPUS)) == 1024


def test_no_length_helps_where_the_states_alone_are_too_much() -> None:
    with pytest.raises(NoPlanFitsError, match="no sequence is short enough"):
        longest_seq_len(question("llama-3.1-70b", gpu="RTX4090", fixed=ON_GPUS))


def test_that_host_memory_is_the_reason_is_told_by_every_question() -> None:
    """Eight ranks build 8 x 141 GB of weights, whatever the sequence and the batch."""
    asked = question("llama-3-70b", host_memory_bytes=512 * GIB)
    with pytest.raises(NoPlanFitsError, match=r"no sequence is short enough: with 2 tokens .* of host memory a node, "):
        longest_seq_len(asked)
    with pytest.raises(NoPlanFitsError, match=r"no global batch fits: with 8, .* of host memory a node, "):
        best_global_batch_size(asked)
    # Eight ranks build 8 x 2.5 GB of the smallest, too.
    with pytest.raises(NoPlanFitsError, match=r"of llama-3.2-1b, the smallest, .* of host memory a node, "):
        largest_model(question("llama-3.2-1b", host_memory_bytes=16 * GIB))


def test_the_largest_model_has_the_positions() -> None:
    with pytest.raises(PlanError, match="no preset of the family gpt2 has seq_len=4096 positions"):
        largest_model(question("gpt2-xl", seq_len=4096))


def test_the_best_global_batch_is_near_the_best_rate_and_no_larger_than_it_has_to_be() -> None:
    asked = question("llama-3.2-1b", gpus=4, seq_len=2048, fixed=ON_GPUS)
    best = best_global_batch_size(asked)

    def rate(samples: int) -> float:
        fit = best_fit(asked.on(job=replace(asked.job, global_batch_size=samples)))
        assert fit is not None
        assert fit.time is not None
        return samples / fit.time.total_s

    assert rate(best) >= rate(1024 * 4) / (1 + TIE)
    assert rate(best // 2) < rate(1024 * 4) / (1 + TIE)


def test_the_largest_model_is_of_the_family_and_the_next_preset_does_not_fit() -> None:
    # 2 x 80 GB: 16 bytes a parameter leave room for less than ten billion (arXiv:1910.02054).
    asked = question("qwen2.5-0.5b", gpus=2, seq_len=2048, global_batch_size=8, fixed=ON_GPUS)
    found = largest_model(asked)
    assert found.name == "qwen2.5-7b"
    assert not fits(replace(asked, spec=load_model_spec("qwen2.5-14b")))


def test_the_smallest_cluster_fits_and_no_smaller_one_does() -> None:
    # 16 bytes a parameter are 128 GB (arXiv:1910.02054): one 80 GB GPU is too few, two have room for activations.
    asked = question(global_batch_size=64, fixed=ON_GPUS, safety=0.0)
    found = smallest_cluster(asked)
    assert (found.gpus, found.gpus_per_node) == (2, 2)
    assert fits(asked.on(cluster=found))
    assert not fits(asked.on(cluster=replace(found, gpus=1, gpus_per_node=1)))


def test_no_cluster_is_told_where_one_sample_a_gpu_is_too_few_gpus() -> None:
    asked = question("llama-3.1-405b", global_batch_size=16, fixed=ON_GPUS)
    with pytest.raises(NoPlanFitsError, match="no number of H100-80GB-SXM fits"):
        smallest_cluster(asked)


def test_no_cluster_is_told_with_what_its_nodes_lack() -> None:
    """Eight ranks a node build 8 x 141 GB of weights."""
    asked = question("llama-3-70b", global_batch_size=64, host_memory_bytes=512 * GIB)
    with pytest.raises(NoPlanFitsError, match=r"On 64, 8 a node: no plan fits .* of host memory a node, .* over"):
        smallest_cluster(asked)


@pytest.mark.parametrize(
    ("fixed", "is_left_out"),
    [
        (FixedParts(), True),
        (FixedParts(offload_param=OffloadDevice.NONE), True),
        (FixedParts(offload_param=OffloadDevice.CPU), False),
    ],
)
def test_offloading_is_left_out_but_where_it_is_named(fixed: FixedParts, is_left_out: bool) -> None:
    asked = question(fixed=fixed)
    found = without_offload(asked).fixed
    assert (found != fixed) is is_left_out
    assert {fit.plan.offload_optimizer for fit in preferred(without_offload(asked))} == (
        {OffloadDevice.NONE} if is_left_out else {OffloadDevice.NONE, OffloadDevice.CPU}
    )


def test_ranks_on_cpus_share_what_one_had() -> None:
    alone = Cluster(gpu=Gpu(name="cpu", memory_bytes=24 * GIB), gpus=1, gpus_per_node=1)
    found = grown(alone, 8)
    assert found is not None
    assert (found.gpus_per_node, found.gpu.memory_bytes) == (8, 3 * GIB)


def test_nothing_is_laid_out_for_what_host_memory_forbids(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight ranks build 1.1 TB whatever the plan; predicting every plan made refusals take seconds."""

    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("a plan was predicted")

    asked = question("llama-3-70b", gpus=64, global_batch_size=512, host_memory_bytes=512 * GIB)
    monkeypatch.setattr(sweep, "predict", refuse)
    assert not fits(asked)


@pytest.mark.parametrize(
    ("gpus", "expected"), [(1, (1, 1)), (4, (4, 4)), (8, (8, 8)), (12, None), (16, (16, 8)), (64, (64, 8))]
)
def test_clusters_grow_by_whole_nodes(gpus: int, expected: tuple[int, int] | None) -> None:
    found: Cluster | None = grown(question(gpus=2).cluster, gpus)
    assert (found and (found.gpus, found.gpus_per_node)) == expected


@pytest.mark.parametrize(
    ("gpus", "per_node", "wanted", "nodes"),
    [(1, 1, 16, 2), (4, 4, 8, 1), (1, 2, 16, 8), (2, 1, 4, 4), (16, 16, 32, 2), (64, 8, 128, 16)],
)
def test_a_cluster_grows_in_nodes_of_the_size_that_was_given(gpus: int, per_node: int, wanted: int, nodes: int) -> None:
    # Eight where nothing was said, which one GPU alone, or a node that is not full, does not say.
    cluster = Cluster(gpu=gpu_preset("A100-40GB-SXM"), gpus=gpus, gpus_per_node=per_node)
    larger = grown(cluster, wanted)
    assert larger is not None
    assert larger.num_nodes == nodes
