from __future__ import annotations

import doctest
from dataclasses import replace

import pytest

from strategies.cluster import gpu_preset
from strategies.errors import ClusterError
from strategies.job import Job, LossImplementation, Precision
from strategies.load_model import load_model_spec
from strategies.plan import PYTORCH_STRATEGIES, ActivationCheckpointing, Plan, StrategyName
from strategies.registry import STRATEGIES
from strategies.time import measured_rates
from strategies.time.calibrated import num_units
from strategies.time.calibration import Calibration, calibration_path, write_calibration
from strategies.time.known import rates_for, time_source, times_known
from strategies.time.measured_rates import between, gpu_rates
from strategies.time.rates import rates_of
from strategies.time.step_time import StepTime, step_time
from strategies.trained import Lora
from tests.strategies.time.calibrations import STEP_S, cpu_calibration, cpu_ranks

SPEC = load_model_spec("llama-demo")
STANDARD, FUSED = LossImplementation.STANDARD, LossImplementation.FUSED
JOB = Job(seq_len=64, global_batch_size=16, precision=Precision.FP32)


@pytest.fixture(autouse=True)
def calibration() -> Calibration:
    found = cpu_calibration()
    write_calibration(found, calibration_path("cpu"))
    return found


def plan_of(
    strategy: StrategyName = StrategyName.DDP,
    *,
    checkpointing: ActivationCheckpointing = ActivationCheckpointing.NONE,
    micro_batch_size: int = 4,
    reshards: bool = True,
    ranks: int = 2,
) -> Plan:
    return Plan(
        strategy=strategy,
        micro_batch_size=micro_batch_size,
        gradient_accumulation_steps=JOB.global_batch_size // ranks // micro_batch_size,
        activation_checkpointing=checkpointing,
        reshard_after_forward=reshards,
        buckets=STRATEGIES[strategy].buckets(SPEC, JOB),
    )


def time_of(plan: Plan, *, job: Job = JOB, ranks: int = 2) -> StepTime:
    return step_time(SPEC, cluster=cpu_ranks(ranks), job=job, plan=plan)


@pytest.mark.parametrize("loss", [STANDARD, FUSED])
@pytest.mark.parametrize("precision", [Precision.FP32, Precision.BF16])
@pytest.mark.parametrize("checkpointing", list(ActivationCheckpointing))
@pytest.mark.parametrize("strategy", PYTORCH_STRATEGIES)
def test_every_plan_has_a_positive_time_that_is_the_sum_of_its_causes(
    strategy: StrategyName, checkpointing: ActivationCheckpointing, precision: Precision, loss: LossImplementation
) -> None:
    job = replace(JOB, precision=precision, loss=loss)
    time = time_of(plan_of(strategy, checkpointing=checkpointing), job=job)
    causes = [getattr(time, name) for name in StepTime.__slots__ if name.endswith("_s") and name != "peak_flops_per_s"]
    assert min(causes) >= 0
    assert 0 < time.total_s == pytest.approx(sum(causes))
    assert time.total_s < 60
    assert 0 < time.mfu <= time.hfu < 1


@pytest.mark.parametrize("strategy", PYTORCH_STRATEGIES)
def test_more_micro_batches_for_the_same_samples_are_slower(strategy: StrategyName) -> None:
    times = [time_of(plan_of(strategy, micro_batch_size=size)).launch_s for size in (8, 4, 2, 1)]
    assert times == sorted(times)
    assert times[3] - STEP_S == pytest.approx(8 * (times[0] - STEP_S))


def test_products_take_their_flops_over_the_measured_rate(calibration: Calibration) -> None:
    fast = tuple(replace(each, flops_per_s=8e10) for each in calibration.products)
    write_calibration(replace(calibration, products=fast), calibration_path("cpu"))
    # 6 FLOPs a weight and token (Kaplan et al. 2020, arXiv:2001.08361, table 1); the embedding is looked up, and norms
    # (13 of 256 numbers) are no products.
    weights = SPEC.num_params - 512 * 256 - 13 * 256
    assert time_of(plan_of()).matrix_s == pytest.approx(6 * weights * 64 * 8 / 8e10)


def test_activation_checkpointing_costs_a_forward_and_what_its_python_costs() -> None:
    none, selective, full = (time_of(plan_of(checkpointing=kind)) for kind in ActivationCheckpointing)
    assert none.recompute_s == 0 < selective.recompute_s < full.recompute_s
    # 4.5 ms and 2 ms more a block, six blocks, two micro batches.
    assert selective.launch_s - none.launch_s == pytest.approx(6 * 2 * 4.5e-3)
    assert full.launch_s - none.launch_s == pytest.approx(6 * 2 * 2e-3)


def test_a_loss_in_chunks_passes_over_the_heads_weight_once_a_chunk() -> None:
    # Vocabulary over hidden size (Liger-Kernel): 512 / 256 makes two chunks of 256 tokens. The second one costs 15
    # operators of 4 us and four passes over 512 x 256 fp32 numbers at 20 GB/s, in each of two micro batches.
    standard, fused = (time_of(plan_of(), job=replace(JOB, loss=loss)) for loss in (STANDARD, FUSED))
    extra = 2 * (15 * 4e-6 + 4 * 4 * 512 * 256 / 2e10)
    assert fused.memory_bound_s - standard.memory_bound_s == pytest.approx(extra)
    assert fused.matrix_s > standard.matrix_s, "smaller products are slower"


def test_checkpointing_every_second_block_costs_half() -> None:
    full = plan_of(checkpointing=ActivationCheckpointing.FULL)
    assert time_of(replace(full, checkpoint_every=2)).recompute_s == pytest.approx(time_of(full).recompute_s / 2)


def test_an_engine_costs_what_was_measured_under_it() -> None:
    zero3, ddp = time_of(plan_of(StrategyName.ZERO3)), time_of(plan_of())
    tensors = 6 * 9 + 3  # llama: seven matrices and two norms a block; embedding, last norm, head
    assert zero3.launch_s - ddp.launch_s == pytest.approx(2 * tensors * (1100e-6 - 40e-6))
    fsdp2 = time_of(plan_of(StrategyName.FSDP2))
    assert fsdp2.launch_s - ddp.launch_s == pytest.approx(2 * (7 * 5e-3 - tensors * 40e-6))
    assert zero3.matrix_s == ddp.matrix_s


def test_stage_3_hooks_into_modules_and_the_stages_below_into_parameters() -> None:
    # GPT-2: 12 parameters a block in six modules (a weight and a bias each); two tables and the last norm.
    gpt2 = load_model_spec("gpt2-demo")
    assert num_units(gpt2, StrategyName.ZERO3) == 4 * 6 + 3
    assert num_units(gpt2, StrategyName.ZERO2) == 4 * 12 + 4
    assert num_units(gpt2, StrategyName.FSDP2) == 4 + 1


def test_fsdp2_that_keeps_its_weights_has_costs_of_its_own() -> None:
    gives_back, keeps = (time_of(plan_of(StrategyName.FSDP2, reshards=reshards)) for reshards in (True, False))
    assert gives_back.communication_s - keeps.communication_s == pytest.approx(2 * 2e-9 * SPEC.num_params)


@pytest.mark.parametrize("strategy", PYTORCH_STRATEGIES)
def test_adapters_need_no_gradients_of_the_frozen_weights(strategy: StrategyName) -> None:
    full, lora = (time_of(plan_of(strategy), job=job) for job in (JOB, replace(JOB, lora=Lora(rank=8))))
    # Two products in place of three for a frozen weight; the adapters' own are small.
    assert 0.66 < lora.matrix_s / full.matrix_s < 0.8
    assert lora.optimizer_s < full.optimizer_s
    assert lora.communication_s < full.communication_s


def test_one_rank_does_not_communicate() -> None:
    assert time_of(plan_of(ranks=1), ranks=1).communication_s == 0


def test_more_ranks_than_were_measured_move_more() -> None:
    two, four = (time_of(plan_of(StrategyName.FSDP2, ranks=ranks), ranks=ranks) for ranks in (2, 4))
    # Half the micro batches, and a ring of four moves 3/4 of a tensor instead of 1/2.
    assert four.communication_s > 0.75 * two.communication_s


def test_an_engine_that_was_not_measured_is_refused() -> None:
    write_calibration(cpu_calibration(engines=(StrategyName.DDP,)), calibration_path("cpu"))
    assert time_of(plan_of()).total_s > 0
    with pytest.raises(
        ClusterError, match=r"the calibration of cpu has no engine of strategy=zero1 .*; install what it"
    ):
        time_of(plan_of(StrategyName.ZERO1))


def test_a_format_that_was_not_measured_is_refused(calibration: Calibration) -> None:
    write_calibration(replace(calibration, products=calibration.products[:1]), calibration_path("cpu"))
    with pytest.raises(ClusterError, match="has no products for precision=bf16"):
        time_of(plan_of(), job=replace(JOB, precision=Precision.BF16))


def test_times_on_cpu_ranks_are_known_with_a_calibration_only() -> None:
    assert times_known(cpu_ranks())
    assert time_source(cpu_ranks()).startswith("measured on this machine (")
    assert time_source(cpu_ranks(4)).endswith("rough for 4, measure with --ranks 4")
    calibration_path("cpu").unlink()
    write_calibration(cpu_calibration(), calibration_path("other"))
    assert not times_known(cpu_ranks())
    assert time_source(cpu_ranks()) == "not known for cpu; run `scaling calibrate` on it"


def test_times_on_a_gpu_come_from_its_data_sheet() -> None:
    a100 = replace(cpu_ranks(), gpu=gpu_preset("A100-80GB-SXM"))
    assert times_known(a100)
    assert "published runs" in time_source(a100)


def test_a_gpus_measured_rates_replace_the_shares_of_its_data_sheet(calibration: Calibration) -> None:
    known = rates_of(gpu_preset("A100-80GB-SXM"))
    measured = gpu_rates(known, replace(calibration, device="A100", pcie_bytes_per_s=2e10))
    # Training reaches about nine tenths of a benchmark of products.
    assert measured.matrix_flops_per_s == pytest.approx(0.9 * 16e10)
    assert measured.fp32_matrix_flops_per_s == pytest.approx(0.9 * 8e10)
    assert measured.memory_bytes_per_s == 2e10
    assert measured.pcie_bytes_per_s == 2e10
    assert measured.peak_flops_per_s == known.peak_flops_per_s
    assert measured.attention_flops_per_s / known.attention_flops_per_s == pytest.approx(
        measured.matrix_flops_per_s / known.matrix_flops_per_s
    )
    # 2**20 - 4096 bytes in 0.4 ms, of which a rank of two receives half.
    assert measured.link_bytes_per_s == pytest.approx((2**20 - 4096) / 4e-4 / 2)


def test_a_gpu_without_a_data_sheet_has_times_once_it_is_calibrated(calibration: Calibration) -> None:
    unknown = replace(cpu_ranks(), gpu=replace(cpu_ranks().gpu, name="Some GPU"))
    assert not times_known(unknown)
    write_calibration(replace(calibration, device="Some GPU"), calibration_path("Some GPU"))
    assert times_known(unknown)
    assert rates_for(unknown, calibration).peak_flops_per_s == 16e10
    assert step_time(SPEC, cluster=unknown, job=JOB, plan=plan_of()).total_s > 0


def test_rates_between_two_sizes_are_their_geometric_means() -> None:
    points = ((1e6, 4e10), (1e8, 16e10))
    assert between(points, 1e7) == pytest.approx(8e10)
    assert [between(points, size) for size in (1.0, 1e6, 1e8, 1e12)] == [4e10, 4e10, 16e10, 16e10]


def test_examples_in_the_documentation_of_functions_hold() -> None:
    assert doctest.testmod(measured_rates).failed == 0


def test_gradients_that_are_reduced_once_cost_a_step_more_and_every_micro_batch_less() -> None:
    plan = replace(plan_of(StrategyName.FSDP2), micro_batch_size=1, gradient_accumulation_steps=8)
    each, once = (time_of(replace(plan, sync_each_batch=syncs)) for syncs in (True, False))
    # 2 ns a parameter: in each of eight micro batches, or in the step.
    assert each.total_s - once.total_s == pytest.approx((8 - 1) * 2e-9 * SPEC.num_params)
