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
