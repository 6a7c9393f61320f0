"""MFU of a run against a published one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scaling.watching.utilisation import utilisation_of
from strategies.cluster import Cluster, gpu_preset
from strategies.decision import Decision
from strategies.job import Job
from strategies.load_model import load_model_spec
from tests.scaling.decisions import toy_decision


def decision_on(cluster: Cluster) -> Decision:
    job = Job(seq_len=2048, global_batch_size=96)
    return replace(toy_decision("fsdp2", world_size=cluster.gpus, accumulation=2), job=job, cluster=cluster)


def test_mfu_of_all_ranks_matches_llm_foundry() -> None:
    # LF-096 of benchmarks/reference/measured.csv: MPT-7b on 8 A100, 4641 tokens/s on each, 64.23 %.
    eight = Cluster(gpu=gpu_preset("A100-80GB-SXM"), gpus=8, gpus_per_node=8)
    found = utilisation_of(decision_on(eight), load_model_spec("mpt-7b"))
    assert found is not None
    assert 100 * found.mfu(8 * 4641) == pytest.approx(64.23, rel=2e-3)


def test_there_is_no_mfu_where_the_peak_is_not_known() -> None:
    cpus = toy_decision("ddp", world_size=2, accumulation=1).cluster
    assert utilisation_of(decision_on(cpus), load_model_spec("mpt-7b")) is None
