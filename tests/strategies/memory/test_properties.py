"""What must hold for every estimate, whatever the model, the cluster and the plan."""

from __future__ import annotations

import json
from dataclasses import replace

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from strategies.cases import answer_line
from strategies.cluster import Cluster, gpu_preset
from strategies.errors import ScalingError
from strategies.estimate import Estimate, Phase
from strategies.job import Attention, Job, LossImplementation, OptimizerName, Precision
from strategies.load_model import load_model_spec
from strategies.memory.predict import predict
from strategies.parameter_order import parameter_order
from strategies.plan import ActivationCheckpointing, OffloadDevice, Plan, StrategyName
from strategies.registry import STRATEGIES
from strategies.serialize import from_json, to_json

MODELS = ("llama-3.2-1b", "gpt2-medium", "qwen2.5-7b", "gemma-2b", "mixtral-8x7b", "bert-large", "t5-large", "opt-1.3b")
GPU_COUNTS = (1, 2, 3, 8, 64, 1024)
EXAMPLES = settings(max_examples=200, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])


@st.composite
def settings_of_a_run(draw: st.DrawFn) -> tuple[str, Cluster, Job, Plan]:
    """Draw a model, a cluster, a job and a plan that are legal together."""
    model = draw(st.sampled_from(MODELS))
    gpus, micro, steps = draw(st.sampled_from(GPU_COUNTS)), draw(st.integers(1, 8)), draw(st.integers(1, 4))
    job = Job(
        seq_len=draw(st.sampled_from((8, 100, 512))),
        global_batch_size=gpus * micro * steps,
        precision=draw(st.sampled_from(Precision)),
        optimizer=draw(st.sampled_from(OptimizerName)),
        attention=draw(st.sampled_from(Attention)),
        loss=draw(st.sampled_from(LossImplementation)),
        fused_optimizer=draw(st.booleans()),
    )
    strategy = draw(st.sampled_from(StrategyName))
    offload = draw(st.booleans())
    plan = Plan(
        strategy=strategy,
        micro_batch_size=micro,
        gradient_accumulation_steps=steps,
        activation_checkpointing=draw(st.sampled_from(ActivationCheckpointing)),
        reshard_after_forward=draw(st.booleans()),
        offload_optimizer=OffloadDevice.CPU if offload and strategy is not StrategyName.DDP else OffloadDevice.NONE,
        offload_param=OffloadDevice.CPU
        if offload and strategy in (StrategyName.ZERO3, StrategyName.FSDP2)
        else OffloadDevice.NONE,
        buckets=STRATEGIES[strategy].buckets(load_model_spec(model), job),
    )
    cluster = Cluster(gpu=gpu_preset("H100-80GB-SXM"), gpus=gpus, gpus_per_node=min(gpus, 8) if gpus != 3 else 3)
    return model, cluster, job, plan


def estimated(model: str, cluster: Cluster, job: Job, plan: Plan) -> Estimate | None:
    """Return the estimate; None where the combination is refused in words."""
    try:
        return predict(load_model_spec(model), cluster=cluster, job=job, plan=plan)
    except ScalingError:
        return None


@EXAMPLES
@given(settings_of_a_run())
def test_causes_sum_to_phases_and_nothing_is_negative(run: tuple[str, Cluster, Job, Plan]) -> None:
    estimate = estimated(*run)
    if estimate is None:
        return
    for phase in estimate.memory.phases:
        assert all(num_bytes > 0 for _, num_bytes in phase.causes.items())
        assert sum(num_bytes for _, num_bytes in phase.causes.items()) == phase.total_bytes
    assert max(phase.total_bytes for phase in estimate.memory.phases) == estimate.peak_allocated_bytes
    assert estimate.peak_allocated_bytes <= estimate.peak_reserved_bytes
    assert estimate.peak_allocated_bytes < estimate.device_bytes
    assert estimate.host is not None
    assert estimate.host.steady.pinned >= 0
    assert estimate.host.peak.total_bytes >= estimate.host.steady.total_bytes


def padding_of_flat_weights(model: str, gpus: int, job: Job, plan: Plan) -> int:
    """Return the bytes by which stages 1 and 2 round the whole weights up, which grow with the ranks.

    Source: deepspeed 0.19.8, stage_1_and_2.py: groups are aligned to nccl_start_alignment_factor * world_size, 2N.
    """
    if plan.strategy not in (StrategyName.ZERO1, StrategyName.ZERO2):
        return 0
    groups = parameter_order(load_model_spec(model)).groups
    return job.precision.weight_bytes * sum(-group.num_params % (2 * gpus) for group in groups)


@EXAMPLES
@given(settings_of_a_run())
def test_more_gpus_never_raise_the_bytes_of_the_model_states(run: tuple[str, Cluster, Job, Plan]) -> None:
    model, cluster, job, plan = run
    totals = []
    for gpus in (2, 4, 16, 256):
        batch = gpus * plan.micro_batch_size * plan.gradient_accumulation_steps
        estimate = estimated(
            model, replace(cluster, gpus=gpus, gpus_per_node=2), replace(job, global_batch_size=batch), plan
        )
        if estimate is None:
            return
        step = next(phase.causes for phase in estimate.memory.phases if phase.phase is Phase.OPTIMIZER_STEP)
        states = step.parameters + step.master_weights + step.optimizer_states
        totals.append(states - padding_of_flat_weights(model, gpus, job, plan))
    assert totals == sorted(totals, reverse=True)


@EXAMPLES
@given(settings_of_a_run())
def test_evaluation_is_affine_in_the_batch_where_its_highest_moment_stays(run: tuple[str, Cluster, Job, Plan]) -> None:
    """With many samples that is the one which grows most: three batches lie on a line."""
    model, cluster, job, plan = run
    found = []
    for micro in (2**14, 2**15, 2**16):
        batch = cluster.gpus * micro * plan.gradient_accumulation_steps
        estimate = estimated(
            model, cluster, replace(job, global_batch_size=batch), replace(plan, micro_batch_size=micro)
        )
        if estimate is None or job.loss is LossImplementation.FUSED:  # its chunks are counted in whole powers of two
            return
        found.append(next(phase for phase in estimate.memory.phases if phase.phase is Phase.EVALUATION).total_bytes)
    assert (found[2] - found[1]) == 2 * (found[1] - found[0])


@EXAMPLES
@given(settings_of_a_run())
def test_estimates_survive_json(run: tuple[str, Cluster, Job, Plan]) -> None:
    estimate = estimated(*run)
    if estimate is not None:
        assert from_json(Estimate, to_json(estimate), source="estimate") == estimate


TEXT = st.text(max_size=8)
VALUES = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), TEXT, st.lists(st.integers(), max_size=2))


@EXAMPLES
@given(st.dictionaries(st.sampled_from(["id", "model", "cluster", "job", "plan", "x"]), VALUES), VALUES, TEXT)
def test_absurd_cases_are_refused_in_words(fields: dict[str, object], value: object, key: str) -> None:
    """Never a traceback, never an estimate: something is wrong with every one of these."""
    whole = {
        "id": 1,
        "model": "llama-3.2-1b",
        "cluster": {"gpu": "H100-80GB-SXM", "gpus": 8},
        "job": {"seq_len": 128, "global_batch_size": 8, f"{key}-": value},
    }
    for line in (json.dumps(fields), json.dumps(whole), json.dumps(value), key):
        answer = json.loads(answer_line(line, number=1))
        assert answer["error"]
