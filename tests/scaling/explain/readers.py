"""The installed readers, as their programs call them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

from scaling.explain.explanation import Explanation
from scaling.explain.tree import AUTO, Tree, drop, get, leaves, put


def refused_by_deepspeed(tree: Tree, *, ranks: int = 1) -> str | None:
    """Return why DeepSpeed's reader refuses a configuration for so many data-parallel ranks, None where it takes it."""
    from deepspeed.runtime import config

    unit = SimpleNamespace(get_data_parallel_world_size=lambda: ranks)
    with mock.patch.object(config.dist, "get_rank", return_value=0):
        try:
            config.DeepSpeedConfig(deepcopy(tree), mpu=unit)
        except Exception as error:  # it raises whatever it likes
            return f"{type(error).__name__}: {error}"
    return None


def as_handed_over(found: Explanation) -> Tree:
    """Return the DeepSpeed configuration of a run as the Trainer hands it over: what it has not yet is filled in."""
    assert found.deepspeed is not None
    tree = deepcopy(found.deepspeed)
    for path, value in list(leaves(tree)):
        if value == AUTO:
            drop(tree, path)
    if get(tree, "autotuning.enabled", False) and isinstance(stages := get(tree, "zero_optimization.stage"), list):
        put(tree, "zero_optimization.stage", stages[0])  # the autotuner tries one after another
    if "train_batch_size" not in tree and "train_micro_batch_size_per_gpu" not in tree:
        tree["train_micro_batch_size_per_gpu"] = 1
    return tree


def refused_by_accelerate(path: Path) -> str | None:
    """Return why accelerate's reader, or its DeepSpeedPlugin, refuses a file; None where both take it."""
    from accelerate.commands.config.config_args import load_config_from_file

    try:
        config = load_config_from_file(str(path))
        if str(getattr(config.distributed_type, "value", "")) == "DEEPSPEED":
            plugin_of(config)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def plugin_of(config: Any) -> Any:
    """Return the plugin that a program makes under ``accelerate launch``: settings travel by environment."""
    from accelerate.commands.launch import launch_command_parser
    from accelerate.utils.dataclasses import DeepSpeedPlugin
    from accelerate.utils.launch import prepare_deepspeed_cmd_env

    arguments = launch_command_parser().parse_args(["program.py"])
    for name, value in vars(config).items():
        for key, inner in value.items() if isinstance(value, dict) else ((name, value),):
            if getattr(arguments, key, None) in (None, False) and name not in (
                "compute_environment",
                "distributed_type",
            ):
                setattr(arguments, key, inner)
    fields = [*config.deepspeed_config, *(["mixed_precision"] if config.mixed_precision else [])]
    arguments.deepspeed_fields_from_accelerate_config = ",".join(fields)
    arguments.mixed_precision = config.mixed_precision or "no"
    arguments.num_cpu_threads_per_process = 1
    arguments.main_process_port = arguments.main_process_port or 0
    arguments.num_machines = 1
    arguments.num_processes = config.num_processes
    _, environment = prepare_deepspeed_cmd_env(arguments)
    with _environment(environment):
        plugin = DeepSpeedPlugin()
        plugin.set_mixed_precision(arguments.mixed_precision)
        return plugin


@contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    with mock.patch.dict(os.environ, values, clear=True):
        yield
