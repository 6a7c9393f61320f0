"""The accelerate YAML of a plan: as little as possible, everything else is in plan.json and deepspeed.json.

Source of the keys: accelerate 1.15.0, commands/config/config_args.py. With ``deepspeed_config_file`` no flat DeepSpeed
field and no ``mixed_precision`` may stand in the file; unknown keys inside nested blocks would pass silently.
"""

from __future__ import annotations

import json
from pathlib import Path

from strategies.cluster import Cluster
from strategies.decision import Decision
from strategies.emit.deepspeed import STAGES


def accelerate_yaml(decision: Decision, *, deepspeed_json: Path) -> str:
    """Return the YAML text for ``accelerate launch --config_file``; ``deepspeed_json`` is where the JSON is written."""
    cluster = decision.cluster
    lines = [
        "compute_environment: LOCAL_MACHINE",
        f"distributed_type: {_distributed_type(decision)}",
        f"num_machines: {cluster.num_nodes}",
        "machine_rank: 0",
        f"num_processes: {cluster.gpus}",
        "main_training_function: main",
    ]
    if decision.plan.strategy in STAGES:
        lines += [
            "deepspeed_config:",
            f"  deepspeed_config_file: {json.dumps(str(deepspeed_json))}",
            "  zero3_init_flag: false",
        ]
    else:
        # The engine sets the precision itself; accelerate's own casting stays off.
        lines += ["mixed_precision: 'no'"]
        lines += ["use_cpu: true"] if cluster.gpu.is_cpu else []
    return "\n".join(lines) + "\n"


def _distributed_type(decision: Decision) -> str:
    if decision.plan.strategy in STAGES:
        return "DEEPSPEED"
    return _plain_distributed_type(decision.cluster)


def _plain_distributed_type(cluster: Cluster) -> str:
    if cluster.gpus == 1:
        return "'NO'"
    return "MULTI_CPU" if cluster.gpu.is_cpu else "MULTI_GPU"
