"""`trace_config`: from a Hugging Face configuration to a log, by the shortest way and only once."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from scaling.trace.cache import cache_key, cached
from scaling.trace.deep import trace_deep
from scaling.trace.engine import EngineSpec, SingleDevice
from scaling.trace.hugging_face import at_depth, depth, layer_period, model_factory
from scaling.trace.log import TraceLog
from scaling.trace.options import TraceOptions
from scaling.trace.step import Batch
from strategies.model_spec import TaskKind

if TYPE_CHECKING:
    from transformers import PretrainedConfig


def trace_config(
    config: PretrainedConfig,
    batch: Batch,
    options: TraceOptions,
    *,
    task: TaskKind = TaskKind.CAUSAL_LM,
    attention: str = "sdpa",
    engine: EngineSpec | None = None,
    use_cache: bool = True,
    cache_folder: Path | None = None,
) -> TraceLog:
    """Return the log of training steps of the model that ``config`` describes, from the cache where it is there.

    Cost: three shallow traces where blocks repeat evenly, else one full trace; see `trace_deep`.

    Raises:
        TraceError: the model cannot be traced; the message names the operation and the module.
    """
    spec = engine or SingleDevice()

    def trace() -> TraceLog:
        return trace_deep(
            lambda num_layers: model_factory(at_depth(config, num_layers), task=task, attention=attention),
            batch,
            options,
            depth=depth(config),
            period=layer_period(config),
            engine=spec,
        )

    if not use_cache:
        return trace()
    key = cache_key(config=config, batch=batch, options=options, task=task, attention=attention, engine=spec)
    return cached(key, trace, folder=cache_folder)
