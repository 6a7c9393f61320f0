"""Metrics for Weights & Biases, which keeps them in the run's folder where it has no account to send them to."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, final

import wandb

PROJECT = "memory-scaling"
WAIT_S = 60.0
"""For its servers, at the start and at the end; the other ranks wait as long for the main one."""

logger = logging.getLogger(__name__)


@final
class WandbLogger:
    """One run of W&B. Its own variables (WANDB_PROJECT, WANDB_NAME, WANDB_MODE, …) are obeyed."""

    def __init__(self, folder: Path, *, settings: Mapping[str, Any]) -> None:
        own = wandb.Settings(
            init_timeout=WAIT_S,
            login_timeout=WAIT_S,  # where it would ask for a key and nobody answers
            finish_timeout=WAIT_S,
            finish_timeout_raises=True,
            console="off",  # what is printed stays here
            disable_code=True,  # and so does the code
            disable_git=True,
            silent=True,
        )
        mode: Literal["offline"] | None = None if _is_asked_online() else "offline"
        project = os.environ.get("WANDB_PROJECT", PROJECT)
        self._run = wandb.init(project=project, dir=str(folder), config=dict(settings), mode=mode, settings=own)
        if mode == "offline":
            logger.info("no WANDB_API_KEY or WANDB_MODE is set: wandb sync %s sends the run later", self._run.dir)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=step)

    def close(self, *, failed: bool) -> None:
        self._run.finish(exit_code=int(failed))


def _is_asked_online() -> bool:
    return bool(os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_MODE"))
