"""Rows of ``reference/analytic_references.csv`` that need more than model states: activations, buffers, whole plans."""

from __future__ import annotations

from benchmarks.analytic_formulas import Formula, Inputs, OutOfScope, gpt, states, zero_table_2
from strategies.architectures import spec_from_config
from strategies.cluster import Cluster, Gpu, gpu_preset
from strategies.errors import SpecError
from strategies.job import Attention, Job, LossImplementation, Precision
from strategies.load_model import load_model_spec
from strategies.memory.activations import activation_levels
from strategies.memory.predict import predict
from strategies.memory.stretches import Setting, Stretch, highest
from strategies.model_spec import ModelSpec
from strategies.plan import ActivationCheckpointing, Plan, StrategyName
from strategies.registry import STRATEGIES
from strategies.time.flops import MfuDefinition, attention_recompute_flops, model_flops
from strategies.units import GIB, MIB

GIGA = 10**9
LAYERS = {"GPT-3": 96, "MT-NLG 530B": 105}
SHAPES = {"GPT-3": (96, 12288), "MT-NLG 530B": (128, 20480)}
"""(heads, hidden size); the sequences are of 2048 tokens."""


def block_bytes(*, hidden: int, heads: int, seq_len: int, micro_batch_size: int, attention: Attention) -> float:
    """Return the bytes that one of Megatron's blocks keeps: those of BERT's, which only puts its norms elsewhere."""
    setting = Setting(
        seq_len=seq_len,
        number_format="16bit",
        attention=attention,
        activation_checkpointing=ActivationCheckpointing.NONE,
        loss=LossImplementation.STANDARD,
    )
    two, one = (_bert(hidden=hidden, heads=heads, layers=layers) for layers in (2, 1))
    try:
        kept = [
            highest(activation_levels(spec, setting, micro_batch_size=micro_batch_size)[Stretch.KEPT], micro_batch_size)
            for spec in (two, one)
        ]
    except SpecError as error:
        raise OutOfScope("no forms for BERT's block, which is Megatron's") from error
    return kept[0].total - kept[1].total


def _bert(*, hidden: int, heads: int, layers: int) -> ModelSpec:
    config = {
        "model_type": "bert",
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "intermediate_size": 4 * hidden,
        "vocab_size": 51200,
        "max_position_embeddings": 2048,
    }
    return spec_from_config(config, name="bert")


def megatron_activations(quantity: str, inputs: Inputs) -> tuple[float, ...]:
    """Return MiB of one block without recomputation."""
    if inputs["tp"] > 1:
        raise OutOfScope("tensor parallelism")
    num_bytes = block_bytes(
        hidden=inputs["hidden"],
        heads=inputs["heads"],
        seq_len=inputs["seq"],
        micro_batch_size=inputs["micro_batch"],
        attention=Attention.EAGER,
    )
    return (num_bytes / MIB,)


def megatron_ratios(quantity: str, inputs: Inputs) -> tuple[float, ...]:
    """Return what attention keeps over s b h bytes, its share in percent, or the FLOPs that redoing it costs."""
    if "pp" in inputs:
        raise OutOfScope("pipeline parallelism")
    heads, hidden = SHAPES[inputs["config"]]
    if quantity == "extra FLOPs of selective recompute":
        spec = gpt(hidden=hidden, layers=LAYERS[inputs["config"]], heads=heads)
        useful = model_flops(spec, seq_len=2048, definition=MfuDefinition.MEGATRON)
        return (100 * (attention_recompute_flops(spec, seq_len=2048) / useful - 1),)
    whole, linear = _attention_split(hidden=hidden, heads=heads)
    if quantity == "5as/h":
        return ((whole - linear) / (2048 * hidden),)
    return (100 * (whole - linear) / whole,)


def _attention_split(*, hidden: int, heads: int) -> tuple[float, float]:
    """Return the bytes of a block of 2048 tokens, and those that grow linearly with the sequence."""
    whole, half = (
        block_bytes(hidden=hidden, heads=heads, seq_len=seq_len, micro_batch_size=1, attention=Attention.EAGER)
        for seq_len in (2048, 1024)
    )
    return whole, 4 * half - whole


def measured_limits(quantity: str, inputs: Inputs) -> tuple[float, ...]:
    """Return the billions of parameters of the largest GPT that fits, and of what model states alone would allow."""
    if inputs["mp"] > 1:
        raise OutOfScope("tensor parallelism")
    memory_bytes = 32 * GIGA
    gpu = Gpu(name=inputs["gpu"], memory_bytes=memory_bytes)
    cluster = Cluster(gpu=gpu, gpus=inputs["n_gpus"], gpus_per_node=16)
    strategy = {0: StrategyName.DDP, 1: StrategyName.ZERO1}[inputs["zero_stage"]]
    largest = 0.0
    for layers in range(1, 100):
        spec = gpt(hidden=4096, layers=layers, heads=32, vocab=50257, seq_len=1024)
        if _device_bytes(spec, cluster=cluster, strategy=strategy) > memory_bytes:
            break
        largest = spec.num_params / GIGA
    alone = zero_table_2(quantity, {**inputs, "gpu_mem_gb": 32, "dp": inputs["n_gpus"]})
    return largest, *alone


def _device_bytes(spec: ModelSpec, *, cluster: Cluster, strategy: StrategyName) -> int:
    job = Job(seq_len=1024, global_batch_size=cluster.gpus, precision=Precision.FP16, attention=Attention.EAGER)
    plan = Plan(
        strategy=strategy,
        micro_batch_size=1,
        gradient_accumulation_steps=1,
        activation_checkpointing=ActivationCheckpointing.FULL,
        buckets=STRATEGIES[strategy].buckets(spec, job),
    )
    return predict(spec, cluster=cluster, job=job, plan=plan).device_bytes


def torchtitan_steps(quantity: str, inputs: Inputs) -> tuple[float, ...]:
    """Return GiB by which a run of Llama 3 8B grows: weights kept gathered after forward; Adam states."""
    spec, ranks = load_model_spec("llama-3-8b"), inputs["dp"]
    if quantity.startswith("increase from step 1"):
        return (states(spec.num_params, stage=3, ranks=ranks).optimizer_states / GIB,)
    job = Job(seq_len=8192, global_batch_size=ranks, precision=Precision.BF16_AUTOCAST)
    cluster = Cluster(gpu=gpu_preset("H100-96GB-HBM2e-SXM (500W)"), gpus=ranks, gpus_per_node=8)
    buckets = STRATEGIES[StrategyName.FSDP2].buckets(spec, job)
    peaks = []
    for reshard in (False, True):
        plan = Plan(
            strategy=StrategyName.FSDP2,
            micro_batch_size=1,
            gradient_accumulation_steps=1,
            activation_checkpointing=ActivationCheckpointing.SELECTIVE,
            reshard_after_forward=reshard,
            buckets=buckets,
        )
        peaks.append(predict(spec, cluster=cluster, job=job, plan=plan).peak_reserved_bytes)
    return ((peaks[0] - peaks[1]) / GIB,)


def losses(quantity: str, inputs: Inputs) -> tuple[float, ...]:
    """Tell why none of the losses measured in isolation is comparable."""
    if "unfused" in quantity:
        raise OutOfScope("cross-entropy on 16-bit logits; Hugging Face's loss, which is modelled, widens them to fp32")
    if "Liger" in quantity:
        raise OutOfScope(
            "Liger 0.4.2 in a loop that keeps the last iteration's gradients and graph: four tensors of the weight's "
            "size, where a training step has two"
        )
    raise OutOfScope("torchtitan's chunks of 16-bit logits that all exist; ours take the head along")


def times(quantity: str, inputs: Inputs) -> tuple[float, ...]:
    """Tell why times of one layer are not comparable."""
    raise OutOfScope("measured milliseconds of a layer under tensor parallelism")


def context(quantity: str, inputs: Inputs) -> tuple[float, ...]:
    """Tell why the context is not comparable."""
    raise OutOfScope("a measured figure of one driver and torch version, without a tolerance")


MEMORY_FORMULAS: dict[str, Formula] = {
    "KACT": megatron_activations,
    "KRAT": megatron_ratios,
    "KTIME": times,
    "ZERO2M": measured_limits,
    "SLOPE": torchtitan_steps,
    "LOGIT": losses,
    "CTX": context,
}
