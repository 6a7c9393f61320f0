"""Whether TensorFlow is there, asked without importing it."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import MutableMapping

from scaling.errors import EngineError
from strategies.units import MIB

MISSING = "this needs TensorFlow, which is not installed; pip install 'memory-scaling[tensorflow]'"


def count_cpu_memory(environ: MutableMapping[str, str]) -> None:
    """Let TensorFlow, which must not be imported yet, use the allocator on CPUs that it has on GPUs, which counts.

    Source: tensorflow 2.21, core/common_runtime/process_state.cc. Its limit, 64 GiB, gives way to what the machine has.
    """
    environ.setdefault("TF_CPU_ALLOCATOR_USE_BFC", "true")
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    environ.setdefault("TF_CPU_BFC_MEM_LIMIT_IN_MB", str(memory // MIB))


def require_tensorflow() -> None:
    """Refuse to go on without TensorFlow.

    Raises:
        EngineError: it is not installed; says how to get it.
    """
    if importlib.util.find_spec("tensorflow") is None:
        raise EngineError(MISSING)
