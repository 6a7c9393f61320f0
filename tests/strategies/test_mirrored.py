"""TensorFlow's `MirroredStrategy` in the planner: everything on every GPU of one node, or a refusal in words."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

import strategies
from scaling.cli import app
from strategies.cases import answer_line
from strategies.cluster import Cluster, gpu_preset
from strategies.decision import Decision
from strategies.emit.files import write_plan
from strategies.errors import PlanError, ScalingError
from strategies.estimate import Phase
from strategies.job import Attention, Job, OptimizerName, Precision
from strategies.load_model import load_model_spec
from strategies.memory.predict import predict
from strategies.mirrored_limits import as_run, told_differently
from strategies.plan import ActivationCheckpointing, Framework, OffloadDevice, Plan, StrategyName
from strategies.registry import STRATEGIES
from strategies.search import FixedParts, named_strategy
from strategies.select import decide
from tests.strategies.builders import small_cluster, small_job, tiny_spec

MIRRORED = StrategyName.MIRRORED
LLAMA = "llama-3.2-1b"
PARAMS = 1_235_814_400  # the model's card, the tied matrix counted once


def plan_of(model: str, job: Job, *, micro: int = 1, steps: int = 1, **changes: object) -> Plan:
    buckets = STRATEGIES[MIRRORED].buckets(load_model_spec(model), job)
    return Plan(
        strategy=MIRRORED,
        micro_batch_size=micro,
        gradient_accumulation_steps=steps,
        buckets=buckets,
        **changes,  # type: ignore[arg-type]
    )


def cluster_of(gpus: int, name: str = "H100-80GB-SXM") -> Cluster:
    return Cluster(gpu=gpu_preset(name), gpus=gpus, gpus_per_node=min(gpus, 8))


@pytest.mark.parametrize("precision", [Precision.FP32, Precision.BF16_AUTOCAST])
@pytest.mark.parametrize("gpus", [1, 2, 8])
def test_states_are_whole_on_every_gpu(precision: Precision, gpus: int) -> None:
    """fp32 weights and Adam's two moments take 12 bytes a parameter, an accumulator 4 more (Keras keeps fp32 variables
    under every mixed policy: keras.io/api/mixed_precision)."""
    for steps, bytes_per_parameter in ((1, 12), (4, 16)):
        job = Job(seq_len=128, global_batch_size=gpus * steps, precision=precision)
        estimate = predict(
            load_model_spec(LLAMA), cluster=cluster_of(gpus), job=job, plan=plan_of(LLAMA, job, steps=steps)
        )
        initialise = estimate.memory.phases[0]
        assert initialise.phase is Phase.INITIALISE
        assert initialise.total_bytes == bytes_per_parameter * PARAMS


def test_momentum_alone_is_half_of_what_adam_keeps() -> None:
    job = Job(seq_len=128, global_batch_size=1, precision=Precision.FP32, optimizer=OptimizerName.SGD)
    estimate = predict(load_model_spec(LLAMA), cluster=cluster_of(1), job=job, plan=plan_of(LLAMA, job))
    assert estimate.memory.phases[0].causes.optimizer_states == 4 * PARAMS


def test_a_step_holds_all_gradients_and_their_packed_copy_where_there_are_others() -> None:
    job = Job(seq_len=128, global_batch_size=8, precision=Precision.FP32)

    def step(gpus: int, steps: int) -> dict[str, int]:
        plan = plan_of(LLAMA, job, steps=steps)
        estimate = predict(load_model_spec(LLAMA), cluster=cluster_of(gpus), job=job, plan=plan)
        return next(each for each in estimate.memory.phases if each.phase is Phase.OPTIMIZER_STEP).causes.by_cause()

    assert step(1, 8)["communication_buckets"] == 0
    assert step(8, 1)["communication_buckets"] == step(8, 1)["gradients"] == 4 * PARAMS


@pytest.mark.parametrize(
    ("given", "run"),
    [
        (Precision.BF16, Precision.BF16_AUTOCAST),
        (Precision.FP16, Precision.FP16_AUTOCAST),
        (Precision.FP32, Precision.FP32),
    ],
)
def test_a_job_is_told_in_the_words_of_what_runs(given: Precision, run: Precision) -> None:
    job = small_job(precision=given)
    found = as_run(job, MIRRORED)
    assert (found.precision, found.attention) == (run, Attention.EAGER)
    assert as_run(found, MIRRORED) == found
    assert as_run(job, StrategyName.DDP) == job
    (told,) = told_differently(job, MIRRORED)
    assert "attention=flash is eager there" in told
    assert (f"precision={given} is {run} there" in told) == (given is not run)


@pytest.mark.parametrize(
    ("model", "gpus", "changes", "message"),
    [
        (LLAMA, 16, {}, "on gpus=16 in 2 nodes: one process drives the GPUs of one node; give at most gpus=8"),
        (LLAMA, 8, {"precision": Precision.BF16_PURE}, "precision=bf16-pure: give fp32, bf16-autocast, fp16-autocast"),
        (LLAMA, 8, {"optimizer": OptimizerName.LION}, "optimizer=lion: give adamw or sgd"),
        (LLAMA, 8, {"freeze": ("lm_head",)}, "the whole model is trained there"),
        ("gemma-2b", 8, {}, "model gemma-2b of the family gemma: give one of llama"),
    ],
)
def test_what_the_engine_does_not_run_is_refused(
    model: str, gpus: int, changes: dict[str, object], message: str
) -> None:
    job = Job(seq_len=128, global_batch_size=gpus, **changes)  # type: ignore[arg-type]
    spec, cluster = load_model_spec(model), cluster_of(gpus)
    with pytest.raises(PlanError, match=message):
        predict(spec, cluster=cluster, job=job, plan=plan_of(model, job))
    with pytest.raises(PlanError, match=message):
        decide(spec, cluster=cluster, job=job, fixed=FixedParts(strategy=MIRRORED))


def test_selective_checkpointing_and_offload_are_refused() -> None:
    job = Job(seq_len=128, global_batch_size=8)
    spec, cluster = load_model_spec(LLAMA), cluster_of(8)
    selective = ActivationCheckpointing.SELECTIVE
    with pytest.raises(PlanError, match="cannot run activation_checkpointing=selective; give none or full"):
        predict(spec, cluster=cluster, job=job, plan=plan_of(LLAMA, job, activation_checkpointing=selective))
    with pytest.raises(PlanError, match="strategy mirrored cannot run with offload_optimizer=cpu"):
        decide(spec, cluster=cluster, job=job, fixed=FixedParts(strategy=MIRRORED, offload_optimizer=OffloadDevice.CPU))


def test_framework_and_strategy_name_one_thing() -> None:
    assert named_strategy(Framework.TENSORFLOW, None) is MIRRORED
    assert named_strategy(Framework.TENSORFLOW, MIRRORED) is MIRRORED
    assert named_strategy(None, StrategyName.ZERO2) is StrategyName.ZERO2
    assert named_strategy(Framework.PYTORCH, None) is None
    with pytest.raises(PlanError, match="strategy=zero3 is pytorch's, and framework=tensorflow has mirrored; give one"):
        named_strategy(Framework.TENSORFLOW, StrategyName.ZERO3)
    with pytest.raises(PlanError, match="strategy=mirrored is tensorflow's, and framework=pytorch has ddp or zero1"):
        named_strategy(Framework.PYTORCH, MIRRORED)


def test_it_is_planned_where_it_is_named_only() -> None:
    asked = {"gpus": 8, "gpu": "H100-80GB-SXM", "seq_len": 512, "global_batch_size": 64}
    free = strategies.plan(LLAMA, **asked)  # type: ignore[arg-type]
    assert {each.plan.strategy for each in free.by_strategy}.isdisjoint({MIRRORED})
    named = strategies.plan(LLAMA, framework="tensorflow", **asked)  # type: ignore[arg-type]
    assert {each.plan.strategy for each in named.by_strategy} == {MIRRORED}
    assert named.job.precision is Precision.BF16_AUTOCAST
    assert any("attention=flash is eager there" in warning for warning in named.warnings)


def test_files_are_those_that_one_process_needs(tmp_path: Path) -> None:
    def decision(strategy: StrategyName) -> Decision:
        fixed = FixedParts(strategy=strategy, micro_batch_size=2)
        return decide(tiny_spec(), cluster=small_cluster(), job=small_job(), fixed=fixed)

    write_plan(decision(StrategyName.ZERO2), folder=tmp_path)
    write_plan(decision(MIRRORED), folder=tmp_path, overwrite=True)
    assert {path.name for path in tmp_path.iterdir()} == {"plan.json", "launch.txt"}
    (command,) = [line for line in (tmp_path / "launch.txt").read_text().splitlines() if not line.startswith("#")]
    assert command.startswith(f"python -m scaling.tensorflow.train --plan {tmp_path}/plan.json ")
    with pytest.raises(PlanError, match="strategy=mirrored is tensorflow's; accelerate runs PyTorch's"):
        decision(MIRRORED).accelerator_kwargs()
    with pytest.raises(PlanError, match="strategy=mirrored is not run by DeepSpeed"):
        decision(MIRRORED).deepspeed_config()


def test_command_says_what_only_sharding_would_fit() -> None:
    words = ["plan", "llama-2-7b", "--gpus", "8", "--gpu", "H100-80GB-SXM", "--framework", "tensorflow"]
    done = CliRunner().invoke(app, [*words, "--seq-len", "512", "--global-batch-size", "16"])
    assert isinstance(done.exception, ScalingError)
    assert done.exception.exit_code == 3
    told = str(done.exception)
    # 20 bytes of each of 6,738,415,616 parameters (arXiv:2307.09288 gives 6.7 B), accumulators included, are 125.5 GiB.
    assert "mirrored keeps all model states on every GPU, 125.51 GiB at that moment; only sharding them" in told
    assert "--framework pytorch --strategy " in told


def test_case_is_answered() -> None:
    case = {
        "id": 1,
        "model": LLAMA,
        "cluster": {"gpu": "A100-80GB-SXM", "gpus": 8},
        "job": {"seq_len": 512, "global_batch_size": 16, "precision": "bf16", "attention": "flash"},
        "plan": {"strategy": "mirrored", "micro_batch_size": 1},
    }
    answer = json.loads(answer_line(json.dumps(case), number=1))
    assert answer["fits"] is True
    assert answer["breakdown_gib"]["gradient_accumulation"] == pytest.approx(4 * PARAMS / 2**30, abs=1e-3)
    low, high = answer["interval_gib"]
    assert low < answer["peak_allocated_gib"] < high
    assert any("precision=bf16 is bf16-autocast there" in warning for warning in answer["warnings"])
