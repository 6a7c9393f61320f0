"""How the package computes the rows of ``reference/analytic_references.csv``: one function a category.

Each takes the row's quantity and inputs and returns the values in the row's unit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from benchmarks.peer_estimators import PeerEstimate, deepspeed_zero2, deepspeed_zero3, largest_module_params
from strategies.architectures import spec_from_config
from strategies.job import Job, Precision
from strategies.load_model import load_model_spec
from strategies.memory.model_states import ModelStates, model_states
from strategies.model_spec import GroupRole, ModelSpec
from strategies.plan import Plan, StrategyName
from strategies.registry import STRATEGIES
from strategies.time.flops import MfuDefinition, attention_recompute_flops, model_flops, utilisation
from strategies.time.traffic import traffic
from strategies.units import GIB, MIB

Inputs = Mapping[str, Any]
Formula = Callable[[str, Inputs], tuple[float, ...]]
GIGA = 10**9
STAGES = (StrategyName.DDP, StrategyName.ZERO1, StrategyName.ZERO2, StrategyName.ZERO3)


class OutOfScope(Exception):
    """Why a row is not compared."""


def states(params: float, *, stage: int, ranks: int) -> ModelStates:
    """Return the model states of one rank under 16-bit Adam."""
    return model_states(round(params), sharding=STRATEGIES[STAGES[stage]].sharding(ranks), precision=Precision.FP16)


def zero_table_1(quantity: str, inputs: Inputs) -> tuple[float, ...]:
    """Return GB of model states."""
    return (states(inputs["params"], stage=inputs["zero_stage"], ranks=inputs["dp"]).total_bytes / GIGA,)


def zero_table_2(quantity: str, inputs: Inputs) -> tuple[float, ...]:
    """Return the billions of parameters whose model states fill the GPUs of one model-parallel group."""
    per_param = states(GIGA, stage=inputs["zero_stage"], ranks=inputs["dp"]).total_bytes / GIGA
    return (inputs["mp"] * inputs["gpu_mem_gb"] / per_param,)


def zero_volume(quantity: str, inputs: Inputs) -> tuple[float, ...]:
    """Return elements moved per parameter, or GB of optimizer states with the fp32 master."""
    if quantity == "communication volume per step":
        stages = [int(stage) for stage in str(inputs["zero_stage"]).split(",")]
        volumes = {traffic(_plan(STAGES[stage])).total for stage in stages}
        assert len(volumes) == 1, volumes
        return (float(volumes.pop()),)
    found = states(inputs["params"], stage=inputs.get("zero_stage", 0), ranks=inputs["dp"])
    return ((found.master_weights + found.optimizer_states) / GIGA,)


def _plan(strategy: StrategyName) -> Plan:
    buckets = STRATEGIES[strategy].buckets(load_model_spec("gpt2"), Job(seq_len=1024, global_batch_size=1))
    return Plan(strategy=strategy, micro_batch_size=1, gradient_accumulation_steps=1, buckets=buckets)


def deepspeed_2(quantity: str, inputs: Inputs) -> tuple[float, ...]:
    """Return GiB of DeepSpeed's estimate for stage 2, as its documentation prints it."""
    estimate = deepspeed_zero2(
        _total_params(inputs),
        gpus_per_node=inputs["gpus_per_node"],
        nodes=inputs["nodes"],
        offload_optimizer=inputs["offload_optimizer"],
        as_documented=True,
    )
    return _asked(estimate, quantity, GIB)


def deepspeed_3(quantity: str, inputs: Inputs) -> tuple[float, ...]:
    """Return GiB (MiB in the worked example) of DeepSpeed's estimate for stage 3."""
    offload = inputs.get("offload", "")
    estimate = deepspeed_zero3(
        _total_params(inputs),
        largest_layer_params=round(inputs.get("largest_layer_params", 0)) or largest_module_params(_t5_3b()),
        gpus_per_node=inputs.get("gpus_per_node", inputs.get("gpus", 1)),
        nodes=inputs.get("nodes", 1),
        offload_optimizer=inputs.get("offload_optimizer", "optimizer" in offload),
        offload_param=inputs.get("offload_param", "param" in offload),
        zero_init=inputs.get("zero_init", True),
    )
    return _asked(estimate, quantity, MIB if "offload" in inputs else GIB)


def _total_params(inputs: Inputs) -> int:
    given = inputs.get("total_params")
    return round(given) if isinstance(given, float) else _t5_3b().num_params


def _t5_3b() -> ModelSpec:
    return load_model_spec("t5-3b")


def _asked(estimate: PeerEstimate, quantity: str, unit: int) -> tuple[float, ...]:
    host, gpu = estimate.host_bytes / unit, estimate.gpu_bytes / unit
    if quantity == "CPU / GPU":
        return host, gpu
    return (host,) if quantity.startswith("CPU") else (gpu,)


def gpt(*, hidden: int, layers: int, heads: int = 16, vocab: int = 51200, seq_len: int = 2048) -> ModelSpec:
    """Return Megatron-LM's GPT as the paper counts it: four times as wide an MLP, the head tied to the embedding."""
    config = {
        "model_type": "gpt2",
        "n_embd": hidden,
        "n_layer": layers,
        "n_head": heads,
        "vocab_size": vocab,
        "n_positions": seq_len,
    }
    return spec_from_config(config, name="gpt")


def megatron_utilisation(quantity: str, inputs: Inputs) -> tuple[float, ...]:
    """Return MFU, or HFU under selective recomputation, in percent."""
    spec = gpt(hidden=inputs["hidden"], layers=inputs["layers"], vocab=inputs["vocab"], seq_len=inputs["seq"])
    tokens = inputs["global_batch"] * inputs["seq"] / inputs["n_gpus"] / inputs["iter_s"]
    if quantity == "MFU":
        flops = model_flops(spec, seq_len=inputs["seq"], definition=MfuDefinition.MEGATRON)
    else:
        flops = attention_recompute_flops(spec, seq_len=inputs["seq"])
    peak = inputs["peak_tflops"] * 10**12
    return (100 * utilisation(flops, tokens_per_s_per_gpu=tokens, peak_flops_per_s=peak),)


def llm_foundry_mfu(quantity: str, inputs: Inputs) -> tuple[float, ...]:
    """Return MFU in percent."""
    config = {
        "model_type": "mpt",
        "d_model": inputs["d_model"],
        "n_layers": inputs["layers"],
        "n_heads": inputs["d_model"] // 128,
        "max_seq_len": inputs["seq"],
        "vocab_size": 50368,
    }
    flops = model_flops(spec_from_config(config, name=inputs["model"]), seq_len=inputs["seq"])
    rate, peak = inputs["tokens_per_s_per_gpu"], inputs["peak_tflops"] * 10**12
    return (100 * utilisation(flops, tokens_per_s_per_gpu=rate, peak_flops_per_s=peak),)


def logged_states(quantity: str, inputs: Inputs) -> tuple[float, ...]:
    """Return GiB of model states that a log prints, TB of a checkpoint's parts."""
    ranks = inputs.get("n_gpus", inputs.get("dp", 1))
    found = states(inputs["params"], stage=3 if ranks > 1 else 0, ranks=ranks)
    whole = states(inputs["params"], stage=0, ranks=1)
    held = {
        "allocated after ZeRO-3 partitioning": found.parameters / GIB,
        "allocated after loading the fp16 model": whole.parameters / GIB,
        "allocated after building the model": found.parameters / GIB,
        "allocated after ZeRO optimizer init": (found.total_bytes - found.gradients) / GIB,
        "checkpoint size fp16 part": whole.parameters / 10**12,
        "checkpoint size optimizer part": (whole.master_weights + whole.optimizer_states) / 10**12,
    }
    return (held[quantity],)


def llama_layer(quantity: str, inputs: Inputs) -> tuple[float, ...]:
    """Return MiB that one block of Llama 2 7B adds to the model states."""
    if "tp" in inputs:
        raise OutOfScope("tensor parallelism")
    if "time" in quantity:
        raise OutOfScope("measured milliseconds on a GPU that is not named")
    if quantity.startswith("activations"):
        raise OutOfScope("activations of Hetu-Galvatron's own blocks, not Hugging Face's")
    spec = load_model_spec("llama-2-7b")
    block = next(group for group in spec.groups if group.role is GroupRole.BLOCK)
    return (states(block.num_params_per_copy, stage=3, ranks=inputs["dp"]).total_bytes / MIB,)


FORMULAS: dict[str, Formula] = {
    "ZERO1": zero_table_1,
    "ZERO2": zero_table_2,
    "ZEROC": zero_volume,
    "DSZ2": deepspeed_2,
    "DSZ3": deepspeed_3,
    "KFLOP": megatron_utilisation,
    "LFMFU": llm_foundry_mfu,
    "LOG": logged_states,
    "LAYER": llama_layer,
}
