"""16-bit computation over fp32 weights, the same under every engine that keeps whole weights while it computes."""

from __future__ import annotations

from functools import wraps
from typing import Any

import torch
from torch import nn

from scaling.number_formats import AUTOCAST
from strategies.job import Precision


def autocast_forward(model: nn.Module, *, precision: Precision, device: torch.device) -> None:
    """Let the model compute in 16 bits where torch's autocast says so, if the precision asks for it.

    Inside the model's own forward, because DeepSpeed switches off an autocast that is entered around its engine. Not by
    DeepSpeed's ``torch_autocast`` section (0.19.8): it reduces the gradients of linear layers in 16 bits, where DDP
    reduces fp32 ones, and stays on for every later engine of the process.
    """
    compute_format = AUTOCAST.get(precision)
    if compute_format is None:
        return
    compute: Any = model.forward

    @wraps(compute)
    def forward(*args: Any, **kwargs: Any) -> Any:
        with torch.autocast(device.type, dtype=compute_format):
            return compute(*args, **kwargs)

    model.forward = forward
