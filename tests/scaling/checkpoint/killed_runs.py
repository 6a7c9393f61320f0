"""A small `benchmarks.chaos`: one strategy, a handful of kills; writes what came of it as JSON.

python -m tests.scaling.checkpoint.killed_runs FOLDER
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

from benchmarks.chaos import ids_by_step, import_all, numbers_by_step, prepare, torment
from scaling.checkpoint.manifest import read_manifest
from scaling.checkpoint.names import find_checkpoints

STEPS, NUM_KILLS, SEED = 16, 4, 3


def main(folder: Path) -> None:
    import_all(["ddp"])
    command = prepare(folder, "ddp", steps=STEPS)
    tally = torment(command, "ddp", num_kills=NUM_KILLS, draw=random.Random(SEED), longest_s=1.0, most_starts=30)
    killed = command.again(0)
    told = {
        "kills": sum(tally.kills.values()),
        "failed_starts": tally.failed_starts,
        "finished_runs": tally.finished_runs,
        "different_runs": tally.different_runs,
        "ids": {"undisturbed": ids_by_step(command), "killed": ids_by_step(killed)},
        "numbers": numbers_by_step(killed.out),
        "num_samples": int(read_manifest(find_checkpoints(command.out / "checkpoints")[0]).identity["num_samples"]),
    }
    (folder / "told.json").write_text(json.dumps(told))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
