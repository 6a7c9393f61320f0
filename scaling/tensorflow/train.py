"""Train exactly what a plan for TensorFlow says: ``python -m scaling.tensorflow.train``, one process for all devices.

The flags, the run file and what a run leaves are those of ``scaling.train``.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from scaling.interrupt import RunStatus, ending_on_signals
from scaling.ranks import report_error, results_only_on_stdout, set_up_logging
from scaling.tensorflow_extra import count_cpu_memory
from scaling.train_arguments import parse_arguments
from strategies.errors import ScalingError


def main(argv: Sequence[str] | None = None) -> int:
    """Train as the flags say; return the process's exit code: 0 done or stopped and saved, 2 bad input.

    Raises:
        SystemExit: 130 after Ctrl-C, 143 after SIGTERM before or after training.
    """
    try:
        set_up_logging(is_main=True)
        with ending_on_signals(is_main=True) as status:
            _train(sys.argv[1:] if argv is None else argv, status)
    except ScalingError as error:
        report_error(error, rank=0)
        return error.exit_code
    return 0


def _train(argv: Sequence[str], status: RunStatus) -> None:
    arguments = parse_arguments(argv, program="scaling.tensorflow.train")
    with results_only_on_stdout() as results:
        count_cpu_memory(os.environ)
        # TensorFlow takes seconds to import: not before the flags are known to be right.
        from scaling.tensorflow.training import prepare, run
        from strategies.serialize import to_json

        outcome = run(prepare(arguments.config), arguments.config, status=status)
        results.write(to_json(outcome) if arguments.json else "\n".join(outcome.lines()) + "\n")


if __name__ == "__main__":
    sys.exit(main())
