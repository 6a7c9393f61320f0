"""What other estimators answer, for comparison: DeepSpeed's two, and ``accelerate estimate-memory``.

Formulas written again, so that tables need no framework; `tests/strategies/test_peer_estimators.py` compares them with
the installed packages.
"""

from __future__ import annotations

from dataclasses import dataclass

from strategies.model_spec import ModelSpec

BUFFER_FACTOR = 1.5
"""DeepSpeed's ``additional_buffer_factor``, on host memory only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerEstimate:
    """Bytes of model states that another tool predicts: per GPU, and per node in host memory."""

    gpu_bytes: int
    host_bytes: int


def deepspeed_zero2(
    total_params: int, *, gpus_per_node: int, nodes: int, offload_optimizer: bool, as_documented: bool = False
) -> PeerEstimate:
    """Return DeepSpeed's estimate for stage 2.

    Source: deepspeed 0.19.8, runtime/zero/stage_1_and_2.py, estimate_zero2_model_states_mem_needs: 2 P + 18 P / N.
    ``as_documented``: an older one, 4 P + 16 P / N, whose figures stand in docs/code-docs/source/memory.rst.
    """
    gpus = nodes * gpus_per_node
    if offload_optimizer:
        return PeerEstimate(
            gpu_bytes=2 * total_params, host_bytes=int(total_params * max(4 * gpus, 16) * BUFFER_FACTOR)
        )
    whole, shared = (4, 16) if as_documented else (2, 18)
    return PeerEstimate(
        gpu_bytes=whole * total_params + int(shared * total_params / gpus),
        host_bytes=int(total_params * 4 * gpus_per_node * BUFFER_FACTOR),
    )


def deepspeed_zero3(
    total_params: int,
    *,
    largest_layer_params: int,
    gpus_per_node: int,
    nodes: int,
    offload_optimizer: bool,
    offload_param: bool,
    zero_init: bool,
) -> PeerEstimate:
    """Return DeepSpeed's estimate for stage 3.

    Source: deepspeed 0.19.8, runtime/zero/stage3.py, estimate_zero3_model_states_mem_needs.
    """
    kept = _kept_on_gpu(offload_optimizer=offload_optimizer, offload_param=offload_param)
    gpu = 4 * largest_layer_params + int(kept * total_params / (nodes * gpus_per_node))
    loaded = 4 * gpus_per_node
    if offload_optimizer:
        on_host = (18 if offload_param else 16) / nodes
        host = total_params * (on_host if zero_init else max(loaded, on_host))
    else:
        host = loaded * (largest_layer_params if zero_init else total_params)
    return PeerEstimate(gpu_bytes=gpu, host_bytes=int(host * BUFFER_FACTOR))


def _kept_on_gpu(*, offload_optimizer: bool, offload_param: bool) -> int:
    """Return bytes per parameter, divided over the ranks."""
    if not offload_optimizer:
        return 18
    return 0 if offload_param else 2


def largest_module_params(spec: ModelSpec) -> int:
    """Return the parameters of the largest module, children left out: what DeepSpeed calls the largest layer."""
    modules: dict[str, int] = {}
    for group in spec.groups:
        for tensor in group.tensors:
            module = tensor.name.rpartition(".")[0]
            modules[module] = modules.get(module, 0) + tensor.num_params
    return max(modules.values())


def accelerate_training(total_params: int, *, mixed_precision: str) -> int:
    """Return the bytes that ``accelerate estimate-memory`` prints for training with Adam at batch size 1.

    The largest of weights, gradients, optimizer states and step; activations and sharding are not in it.
    Source: accelerate 1.15.0, commands/estimate.py, estimate_training_usage.
    """
    weights = 4 * total_params
    return 4 * weights if mixed_precision == "float32" else 2 * weights
