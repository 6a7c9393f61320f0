from __future__ import annotations

from dataclasses import replace

import pytest

from strategies.cluster import Cluster, Gpu, gpu_preset
from strategies.errors import ClusterError
from strategies.job import Attention, Job, Precision
from strategies.load_model import load_model_spec
from strategies.plan import PYTORCH_STRATEGIES, ActivationCheckpointing, OffloadDevice, Plan, StrategyName
from strategies.presets import configs_folder
from strategies.time.rates import rates_of
from strategies.time.step_time import StepTime, step_time
from strategies.trained import Lora
from tests.strategies.time.test_traffic import plan_of

LLAMA = load_model_spec("llama-3.1-8b")
NODE = Cluster(gpu=gpu_preset("A100-80GB-SXM"), gpus=8, gpus_per_node=8)
TWO_NODES = replace(NODE, gpus=16)
STRATEGIES = PYTORCH_STRATEGIES


def time_of(
    plan: Plan, *, cluster: Cluster = NODE, seq_len: int = 4096, precision: Precision = Precision.BF16
) -> StepTime:
    samples = plan.micro_batch_size * plan.gradient_accumulation_steps * cluster.gpus
    job = Job(seq_len=seq_len, global_batch_size=samples, precision=precision)
    return step_time(LLAMA, cluster=cluster, job=job, plan=plan)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_causes_are_not_negative_and_sum_to_the_total(strategy: StrategyName) -> None:
    time = time_of(plan_of(strategy), cluster=TWO_NODES)
    causes = [getattr(time, name) for name in StepTime.__slots__ if name.endswith("_s") and name != "peak_flops_per_s"]
    assert min(causes) >= 0
    assert sum(causes) == pytest.approx(time.total_s)
    assert 0 < time.mfu < 1


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_accumulation_multiplies_the_work_of_micro_batches(strategy: StrategyName) -> None:
    once, four = time_of(plan_of(strategy)), time_of(plan_of(strategy, steps=4))
    assert four.matrix_s == pytest.approx(4 * once.matrix_s)
    assert four.optimizer_s == pytest.approx(once.optimizer_s)
    assert four.total_s <= 4 * once.total_s
    assert four.tokens_per_gpu == 4 * once.tokens_per_gpu


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_faster_network_is_never_slower(strategy: StrategyName) -> None:
    slow, fast = (
        time_of(plan_of(strategy), cluster=replace(TWO_NODES, inter_node_bytes_per_s=rate)) for rate in (1e9, 400e9)
    )
    assert slow.total_s > fast.total_s
    assert slow.matrix_s == fast.matrix_s


def test_full_activation_checkpointing_costs_a_forward_of_the_blocks() -> None:
    plain = plan_of(StrategyName.ZERO3)
    full = replace(plain, activation_checkpointing=ActivationCheckpointing.FULL)
    selective = replace(plain, activation_checkpointing=ActivationCheckpointing.SELECTIVE)
    times = [time_of(plan) for plan in (plain, selective, full)]
    assert times[0].total_s < times[1].total_s < times[2].total_s
    # Chen et al. 2016, arXiv:1604.06174, section 4.4: about a third more computation, less for the head's part.
    assert 1.2 < times[2].hfu * times[2].total_s / (times[0].hfu * times[0].total_s) < 4 / 3
    assert times[2].mfu < times[0].mfu


def test_checkpointing_every_third_block_repeats_eleven_of_32() -> None:
    full = replace(plan_of(StrategyName.ZERO3), activation_checkpointing=ActivationCheckpointing.FULL)
    third = time_of(replace(full, checkpoint_every=3))
    assert third.recompute_s == pytest.approx(11 / 32 * time_of(full).recompute_s)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_adapters_take_two_products_of_three_and_move_no_gradients_of_frozen_weights(strategy: StrategyName) -> None:
    jobs = [Job(seq_len=4096, global_batch_size=16, lora=lora) for lora in (None, Lora(rank=16))]
    full, adapters = (step_time(LLAMA, cluster=TWO_NODES, job=job, plan=plan_of(strategy)) for job in jobs)
    # Hu et al. 2021, arXiv:2106.09685, section 4.2: 25 % faster on GPT-3 175B, where products are nearly everything.
    assert 0.66 < adapters.matrix_s / full.matrix_s < 0.7
    assert adapters.optimizer_s < 0.02 * full.optimizer_s
    assert adapters.communication_s < full.communication_s


def test_one_gpu_does_not_communicate() -> None:
    one = replace(NODE, gpus=1, gpus_per_node=1)
    assert time_of(plan_of(StrategyName.DDP), cluster=one).communication_s == 0


def test_reductions_that_do_not_overlap_cost_their_full_time() -> None:
    hidden = plan_of(StrategyName.ZERO2)
    shown = replace(hidden, buckets=replace(hidden.buckets, overlap_comm=False, reduce_bucket_size=10**8))
    hidden = replace(shown, buckets=replace(shown.buckets, overlap_comm=True))
    assert time_of(shown).communication_s > time_of(hidden).communication_s


@pytest.mark.parametrize("device", [OffloadDevice.CPU, OffloadDevice.NVME])
def test_an_offloaded_optimizer_is_slower_than_one_on_the_gpu(device: OffloadDevice) -> None:
    resident = plan_of(StrategyName.ZERO3)
    assert time_of(replace(resident, offload_optimizer=device)).optimizer_s > 10 * time_of(resident).optimizer_s


def test_offloaded_adam_is_within_the_rates_of_zero_offload() -> None:
    # Ren et al. 2021, arXiv:2101.06840, table 4: CPU-Adam updates 1e9 parameters in 0.22 s, 1e10 in 2.5 s.
    plan = replace(plan_of(StrategyName.ZERO2), offload_optimizer=OffloadDevice.CPU)
    seconds = time_of(plan).optimizer_s / (LLAMA.num_params / 1e9)
    assert 0.2 < seconds < 0.8


def test_eager_attention_is_slower_at_length() -> None:
    plan = plan_of(StrategyName.ZERO3)
    jobs = [Job(seq_len=8192, global_batch_size=8, attention=kind) for kind in (Attention.FLASH, Attention.EAGER)]
    fused, eager = (step_time(LLAMA, cluster=NODE, job=job, plan=plan).total_s for job in jobs)
    assert eager > 1.5 * fused


def test_small_micro_batches_wait_for_launches() -> None:
    assert time_of(plan_of(StrategyName.ZERO3), seq_len=8).launch_s > 0
    assert time_of(plan_of(StrategyName.ZERO3), seq_len=8192).launch_s == 0


def test_a_cpu_has_rates_of_its_own() -> None:
    cpu = Cluster(gpu=Gpu(name="cpu", memory_bytes=2**30), gpus=2, gpus_per_node=2)
    assert time_of(plan_of(StrategyName.DDP), cluster=cpu, precision=Precision.FP32).total_s > 1


def test_measured_rates_replace_those_of_the_file() -> None:
    job = Job(seq_len=4096, global_batch_size=8)
    plan, rates = plan_of(StrategyName.ZERO3), rates_of(NODE.gpu)
    faster = replace(rates, matrix_flops_per_s=2 * rates.matrix_flops_per_s)
    times = [step_time(LLAMA, cluster=NODE, job=job, plan=plan, rates=each) for each in (rates, faster)]
    assert times[0].matrix_s == pytest.approx(2 * times[1].matrix_s)


def test_a_gpu_without_rates_is_refused() -> None:
    unknown = replace(NODE, gpu=Gpu(name="other-gpu", memory_bytes=2**30))
    with pytest.raises(
        ClusterError, match=r"gpu other-gpu: bf16_flops_per_s=None and hbm_bytes_per_s=None, but a time"
    ):
        time_of(plan_of(StrategyName.DDP), cluster=unknown)


@pytest.mark.parametrize("name", ["A100-80GB-SXM", "RTX4090", "B200-180GB-SXM"])
def test_rates_stay_below_the_data_sheet(name: str) -> None:
    gpu = gpu_preset(name)
    rates = rates_of(gpu)
    assert gpu.bf16_flops_per_s is not None
    assert gpu.hbm_bytes_per_s is not None
    assert rates.attention_flops_per_s < rates.matrix_flops_per_s < gpu.bf16_flops_per_s == rates.peak_flops_per_s
    assert rates.memory_bytes_per_s < gpu.hbm_bytes_per_s
    assert rates.origin


PRESETS = sorted(path.stem for path in (configs_folder() / "models").glob("*.json"))


@pytest.mark.parametrize("model", PRESETS)
def test_every_preset_has_a_time_under_every_strategy(model: str) -> None:
    spec = load_model_spec(model)
    job = Job(seq_len=min(spec.max_seq_len or 512, 512), global_batch_size=16)
    for strategy in STRATEGIES:
        time = step_time(spec, cluster=TWO_NODES, job=job, plan=plan_of(strategy))
        assert 0 < time.total_s < 3600
        assert 0 < time.mfu < 1


def test_larger_clusters_communicate_more_for_the_same_micro_batch() -> None:
    times = [time_of(plan_of(StrategyName.FSDP2), cluster=replace(NODE, gpus=8 * nodes)) for nodes in (1, 4, 64, 2048)]
    shown = [time.communication_s for time in times]
    assert shown == sorted(shown)
    assert [time.matrix_s for time in times] == [times[0].matrix_s] * 4


def test_reducing_once_a_step_saves_reductions_and_no_gathers() -> None:
    # Where nothing hides them: 4 micro batches move 12 P with a reduction each, 9 P with one (test_traffic.py).
    slow = replace(TWO_NODES, inter_node_bytes_per_s=1e9)
    each, once = (
        time_of(plan_of(StrategyName.FSDP2, steps=4, sync=sync), cluster=slow, seq_len=2).communication_s
        for sync in (True, False)
    )
    assert once / each == pytest.approx(9 / 12, rel=0.01)
