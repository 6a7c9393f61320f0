"""Trace training steps of a real module on tensors without data: exact bytes by phase and cause, no GPU, no weights.

Engines that spread a step over ranks are in `scaling.trace.ranks`: the real DDP, FSDP2 and DeepSpeed.
"""

from scaling.trace.allocator import OutOfMemory, ReplayResult, replay
from scaling.trace.cache import cache_key, cached
from scaling.trace.configured import trace_config
from scaling.trace.deep import trace_deep
from scaling.trace.engine import EngineSpec, SingleDevice, adamw, fused_adamw
from scaling.trace.errors import ExtrapolationError, TraceError
from scaling.trace.extrapolate import extrapolate_depth, extrapolate_size
from scaling.trace.hugging_face import image_batch, model_factory, read_config, token_batch
from scaling.trace.log import TraceLog, profile
from scaling.trace.options import Recompute, TraceOptions, TracePrecision
from scaling.trace.step import trace_step
from scaling.trace.workspaces import with_cublas_workspaces

__all__ = [
    "EngineSpec",
    "ExtrapolationError",
    "OutOfMemory",
    "Recompute",
    "ReplayResult",
    "SingleDevice",
    "TraceError",
    "TraceLog",
    "TraceOptions",
    "TracePrecision",
    "adamw",
    "cache_key",
    "cached",
    "extrapolate_depth",
    "extrapolate_size",
    "fused_adamw",
    "image_batch",
    "model_factory",
    "profile",
    "read_config",
    "replay",
    "token_batch",
    "trace_config",
    "trace_deep",
    "trace_step",
    "with_cublas_workspaces",
]
