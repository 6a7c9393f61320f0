"""Start what was prepared; what it ended with is said in words where it was killed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping

from scaling.launch import process
from scaling.launch.prepare import Launch, program_path, runnable
from scaling.launch.world import check_devices
from scaling.recovery.killed import HostWatch


def start(launch: Launch, *, environ: Mapping[str, str]) -> int:
    """Run the launch until it ends; return its exit code as a shell tells it.

    Raises:
        LaunchError: this machine has fewer GPUs than the plan has ranks here, or the launcher is not installed.
    """
    (command,) = launch.commands
    ready = runnable(command)
    if not launch.decision.cluster.gpu.is_cpu:
        import torch

        check_devices(launch.decision.cluster, torch.cuda.device_count())
    watch = HostWatch(launch.decision, launch.config)
    print(command.line, file=sys.stderr, flush=True)
    code = process.run(ready.words, environ=environ)
    if code and (_was_killed(code) or watch.kills):
        what = f"{launch.choice.launcher} ended with exit code {code}: a process was killed (signal 9)"
        print("\n  ".join([f"error: {what}", *watch.lines()]), file=sys.stderr, flush=True)
    return 128 - code if code < 0 else code


def submit_script(script: str) -> int:
    """Hand a script to ``sbatch`` and return its exit code.

    Raises:
        LaunchError: there is no sbatch here.
    """
    return subprocess.run([program_path("sbatch")], input=script, text=True, check=False).returncode


def _was_killed(code: int) -> bool:
    """Whether the exit code is that of SIGKILL: of the launcher, in a shell's way, or in that of ``deepspeed``."""
    return code in (-9, 128 + 9, 256 - 9)
