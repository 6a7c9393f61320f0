"""Where DeepSpeed keeps this rank's part of a complete gradient, between the last backward and the step.

Written against deepspeed 0.19.8, utils/tensor_fragment.py. Its ``safe_get_full_grad`` gives whole gradients, and makes
room for each of them in fp32 on every rank.
"""

from __future__ import annotations

from typing import Any

import torch


def gradient_in_partition(parameter: Any, *, rank: int) -> torch.Tensor | None:
    """Return the part under stages 1 and 2, None where the parameter lies in other ranks' partitions alone."""
    mapping = parameter._hp_mapping
    if mapping is None:
        return None
    part: torch.Tensor = mapping.get_lp_grad_fragment(parameter._index_in_param_group).flatten()
    address = mapping.lp_fragment_address
    if part.numel() > address.numel:  # a whole one
        part = part.narrow(0, address.start, address.numel)
    return part


def partitioned_gradient(parameter: Any, *, rank: int) -> torch.Tensor:
    """Return the part under stage 3 in fp32, without what fills up the last ranks' parts."""
    from deepspeed.utils import safe_get_local_grad

    part: torch.Tensor = safe_get_local_grad(parameter).flatten()
    count = min(part.numel(), max(0, parameter.ds_numel - rank * part.numel()))
    return part.narrow(0, 0, count)
