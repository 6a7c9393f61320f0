"""The real DeepSpeed engine, ZeRO stages 0 to 3, as rank 0 of N, on tensors without data."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from importlib import import_module
from typing import Any, final

import torch
from torch import Tensor, nn

from scaling.collectives import completed_collectives
from scaling.engines.deepspeed import import_deepspeed
from scaling.ownership import Cause, Owned, Place, deepspeed_owners
from scaling.trace.engine import EngineSpec, LossFunction, OptimizerFactory, TraceEngine, fused_adamw
from scaling.trace.patching import patched
from scaling.trace.ranks.answers import FiniteGradients
from scaling.trace.ranks.collectives import CollectivesWithoutData, ZerosOnHost
from scaling.trace.ranks.group import rank_0_of
from scaling.trace.ranks.streams import StreamTracker
from scaling.trace.recorder import Recorder

# Modules of deepspeed 0.19.8 that keep an engine's groups and contexts for the life of the process.
_STATEFUL_MODULES = (
    "deepspeed.utils.groups",
    "deepspeed.comm.comm",
    "deepspeed.runtime.zero.partition_parameters",
    "deepspeed.accelerator.real_accelerator",
)
# Modules that ask whether all ranks count the same; the answer needs data.
_COMPARING_MODULES = (
    "deepspeed.runtime.zero.stage3",
    "deepspeed.runtime.zero.partition_parameters",
    "deepspeed.runtime.zero.partitioned_param_coordinator",
)


_FORMATS = {"bf16": torch.bfloat16, "fp16": torch.float16}


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Zero(EngineSpec):
    """A DeepSpeed engine by its JSON. The module is on the host, in the format of ``TraceOptions.precision``."""

    world_size: int
    config: Mapping[str, Any]
    """DeepSpeed's configuration, as it is given to ``deepspeed.initialize``."""
    optimizer: OptimizerFactory = fused_adamw

    @property
    def stage(self) -> int:
        return int(self.config.get("zero_optimization", {}).get("stage", 0))

    @property
    def _offloads(self) -> bool:
        return not {"offload_optimizer", "offload_param"}.isdisjoint(self.config.get("zero_optimization", {}))

    def parameters_place(self, module: nn.Module) -> Place:
        """Return the host where the device gets copies: another format (cast before they move), or shards."""
        enabled = [name for name in _FORMATS if self.config.get(name, {}).get("enabled")]
        dtype = _FORMATS[enabled[0]] if enabled else torch.float32
        is_moved_as_it_is = self.stage < 3 and next(module.parameters()).dtype == dtype
        return Place.DEVICE if is_moved_as_it_is else Place.HOST

    @contextmanager
    def environment(self, recorder: Recorder) -> Iterator[None]:
        without_data = recorder.device == "meta"
        with ExitStack() as stack:
            stack.enter_context(_process_environment(self.world_size))
            stack.enter_context(_restored_log_streams())
            import_deepspeed(torch.device("cpu"))
            for name in _STATEFUL_MODULES:
                stack.enter_context(_restored_globals(import_module(name)))
            stack.enter_context(
                patched(torch.nn.functional, "linear", torch.nn.functional.linear)
            )  # stage 3 replaces it
            stack.enter_context(rank_0_of(self.world_size))
            if without_data:
                stack.enter_context(_tensors_without_data(recorder))
                stack.enter_context(ZerosOnHost() if self._offloads else nullcontext())
            else:
                stack.enter_context(completed_collectives(settle_s=0))
            yield

    def build(self, module: nn.Module, recorder: Recorder) -> TraceEngine:
        deepspeed = import_deepspeed(torch.device("cpu"))
        config = {**self.config, "zero_allow_untested_optimizer": True}
        deepspeed.init_distributed(dist_backend="fake", verbose=False)
        if self.stage == 3:
            deepspeed.zero.Init(module=module, config_dict_or_path=config)
        optimizer = self.optimizer([parameter for parameter in module.parameters() if parameter.requires_grad])
        engine, *_ = deepspeed.initialize(model=module, optimizer=optimizer, config=config)
        return _ZeroEngine(engine, without_data=recorder.device == "meta")


def bookkeeping_owners(engine: Any) -> Iterator[Owned]:
    """Yield the meta tensors that DeepSpeed itself makes to remember shapes: they have no bytes on any device."""
    for group in getattr(engine.optimizer, "round_robin_bit16_meta", []):
        yield from (Owned(Cause.OTHER, tensor, Place.HOST) for tensor in group)


class _ZeroEngine(TraceEngine):
    def __init__(self, engine: Any, *, without_data: bool) -> None:
        self._engine, self._without_data = engine, without_data

    def owners(self) -> Iterator[Owned]:
        yield from bookkeeping_owners(self._engine)
        yield from deepspeed_owners(self._engine)

    def forward(self, loss: LossFunction, *, is_last: bool) -> Tensor:
        self._engine.set_gradient_accumulation_boundary(is_last)
        return loss(self._engine)

    def backward(self, loss: Tensor, *, is_last: bool) -> None:
        self._engine.backward(loss, scale_wrt_gas=False)

    def step(self) -> None:
        with FiniteGradients() if self._without_data else nullcontext():
            self._engine.step()


@contextmanager
def _restored_log_streams() -> Iterator[None]:
    """Leave handlers that others put on DeepSpeed's logger as they were; importing it redirects them all."""
    handlers = [each for each in logging.getLogger("DeepSpeed").handlers if isinstance(each, logging.StreamHandler)]
    streams = [handler.stream for handler in handlers]
    try:
        yield
    finally:
        for handler, stream in zip(handlers, streams, strict=True):
            handler.setStream(stream)


@contextmanager
def _tensors_without_data(recorder: Recorder) -> Iterator[None]:
    from deepspeed.accelerator import set_accelerator

    from scaling.trace.ranks.accelerator import MetaAccelerator

    set_accelerator(MetaAccelerator(StreamTracker(recorder), is_synchronous=recorder.emulated == "cpu"))
    with ExitStack() as stack:
        # It would keep memory from being reused until the other stream is done; the replay reuses it at once.
        stack.enter_context(patched(torch.Tensor, "record_stream", lambda tensor, stream: None))
        for name in _COMPARING_MODULES:
            module = import_module(name)
            if hasattr(module, "assert_ints_same_as_other_ranks"):
                stack.enter_context(patched(module, "assert_ints_same_as_other_ranks", lambda ints: None))
        stack.enter_context(_finite_offloaded_gradients())
        stack.enter_context(CollectivesWithoutData())
        yield


@contextmanager
def _finite_offloaded_gradients() -> Iterator[None]:
    """Say of every gradient on its way to the host that it is finite, which stages 1 and 2 ask during backward."""
    from deepspeed.runtime.zero.stage_1_and_2 import DeepSpeedZeroOptimizer

    track = DeepSpeedZeroOptimizer.update_offload_overflow_tracker

    def track_finite(optimizer: Any, gradient: Any) -> None:
        with FiniteGradients():
            track(optimizer, gradient)

    with patched(DeepSpeedZeroOptimizer, "update_offload_overflow_tracker", track_finite):
        yield


@contextmanager
def _process_environment(world_size: int) -> Iterator[None]:
    """Set the variables by which DeepSpeed finds its rank, and put them back."""
    ours = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": str(world_size), "LOCAL_WORLD_SIZE": "1"}
    ours["DS_ACCELERATOR"] = "cpu"
    ours |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}  # nobody listens: the group exists before it would look
    before = {name: os.environ.get(name) for name in ours}
    os.environ.update(ours)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextmanager
def _restored_globals(module: Any) -> Iterator[None]:
    """Set every global of ``module`` back to what it was; lists and dicts keep what was added to them."""
    before = dict(vars(module))
    try:
        yield
    finally:
        vars(module).clear()
        vars(module).update(before)
