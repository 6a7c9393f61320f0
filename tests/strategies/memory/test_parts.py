"""Forms of models trained in part: what a block keeps, what is refused, and published peaks."""

from __future__ import annotations

from typing import Any

import pytest

from strategies.adapt import as_trained
from strategies.cases import answer_line
from strategies.cluster import Cluster, gpu_preset
from strategies.errors import SpecError
from strategies.estimate import Estimate, Phase
from strategies.job import Attention, Job, LossImplementation
from strategies.load_model import load_model_spec
from strategies.memory.activations import activation_levels
from strategies.memory.host import host_ledger
from strategies.memory.predict import predict
from strategies.memory.stretches import Setting, Stretch, highest
from strategies.plan import PYTORCH_STRATEGIES, ActivationCheckpointing, Plan, StrategyName
from strategies.registry import STRATEGIES
from strategies.trained import Lora

NONE, FULL = ActivationCheckpointing.NONE, ActivationCheckpointing.FULL
SEQ, BATCH, RANK = 1024, 3, 16
QV = ("q_proj", "v_proj")


def job(**parts: Any) -> Job:
    return Job(seq_len=2048, global_batch_size=16, **parts)


def kept_per_token(model: str, number_format: str = "16bit", **parts: Any) -> float:
    """Return bytes a token and block, without the random state of flash attention."""
    spec = as_trained(load_model_spec(model), job(**parts))
    setting = Setting(
        seq_len=SEQ,
        number_format=number_format,
        attention=Attention.FLASH,
        activation_checkpointing=NONE,
        loss=LossImplementation.STANDARD,
    )
    kept = highest(activation_levels(spec, setting, micro_batch_size=BATCH)[Stretch.KEPT], BATCH).total
    return (kept / spec.num_layers - 24) / (BATCH * SEQ)


def estimate(
    model: str, strategy: StrategyName, checkpointing: ActivationCheckpointing = FULL, **given: Any
) -> Estimate:
    """Return the estimate on two 80 GB GPUs, one sample a pass and eight passes a step."""
    spec, gpus, steps = load_model_spec(model), given.pop("gpus", 2), given.pop("steps", 8)
    of_job = Job(seq_len=2048, global_batch_size=steps * gpus, **given)
    plan = Plan(
        strategy=strategy,
        micro_batch_size=1,
        gradient_accumulation_steps=steps,
        activation_checkpointing=checkpointing,
        buckets=STRATEGIES[strategy].buckets(spec, of_job),
    )
    cluster = Cluster(gpu=gpu_preset("A100-80GB-SXM"), gpus=gpus, gpus_per_node=gpus)
    return predict(spec, cluster=cluster, job=of_job, plan=plan)


@pytest.mark.parametrize("preset", ["llama-2-7b", "llama-3.1-8b", "mistral-7b", "qwen2.5-7b"])
def test_a_frozen_linear_layer_keeps_its_input_for_an_adapter_only(preset: str) -> None:
    """The closed forms of docs/memory.md: the input that q, k and v share, fp32 norms, what activations need."""
    spec = load_model_spec(preset)
    h, q, k, f, n = (
        spec.hidden_size,
        spec.query_size,
        spec.key_value_size,
        spec.intermediate_size,
        spec.num_attention_heads,
    )
    attention = 4 * q + 4 * k + 4 * n + 8
    assert kept_per_token(preset, lora=Lora(rank=RANK, target_modules=QV)) == 10 * h + 6 * f + attention + 4 * RANK
    everything = 12 * h + 8 * f + attention + 14 * RANK
    assert kept_per_token(preset, lora=Lora(rank=RANK)) == everything
    assert kept_per_token(preset, freeze=("embed_tokens",)) == 16 * h + 8 * f + attention


def test_stage_3_keeps_the_input_of_frozen_layers_too() -> None:
    spec, lora = load_model_spec("llama-2-7b"), Lora(rank=RANK, target_modules=QV)
    more = kept_per_token("llama-2-7b", "16bit-stage3", lora=lora) - kept_per_token("llama-2-7b", lora=lora)
    assert more == 2 * spec.hidden_size + 2 * spec.intermediate_size


def test_gpt2_keeps_its_closed_form() -> None:
    spec = load_model_spec("gpt2-xl")
    h, f, n = spec.hidden_size, spec.intermediate_size, spec.num_attention_heads
    fused = Lora(rank=RANK, target_modules=("c_attn",))
    assert kept_per_token("gpt2-xl", lora=fused) == 16 * h + 8 * f + 4 * n + 2 * RANK + 16
    assert kept_per_token("gpt2-xl", lora=Lora(rank=RANK)) == 18 * h + 10 * f + 4 * n + 8 * RANK + 16


@pytest.mark.parametrize(
    ("strategy", "published_gib", "tolerance"),
    [
        # ms-swift, examples/train/multi-gpu: Qwen2.5-7B-Instruct, LoRA of rank 8 on two GPUs, "about" so many GiB
        (StrategyName.ZERO2, 18.0, 0.03),
        (StrategyName.FSDP2, 14.7, 0.12),
    ],
)
def test_published_peaks_of_adapters_are_met(strategy: StrategyName, published_gib: float, tolerance: float) -> None:
    found = estimate("qwen2.5-7b", strategy, lora=Lora(rank=8))
    assert found.peak_allocated_bytes / 2**30 == pytest.approx(published_gib, rel=tolerance)


@pytest.mark.parametrize("strategy", PYTORCH_STRATEGIES)
def test_adapters_need_less_than_the_whole_model(strategy: StrategyName) -> None:
    adapted, whole = estimate("llama-2-7b", strategy, lora=Lora()), estimate("llama-2-7b", strategy)
    assert adapted.peak_allocated_bytes < whole.peak_allocated_bytes
    causes = adapted.memory.peak.causes
    assert (
        causes.gradients + causes.master_weights + causes.optimizer_states
        < whole.memory.peak.causes.optimizer_states / 10
    )


def test_frozen_weights_rest_on_every_rank_under_stage_2_and_on_all_of_them_under_stage_3() -> None:
    frozen = 2 * 6_738_415_616
    stage2 = estimate("llama-2-7b", StrategyName.ZERO2, lora=Lora(rank=8, target_modules=QV), gpus=8)
    stage3 = estimate("llama-2-7b", StrategyName.ZERO3, lora=Lora(rank=8, target_modules=QV), gpus=8)
    assert stage2.memory.peak.causes.parameters == pytest.approx(frozen, rel=0.002)
    assert stage3.memory.peak.causes.parameters == pytest.approx(frozen / 8, rel=0.002)


@pytest.mark.parametrize(
    ("parts", "checkpointing", "message"),
    [
        ({"freeze": ("mlp",)}, NONE, "no closed form where single parts are frozen"),
        ({"freeze": ("lm_head",)}, NONE, "no closed form where single parts are frozen"),
        ({"lora": Lora(target_modules=("o_proj",))}, NONE, "adapters are trained on self_attn.o_proj of model_type"),
        ({"freeze": ("*", "!lm_head")}, FULL, "computed again in vain; give none"),
    ],
)
def test_parts_without_a_form_are_refused(
    parts: dict[str, Any], checkpointing: ActivationCheckpointing, message: str
) -> None:
    with pytest.raises(SpecError, match=message):
        estimate("llama-2-7b", StrategyName.DDP, checkpointing, **parts)


def test_a_window_that_makes_masks_is_refused_where_adapters_have_no_form_for_it() -> None:
    spec, of_job = load_model_spec("mistral-7b"), Job(seq_len=8192, global_batch_size=1, lora=Lora())
    plan = Plan(
        strategy=StrategyName.DDP,
        micro_batch_size=1,
        gradient_accumulation_steps=1,
        buckets=STRATEGIES[StrategyName.DDP].buckets(spec, of_job),
    )
    cluster = Cluster(gpu=gpu_preset("A100-80GB-SXM"), gpus=1, gpus_per_node=1)
    with pytest.raises(SpecError, match="windows of 4096 tokens"):
        predict(spec, cluster=cluster, job=of_job, plan=plan)


def test_a_case_says_what_is_trained() -> None:
    line = (
        '{"id": 1, "model": "llama-2-7b", "cluster": {"gpu": "A100-80GB-SXM", "gpus": 8}, "job": {"seq_len": 2048, '
        '"global_batch_size": 8, %s}, "plan": {"strategy": "zero2", "micro_batch_size": 1}}'
    )
    whole, adapted, wrong = (
        answer_line(line % parts, number=1)
        for parts in (
            '"precision": "bf16"',
            '"lora": {"rank": 16, "target_modules": ["q_proj", "v_proj"]}',
            '"freeze": ["embedding"]',
        )
    )
    assert '"fits": true' in whole
    assert '"fits": true' in adapted
    assert whole != adapted
    assert "has no such parameter" in wrong


def test_the_host_keeps_no_states_of_frozen_weights() -> None:
    """An offloaded optimizer of adapters is small; the model's own weights stay on the device."""
    spec, cluster = load_model_spec("llama-2-7b"), Cluster(gpu=gpu_preset("A100-80GB-SXM"), gpus=8, gpus_per_node=8)
    of_job = job(lora=Lora(rank=8, target_modules=QV))
    plan = Plan(
        strategy=StrategyName.ZERO2,
        micro_batch_size=1,
        gradient_accumulation_steps=2,
        buckets=STRATEGIES[StrategyName.ZERO2].buckets(spec, of_job),
    )
    adapted = host_ledger(as_trained(spec, of_job), cluster=cluster, job=of_job, plan=plan)
    # Weights, and 12 bytes of each of 4,194,304 adapter parameters.
    states = adapted.training_checkpoint_bytes - adapted.model_checkpoint_bytes
    assert states == 12 * 4_194_304


@pytest.mark.parametrize("strategy", [StrategyName.DDP, StrategyName.ZERO1])
def test_a_head_trained_alone_on_one_gpu_keeps_its_own_gradient_only(strategy: StrategyName) -> None:
    spec = load_model_spec("llama-3-8b")
    job = Job(seq_len=128, global_batch_size=1, freeze=("*", "!lm_head"))
    cluster = Cluster(gpu=gpu_preset("A100-80GB-SXM"), gpus=1, gpus_per_node=1)
    plan = Plan(
        strategy=strategy,
        micro_batch_size=1,
        gradient_accumulation_steps=1,
        buckets=STRATEGIES[strategy].buckets(spec, job),
    )
    step = {phase.phase: phase.causes for phase in predict(spec, cluster=cluster, job=job, plan=plan).memory.phases}
    # 128,256 words of 4,096 numbers (config.json of meta-llama/Meta-Llama-3-8B), in bf16.
    assert step[Phase.OPTIMIZER_STEP].gradients == 2 * 128256 * 4096
