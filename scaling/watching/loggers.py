"""Programs that draw metrics while they come. None of them may end a run or hold it up."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from importlib.util import find_spec
from typing import Any, Protocol, final

from scaling.errors import ConfigError, one_line
from scaling.run_folder import TENSORBOARD_FOLDER
from scaling.train_config import LoggerName, TrainConfig
from scaling.watching.records import EvaluationRecord, LayerRecord, Record, SaveFailureRecord, StepRecord
from scaling.watching.secrets import without_secrets

logger = logging.getLogger(__name__)


class Logger(Protocol):
    """One program."""

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Take in the values of a record."""

    def close(self, *, failed: bool) -> None:
        """Hand over what is still held back; ``failed``: the run ends before its last step."""


def check_loggers(names: Sequence[LoggerName]) -> None:
    """Refuse a logger whose package is missing.

    Raises:
        ConfigError: names the package and how to get it.
    """
    if missing := [name.value for name in names if find_spec(name) is None]:
        raise ConfigError(
            f"loggers={','.join(missing)}: not installed here; pip install 'memory-scaling[loggers]', or leave it out: "
            f"metrics.jsonl has everything"
        )


def open_loggers(config: TrainConfig) -> list[GuardedLogger]:
    """Return the loggers that ``config`` asks for; one that fails says so and logs nothing."""
    openers: dict[LoggerName, Callable[[TrainConfig], Logger]] = {
        LoggerName.TENSORBOARD: _tensorboard,
        LoggerName.WANDB: _wandb,
    }
    return [GuardedLogger(name, openers[name], config) for name in dict.fromkeys(config.loggers)]


def _tensorboard(config: TrainConfig) -> Logger:
    from scaling.watching.tensorboard_logger import TensorBoardLogger

    return TensorBoardLogger(config.out / TENSORBOARD_FOLDER, settings=shown_settings(config))


def _wandb(config: TrainConfig) -> Logger:
    from scaling.watching.wandb_logger import WandbLogger

    return WandbLogger(config.out, settings=shown_settings(config))


@final
class GuardedLogger:
    """A logger whose first failure is told once and ends it, and nothing else."""

    def __init__(self, name: str, opener: Callable[[TrainConfig], Logger], config: TrainConfig) -> None:
        self._name = name
        self._logger: Logger | None = None
        with self._warning():
            self._logger = opener(config)

    def log(self, record: Record) -> None:
        """Hand on a record."""
        if self._logger is not None:
            with self._warning():
                self._logger.log(record.step, named_values(record))

    def close(self, *, failed: bool) -> None:
        """Let the logger finish."""
        if self._logger is not None:
            with self._warning():
                self._logger.close(failed=failed)

    @contextmanager
    def _warning(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # of any kind: full disks, no network, their own
            self._logger = None
            # Secrets go first: a cut through one would hide it from what looks for it.
            reason = without_secrets(one_line(error, max_chars=10_000))[:300]
            logger.warning(
                "%s logs nothing from now on (%s); training goes on, and metrics.jsonl has everything",
                self._name,
                reason,
            )


def named_values(record: Record) -> dict[str, float]:
    """Return the values of a record under the names that they are drawn with; what is None or text is left out.

    A name is ``train/``, ``eval/`` or ``layers/`` and the field's name in metrics.jsonl.
    """
    match record:
        case StepRecord():
            return _numbers("train/", asdict(record))
        case EvaluationRecord():
            values = {name.removeprefix("eval_"): value for name, value in asdict(record).items()}
            return _numbers("eval/", values | values.pop("metrics"))
        case LayerRecord():
            return _numbers("layers/", asdict(record)["layers"])
        case SaveFailureRecord():
            return {"save/failed": 1.0}


def _numbers(prefix: str, values: Mapping[str, Any]) -> dict[str, float]:
    found: dict[str, float] = {}
    for name, value in values.items():
        if isinstance(value, tuple):
            found |= {f"{prefix}{name}/{number}": float(each) for number, each in enumerate(value)}
        elif isinstance(value, Mapping):
            found |= _numbers(f"{prefix}{name}/", value)
        elif isinstance(value, int | float) and name != "step":
            found[f"{prefix}{name}"] = float(value)
    return found


def shown_settings(config: TrainConfig) -> dict[str, Any]:
    """Return the settings of a run for people to look at, without secrets."""
    text = without_secrets(json.dumps(asdict(config), default=str))
    settings: dict[str, Any] = json.loads(text)
    return settings
