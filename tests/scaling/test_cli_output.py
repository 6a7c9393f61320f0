"""What is printed when it cannot be."""

from __future__ import annotations

import subprocess
import sys


def test_a_full_device_behind_stdout_is_one_line() -> None:
    command = [sys.executable, "-m", "scaling", "estimate", "llama-demo", "--gpu", "cpu", "--gpus", "2"]
    with open("/dev/full", "w") as full:  # every write to it fails with ENOSPC (full(4))
        done = subprocess.run(
            [*command, "--seq-len", "128", "--strategy", "ddp"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 2
    assert done.stderr == "error: cannot print the answer: No space left on device; send it elsewhere\n"
