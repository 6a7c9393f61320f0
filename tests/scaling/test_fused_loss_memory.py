"""The closed form of the fused loss against the trainer that runs it, on CPU tensors and traced with CUDA's kernels."""

from __future__ import annotations

import pytest

from scaling.measure import Method, measure_plan, trace_plan
from strategies.cluster import CPU_NAME, Cluster, Gpu
from strategies.decision import Decision
from strategies.estimate import MemoryProfile, Phase
from strategies.job import Job, LossImplementation, Precision
from strategies.load_model import load_model_spec
from strategies.memory.predict import predict
from strategies.plan import Plan, StrategyName
from strategies.registry import STRATEGIES
from strategies.units import GIB

TIED_GPT2 = "benchmarks/models/gpt2-tied.json"
TIED_152K = "benchmarks/models/qwen2-vocabulary.json"
"""Its vocabulary is 1187 times as wide as its hidden size: head and embedding are 19 of 20 million parameters."""
CPU = Gpu(name=CPU_NAME, memory_bytes=80 * GIB)
CUDA = Gpu(name="test-gpu", memory_bytes=80 * GIB)
STRATEGIES_OF_SMALL_MODELS = ((StrategyName.DDP, 2), (StrategyName.ZERO2, 2), (StrategyName.ZERO3, 2))
CASES = (
    *(("llama-demo", *case) for case in STRATEGIES_OF_SMALL_MODELS),
    *((TIED_GPT2, *case) for case in ((StrategyName.DDP, 1), *STRATEGIES_OF_SMALL_MODELS)),
    *((TIED_152K, *case) for case in ((StrategyName.DDP, 1), *STRATEGIES_OF_SMALL_MODELS, (StrategyName.FSDP2, 2))),
)
TOLERANCE = 0.01


def fused_decision(
    model: str, strategy: StrategyName, ranks: int, *, gpu: Gpu, precision: Precision = Precision.BF16
) -> Decision:
    spec = load_model_spec(model)
    cluster = Cluster(gpu=gpu, gpus=ranks, gpus_per_node=ranks)
    job = Job(seq_len=256, global_batch_size=2 * ranks, precision=precision, loss=LossImplementation.FUSED)
    plan = Plan(
        strategy=strategy,
        micro_batch_size=2,
        gradient_accumulation_steps=1,
        buckets=STRATEGIES[strategy].buckets(spec, job),
    )
    estimate = predict(spec, cluster=cluster, job=job, plan=plan)
    return Decision(model=model, num_params=spec.num_params, cluster=cluster, job=job, plan=plan, estimate=estimate)


def phase_bytes(memory: MemoryProfile) -> dict[Phase, int]:
    return {phase.phase: phase.total_bytes for phase in memory.phases}


def assert_as_predicted(decision: Decision, measured: MemoryProfile) -> None:
    predicted = decision.estimate.memory
    assert predicted.peak_bytes == pytest.approx(measured.peak_bytes, rel=TOLERANCE)
    ours, theirs = phase_bytes(predicted), phase_bytes(measured)
    for phase in (Phase.FORWARD, Phase.BACKWARD):
        assert ours[phase] == pytest.approx(theirs[phase], rel=TOLERANCE), phase


@pytest.mark.deepspeed
@pytest.mark.slow
@pytest.mark.parametrize(("model", "strategy", "ranks"), CASES)
def test_fused_loss_holds_what_its_closed_form_says_on_cuda(model: str, strategy: StrategyName, ranks: int) -> None:
    decision = fused_decision(model, strategy, ranks, gpu=CUDA)
    assert_as_predicted(decision, trace_plan(decision, num_steps=2).measured)


@pytest.mark.deepspeed
@pytest.mark.slow
@pytest.mark.parametrize(("model", "strategy", "ranks"), CASES)
def test_fused_loss_holds_what_its_closed_form_says_on_a_cpu(model: str, strategy: StrategyName, ranks: int) -> None:
    decision = fused_decision(model, strategy, ranks, gpu=CPU)
    assert_as_predicted(decision, measure_plan(decision, num_steps=2, method=Method.SIMULATED).measured)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "strategy", "ranks"),
    [
        ("llama-demo", StrategyName.DDP, 1),
        ("llama-demo", StrategyName.FSDP2, 2),
        (TIED_GPT2, StrategyName.FSDP2, 2),
    ],
)
def test_forward_with_a_fused_loss_holds_what_its_closed_form_says(
    model: str, strategy: StrategyName, ranks: int
) -> None:
    """The blocks' backward, where these are at their peak, is the same under every loss."""
    decision = fused_decision(model, strategy, ranks, gpu=CUDA)
    predicted = phase_bytes(decision.estimate.memory)[Phase.FORWARD]
    traced = phase_bytes(trace_plan(decision, num_steps=2).measured)[Phase.FORWARD]
    assert predicted == pytest.approx(traced, rel=TOLERANCE)


@pytest.mark.slow
@pytest.mark.parametrize("precision", [Precision.FP32, Precision.BF16_AUTOCAST])
def test_fused_loss_in_other_formats_holds_what_its_closed_form_says(precision: Precision) -> None:
    decision = fused_decision(TIED_152K, StrategyName.DDP, 2, gpu=CUDA, precision=precision)
    assert_as_predicted(decision, trace_plan(decision, num_steps=2).measured)
