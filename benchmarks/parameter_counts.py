"""Parameters of every preset: ours, computed from config.json alone, beside those of the transformers model.

Method: the transformers model is built from the same config.json on the meta device, without weights; names, shapes and
their order must agree, not only the sum. Usage: ``python -m benchmarks.parameter_counts``; writes
``benchmarks/results/parameter_counts.json``; exit code 1 if any preset differs.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scaling.auto_classes import AUTO_CLASSES
from strategies.load_model import model_spec, preset_names, resolve_preset
from strategies.model_spec import TaskKind

RESULTS = Path(__file__).parent / "results" / "parameter_counts.json"


def main() -> int:
    """Compare every preset, print the table and store it."""
    import torch
    import transformers

    rows = [compare(name) for name in preset_names()]
    print(f"{'preset':20} {'class':28} {'ours':>16} {'transformers':>16}  equal")
    for row in rows:
        print(f"{row['preset']:20} {row['class']:28} {row['ours']:>16,} {row['transformers']:>16,}  {row['equal']}")
    differing = [row["preset"] for row in rows if not row["equal"]]
    print(
        f"{len(rows) - len(differing)} of {len(rows)} presets agree in names, shapes, order and sum {differing or ''}"
    )
    versions = {"torch": torch.__version__, "transformers": transformers.__version__}
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps({"versions": versions, "presets": rows}, indent=2) + "\n")
    return 1 if differing else 0


def compare(name: str) -> dict[str, Any]:
    """Return the counts of one preset, and whether all names and shapes agree."""
    resolved = resolve_preset(name)
    assert resolved is not None  # the name comes from preset_names()
    spec = model_spec(resolved)
    model = meta_model(resolved.config, task=spec.task)
    theirs = named_shapes(model)
    return {
        "preset": name,
        "class": type(model).__name__,
        "ours": spec.num_params,
        "transformers": sum(parameter.numel() for parameter in model.parameters()),
        "equal": list(spec.parameters()) == theirs,
    }


def meta_model(config: Mapping[str, Any], *, task: TaskKind) -> Any:
    """Return the transformers model that ``config`` describes, on the meta device: shapes without memory."""
    import torch
    import transformers
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    settings = CONFIG_MAPPING[config["model_type"]].from_dict(dict(config))
    with torch.device("meta"):
        return getattr(transformers, AUTO_CLASSES[task]).from_config(settings)


def named_shapes(model: Any) -> list[tuple[str, tuple[int, ...]]]:
    """Return (name, shape) of the trainable tensors; a tied one counts once, as in ``named_parameters()``."""
    return [(name, tuple(parameter.shape)) for name, parameter in model.named_parameters()]


if __name__ == "__main__":
    sys.exit(main())
