"""From an exception inside a traced step to one line that names the operation and the module."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType

from torch import nn

from scaling.trace.errors import TraceError
from strategies.errors import ScalingError


@contextmanager
def explained(module: nn.Module) -> Iterator[None]:
    """Turn what a module raises on tensors without data into a `TraceError`."""
    try:
        yield
    except ScalingError:
        raise
    except Exception as error:
        op, place = _where(error.__traceback__, module)
        reason = (str(error).strip() or type(error).__name__).splitlines()[0].split(". ")[0]
        raise TraceError(
            f"{type(module).__name__} cannot be traced without data: {op or 'the step'} failed{place} ({reason}); if "
            f"it needs the values of a tensor, measure on real tensors (scaling measure) or avoid that operation"
        ) from error


def _where(traceback: TracebackType | None, module: nn.Module) -> tuple[str | None, str]:
    """Return the innermost operator and the innermost module that the traceback goes through."""
    names = {id(child): name or "the model itself" for name, child in module.named_modules()}
    op, place = None, ""
    while traceback is not None:
        code, variables = traceback.tb_frame.f_code, traceback.tb_frame.f_locals
        owner = variables.get("self")
        if isinstance(owner, nn.Module) and id(owner) in names:
            place = f" in {names[id(owner)]} ({type(owner).__name__})"
        if code.co_name in ("__torch_dispatch__", "__torch_function__") and "func" in variables:
            op = str(getattr(variables["func"], "__qualname__", None) or variables["func"])
            op = str(variables["func"]) if code.co_name == "__torch_dispatch__" else op
        traceback = traceback.tb_next
    return op, place
