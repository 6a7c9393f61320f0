"""The accelerate YAML of a plan: as little as possible, everything else is in plan.json and deepspeed.json.

Source of the keys: accelerate 1.15.0, commands/config/config_args.py. With ``deepspeed_config_file`` no flat DeepSpeed
field and no ``mixed_precision`` may stand in the file; unknown keys inside nested blocks would pass silently.
"""

from __future__ import annotations

import json
from pathlib import Path

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
        if cluster.num_nodes > 1:
            # By default it starts `deepspeed` on every node, which starts them all by pdsh, from a host file "None".
            lines += ["  deepspeed_multinode_launcher: standard"]
    else:
        # The engine sets the precision itself; accelerate's own casting stays off.
        lines += ["mixed_precision: 'no'"]
    return "\n".join(lines) + "\n"


def _distributed_type(decision: Decision) -> str:
    """Return accelerate's name for how processes are started.

    MULTI_GPU for CPU ranks too: MULTI_CPU would start one process and leave the others to MPI (accelerate 1.15.0,
    commands/launch.py, launch_command). The trainer takes the device from the plan, not from here.
    """
    if decision.plan.strategy in STAGES:
        return "DEEPSPEED"
    return "'NO'" if decision.cluster.gpus == 1 else "MULTI_GPU"
