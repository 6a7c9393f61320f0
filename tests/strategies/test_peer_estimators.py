from __future__ import annotations

from itertools import product

import pytest

from benchmarks.peer_estimators import accelerate_training, deepspeed_zero2, deepspeed_zero3, largest_module_params
from strategies.load_model import load_model_spec

SIZES = [(1, 1), (8, 1), (8, 4)]
PARAMS, LAYER = 2_851_000_001, 32_000_003


@pytest.mark.deepspeed
@pytest.mark.parametrize(("size", "offload"), list(product(SIZES, (False, True))))
def test_zero2_estimate_matches_deepspeed(size: tuple[int, int], offload: bool) -> None:
    from deepspeed.runtime.zero.stage_1_and_2 import estimate_zero2_model_states_mem_needs

    host, gpu = estimate_zero2_model_states_mem_needs(PARAMS, *size, cpu_offload=offload)
    ours = deepspeed_zero2(PARAMS, gpus_per_node=size[0], nodes=size[1], offload_optimizer=offload)
    assert (ours.host_bytes, ours.gpu_bytes) == (host, gpu)


@pytest.mark.deepspeed
@pytest.mark.parametrize(
    ("size", "offload", "init"), list(product(SIZES, ((False, False), (True, False), (True, True)), (False, True)))
)
def test_zero3_estimate_matches_deepspeed(size: tuple[int, int], offload: tuple[bool, bool], init: bool) -> None:
    from deepspeed.runtime.zero.stage3 import estimate_zero3_model_states_mem_needs

    optimizer, param = offload
    host, gpu, _ = estimate_zero3_model_states_mem_needs(
        PARAMS, LAYER, *size, cpu_offload=optimizer, cpu_offload_params=param, zero_init=init
    )
    ours = deepspeed_zero3(
        PARAMS,
        largest_layer_params=LAYER,
        gpus_per_node=size[0],
        nodes=size[1],
        offload_optimizer=optimizer,
        offload_param=param,
        zero_init=init,
    )
    assert (ours.host_bytes, ours.gpu_bytes) == (host, gpu)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_training_estimate_matches_accelerate(dtype: str) -> None:
    from accelerate.commands.estimate import estimate_training_usage

    usage = estimate_training_usage(4 * PARAMS, dtype)
    assert accelerate_training(PARAMS, mixed_precision=dtype) == max(usage.values())


def test_largest_module_is_deepspeeds_largest_layer() -> None:
    # DeepSpeed docs, memory.rst: t5-large has 32M largest layer params: its embedding, 32128 x 1024.
    assert largest_module_params(load_model_spec("t5-large")) == 32128 * 1024
