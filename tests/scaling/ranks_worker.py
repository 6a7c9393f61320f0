"""Runs on two ranks: an action that fails on rank 1 only. Each rank ends as scaling.train does."""

from __future__ import annotations

import os
import sys

import torch

from scaling.launch_env import join_process_group, read_launch_environment
from scaling.ranks import report_error, together
from strategies.errors import ScalingError


def main() -> int:
    launch = read_launch_environment(os.environ)
    join_process_group(launch, device=torch.device("cpu"), timeout_s=60)

    def action() -> int:
        if launch.rank == 1:
            raise ScalingError("the disk of rank 1 is full")
        return launch.rank

    try:
        together(action)
    except ScalingError as error:
        report_error(error, rank=launch.rank)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
