"""What goes wrong for users. Every message says what is wrong, with the value, and what to do; commands exit with 2."""

from __future__ import annotations


class ScalingError(Exception):
    """A mistake in the input, told in one line. Command lines print it without a traceback and exit with code 2."""

    exit_code = 2


class SpecError(ScalingError):
    """The model description cannot be read or is not understood."""


class ClusterError(ScalingError):
    """The hardware description cannot be read or contradicts itself."""


class JobError(ScalingError):
    """The job (sequence length, batch, precision) is not possible."""


class PlanError(ScalingError):
    """The plan is not legal for this job and cluster."""


class UnitError(ScalingError):
    """A text names no size."""


class CalibrationError(ScalingError):
    """Measurements of this machine cannot be made, written or used."""


class NoPlanFitsError(ScalingError):
    """No candidate plan fits the memory of one GPU."""

    exit_code = 3
