"""``python -m scaling.doctor.torch_probe``: what torch sees here, as JSON. A process of its own: torch may not load."""

from __future__ import annotations

import json
import sys
from typing import Any


def main() -> None:
    """Print what torch sees on stdout."""
    found: dict[str, Any] = {}
    try:
        import torch
        import torch.distributed as dist

        has_groups = dist.is_available()
        found["backends"] = [
            name for name in ("gloo", "nccl") if has_groups and getattr(dist, f"is_{name}_available")()
        ]
        if torch.version.cuda or torch.version.hip:
            found |= _devices(torch)
    except Exception as error:
        found["problem"] = f"{type(error).__name__}: {error}"
    json.dump(found, sys.stdout)


def _devices(torch: Any) -> dict[str, Any]:
    try:
        torch.cuda.init()
    except Exception as error:  # no driver, one that is too old, no device
        return {"gpu_problem": str(error)}
    every = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
    return {
        "devices": [
            {"name": each.name, "memory_bytes": each.total_memory, "capability": [each.major, each.minor]}
            for each in every
        ],
        "architectures": torch.cuda.get_arch_list(),
    }


if __name__ == "__main__":
    main()
