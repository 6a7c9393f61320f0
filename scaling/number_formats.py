"""torch's types for the number formats of a job."""

from __future__ import annotations

from typing import Final

import torch

from strategies.job import Precision

AUTOCAST: Final = {Precision.FP16_AUTOCAST: torch.float16, Precision.BF16_AUTOCAST: torch.bfloat16}
"""What is computed in over fp32 weights, where autocast says so."""
