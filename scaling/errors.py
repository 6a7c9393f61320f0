"""What goes wrong while executing. Every message says what is wrong, with the value, and what to do."""

from __future__ import annotations

from strategies.errors import ScalingError


class ConfigError(ScalingError):
    """The flags or the run file are not a valid training configuration."""


class LaunchError(ScalingError):
    """The processes were started in a way that the plan does not describe."""


class ModelError(ScalingError):
    """The model cannot be built, or not trained as a causal language model."""


class EngineError(ScalingError):
    """The engine that the plan asks for cannot run here."""


class TrainingError(ScalingError):
    """Training cannot go on."""


class ExportError(ScalingError):
    """The trained model could not be written, or what was written differs from what was trained."""


class ReportError(ScalingError):
    """A report or picture could not be written."""


def one_line(error: Exception, *, max_chars: int = 300) -> str:
    """Return the message of ``error`` in one line, cut to ``max_chars``; the name of its kind where it says nothing.

    >>> one_line(ValueError("first\\n  second")), one_line(TimeoutError())
    ('first second', 'TimeoutError')
    """
    return " ".join(str(error).split())[:max_chars] or type(error).__name__


def kind_and_line(error: Exception) -> str:
    """Return the kind of ``error`` and its message, for errors whose message alone is a key or a number.

    >>> kind_and_line(KeyError("size")), kind_and_line(TimeoutError())
    ("KeyError: 'size'", 'TimeoutError')
    """
    kind, line = type(error).__name__, one_line(error)
    return line if line == kind else f"{kind}: {line}"
