"""Train exactly what a plan says.

Started by ``accelerate launch … -m scaling.train``, ``deepspeed --module scaling.train``, ``torchrun -m scaling.train``
or, for one process, ``python -m scaling.train``.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from scaling.interrupt import RunStatus, ending_on_signals
from scaling.launch_env import LaunchEnvironment, read_launch_environment
from scaling.ranks import report_error, results_only_on_stdout, set_up_logging
from scaling.train_arguments import parse_arguments
from strategies.errors import ScalingError

# torch reads this when it is imported. Its C++ side warns about options that the DDP engine has chosen on purpose.
os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
if "PYTORCH_ALLOC_CONF" not in os.environ:
    # Segments that grow leave far fewer holes: replayed runs need 1 % more than their tensors instead of up to 19 %
    # (benchmarks/results/allocator_slack.json). The older name is read by every version from 2.1 on.
    os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")


def main(argv: Sequence[str] | None = None) -> int:
    """Train as the flags say; return the process's exit code: 0 done or stopped and saved, 2 bad input.

    Raises:
        SystemExit: 130 after Ctrl-C, 143 after SIGTERM before or after training.
    """
    rank = 0
    try:
        launch = read_launch_environment(os.environ)
        rank = launch.rank
        set_up_logging(is_main=launch.is_main)
        with ending_on_signals(is_main=launch.is_main) as status:
            _train(sys.argv[1:] if argv is None else argv, launch, status)
    except ScalingError as error:
        report_error(error, rank=rank)
        return error.exit_code
    return 0


def _train(argv: Sequence[str], launch: LaunchEnvironment, status: RunStatus) -> None:
    arguments = parse_arguments(argv)
    config = arguments.config
    with results_only_on_stdout() as results:
        # torch and the rest take seconds to import: not before the flags are known to be right.
        from scaling.training_run import prepare, run
        from strategies.serialize import to_json

        outcome = run(prepare(config, launch, environ=os.environ), config, launch, status=status)
        if launch.is_main:
            results.write(to_json(outcome) if arguments.json else "\n".join(outcome.lines()) + "\n")


if __name__ == "__main__":
    sys.exit(main())
