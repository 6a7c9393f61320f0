"""The random numbers of one process, as tensors: what dropout draws next, and what a data step draws in Python."""

from __future__ import annotations

import random

import numpy as np
import torch

CPU, DEVICE, PYTHON, NUMPY = "torch", "device", "python", "numpy"


def random_states(device: torch.device) -> dict[str, torch.Tensor]:
    """Return the state of every generator that training may draw from, by name, as 1-d CPU tensors."""
    _, words, _ = random.getstate()  # the third is a spare normal number, which is drawn anew
    keys = np.random.get_state(legacy=False)
    found = {
        CPU: torch.get_rng_state(),
        PYTHON: torch.tensor(words, dtype=torch.int64),
        NUMPY: torch.tensor([*keys["state"]["key"].tolist(), int(keys["state"]["pos"])], dtype=torch.int64),
    }
    if device.type == "cuda":
        found[DEVICE] = torch.cuda.get_rng_state(device)
    return found


def restore_random_states(states: dict[str, torch.Tensor], device: torch.device) -> None:
    """Go on drawing where ``states`` were taken."""
    torch.set_rng_state(states[CPU])
    words = states[PYTHON].tolist()
    random.setstate((3, tuple(words), None))
    *key, position = states[NUMPY].tolist()
    np.random.set_state(("MT19937", np.array(key, dtype=np.uint32), position, 0, 0.0))
    if device.type == "cuda" and DEVICE in states:
        torch.cuda.set_rng_state(states[DEVICE], device)
