"""ZeRO-1 and 2: what DeepSpeed keeps between micro batches, set back to before a window. For deepspeed 0.19.8.

DeepSpeed itself knows one such moment, a step that fp16 skips (``step`` in runtime/zero/stage_1_and_2.py), and
`drop_gradients` does the same. Nothing there expects a backward that an exception ends: `abandon_reductions` is ours.
"""

from __future__ import annotations

from typing import Any

import torch

INITIAL_MICRO_STEP_ID = -1
"""runtime/zero/stage_1_and_2.py."""


def abandon_reductions(optimizer: Any) -> None:
    """Empty the buckets of a backward that did not come to its end, so that the next one begins with none."""
    optimizer._backward_active_depth = 0
    optimizer._backward_hook_state.reset_for_new_step()
    for bucket in optimizer.ipg_buckets.values():
        bucket.clear()
    optimizer.extra_large_param_to_reduce.clear()
    optimizer.previous_reduced_grads.clear()
    optimizer.params_already_reduced[:] = [False] * len(optimizer.params_already_reduced)
    optimizer._release_ipg_buffers()
    optimizer.zero_grad(set_to_none=True)


def drop_gradients(optimizer: Any) -> None:
    """Forget the gradients of the window, reduced or not."""
    optimizer.micro_step_id = INITIAL_MICRO_STEP_ID
    optimizer.zero_grad(set_to_none=True)
    optimizer._release_preflattened_grad_buffers()
    if optimizer.cpu_offload:
        optimizer.reset_cpu_buffers()
        optimizer._offload_accumulated_param_ids = set()
        return
    for group in optimizer.averaged_gradients:
        optimizer.averaged_gradients[group] = None
    for group in optimizer.all_grad_tensors:
        optimizer.all_grad_tensors[group] = None


def forget_moments(optimizer: torch.optim.Optimizer) -> None:
    """Set every state of the optimizer to zero, its counts of steps included."""
    for states in optimizer.state.values():
        for name, state in states.items():
            if isinstance(state, torch.Tensor) and not name.startswith("qmap"):  # bitsandbytes' table of 8-bit numbers
                state.zero_()
            elif isinstance(state, int):  # DeepSpeed's own optimizers count in Python
                states[name] = 0
    for group in optimizer.param_groups:
        if "step" in group:
            group["step"] = 0
