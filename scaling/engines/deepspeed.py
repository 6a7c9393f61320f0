"""ZeRO-1, 2 and 3 by DeepSpeed: optimizer states, then gradients, then weights are spread over the ranks.

Written against deepspeed 0.19.8. Three of its habits would change the mathematics and are switched off here: it divides
the loss by the accumulation count (`scale_wrt_gas`), it counts micro batches itself to find the end of a window (wrong
for a short last window), and it steps schedulers it is given (it is given none).
"""

from __future__ import annotations

import logging
import os
import sys
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, final

import torch
import torch.distributed as dist
from torch import nn

from scaling.engines.autocast import autocast_forward
from scaling.engines.base import Engine
from scaling.engines.optimizer import OptimizerSettings, make_optimizer, split_by_decay
from scaling.engines.state import StateSlice, buffer_slices
from scaling.engines.zero_gradients import gradient_in_partition, partitioned_gradient
from scaling.engines.zero_restart import abandon_reductions, drop_gradients, forget_moments
from scaling.engines.zero_state import (
    create_partitioned_moments,
    partitioned_optimizer_slices,
    partitioned_parameter_slices,
    weights_from_masters,
)
from scaling.meter import PhaseMeter
from scaling.ownership import Owned, deepspeed_owners
from strategies.decision import Decision
from strategies.emit.deepspeed import deepspeed_config
from strategies.plan import StrategyName


@final
class DeepSpeedEngine(Engine):
    """A deepspeed.DeepSpeedEngine whose accumulation, scaling and schedule the trainer owns."""

    def __init__(
        self,
        model: nn.Module,
        *,
        decision: Decision,
        settings: OptimizerSettings,
        device: torch.device,
        meter: PhaseMeter,
    ) -> None:
        super().__init__(model, job=decision.job, device=device, meter=meter)
        autocast_forward(model, precision=decision.job.precision, device=device)
        deepspeed = import_deepspeed(device)
        config = deepspeed_config(decision)
        assert config is not None, decision.plan.strategy
        config["fp16"]["loss_scale"] = 1.0  # its dynamic scaler is for programs of one's own; here `_use_scale` decides
        deepspeed.init_distributed(dist_backend="nccl" if device.type == "cuda" else "gloo", verbose=False)
        self._shards_parameters = decision.plan.strategy is StrategyName.ZERO3
        decayed, undecayed = split_by_decay(model, settings)
        if self._shards_parameters:
            # Tensor by tensor, so that the device never holds the whole model, as it would during initialize().
            deepspeed.zero.Init(module=model, config_dict_or_path=config)
            for buffer in model.buffers():  # it moves parameters only, and initialize() then moves nothing
                buffer.data = buffer.data.to(device)
            self._gather = deepspeed.zero.GatheredParameters
        self._optimizer = make_optimizer(decayed, undecayed, settings, job=decision.job)
        self._engine, *_ = deepspeed.initialize(model=model, optimizer=self._optimizer, config=config)
        for group in {self._engine.data_parallel_group, self._engine.seq_data_parallel_group}:
            _use_timeout_of_world(group, device)

    @contextmanager
    def accumulate(self, *, is_last: bool) -> Iterator[None]:
        self._engine.set_gradient_accumulation_boundary(is_last)
        yield

    def gathered_parameters(self) -> Iterator[tuple[str, torch.Tensor]]:
        if self._shards_parameters:
            # After an evaluation weights fetched ahead for a backward that never comes are still under way, and a
            # weight under way cannot be released again.
            self._engine.empty_partition_cache()
        for name, parameter in self.model.named_parameters():
            if self._shards_parameters:
                with self._gather([parameter]):
                    yield name, parameter.data
            else:
                yield name, parameter.data

    def state_slices(self) -> Iterator[StateSlice]:
        if self._shards_parameters:
            yield from partitioned_parameter_slices(self.model, self._engine.optimizer, rank=self.rank)
        else:
            yield from partitioned_optimizer_slices(self.model, self._engine.optimizer)
        yield from buffer_slices(self.model)

    def create_moments(self) -> None:
        create_partitioned_moments(self._engine.optimizer)

    def forget_moments(self) -> None:
        # Set to zero where they are, which is what they are made as: DeepSpeed refers to them from elsewhere.
        forget_moments(self._optimizer)

    def state_restored(self) -> None:
        weights_from_masters(self._engine.optimizer)

    def owners(self) -> Iterable[Owned]:
        return deepspeed_owners(self._engine)

    def gradient_shares(self) -> Iterator[tuple[str, torch.Tensor]]:
        share = partitioned_gradient if self._shards_parameters else gradient_in_partition
        for name, parameter in self.model.named_parameters():
            if parameter.requires_grad and (part := share(parameter, rank=self.rank)) is not None:
                yield name, part

    @property
    def can_repeat_steps(self) -> bool:
        # ZeRO-3 fetches weights ahead in an order that it has recorded; a pass that ended half-way leaves another one
        # on its rank than on the others, and their collectives would not meet.
        return not self._shards_parameters

    def abandon_pass(self) -> None:
        abandon_reductions(self._engine.optimizer)

    def drop_gradients(self) -> None:
        drop_gradients(self._engine.optimizer)

    def close(self) -> None:
        self._engine.destroy()

    def _forward(self, **inputs: torch.Tensor) -> Any:
        return self._engine(**inputs)

    def _backward(self, loss: torch.Tensor) -> None:
        self._use_scale()
        self._engine.backward(loss, scale_wrt_gas=False)

    def _optimizer_step(self) -> tuple[torch.Tensor, bool]:
        self._engine.step()
        # A step that DeepSpeed skipped because of an infinite norm leaves the norm of an earlier step behind.
        was_applied = self._engine.was_step_applied()
        norm = self._engine.get_global_grad_norm() if was_applied else float("inf")
        return torch.as_tensor(norm, dtype=torch.float32, device=self.device), was_applied

    def _use_scale(self) -> None:
        """Let DeepSpeed multiply losses with the scale of this step, and divide gradients by it in the update."""
        optimizer = self._engine.optimizer
        if self._scaler.scale != optimizer.loss_scale:
            optimizer.override_loss_scale(self._scaler.scale)


def _use_timeout_of_world(group: Any, device: torch.device) -> None:
    """Give a group that DeepSpeed has made the timeout of the world group; it has torch's default of half an hour.

    torch 2.13 has no public way to change the timeout of a group that somebody else creates.
    """
    world: Any = dist.group.WORLD
    options = getattr(world._get_backend(device), "options", None)  # a simulated group has none
    if options is not None:
        dist.distributed_c10d._set_pg_timeout(options._timeout, group)


def import_deepspeed(device: torch.device) -> Any:
    """Return the deepspeed module, told to use ``device`` and to log to stderr, where results do not go."""
    os.environ.setdefault("DS_ACCELERATOR", device.type)
    import deepspeed

    # Its shared-memory collectives for CPU ranks must be compiled first: minutes of work that need a C++ compiler, wait
    # on a lock that a killed process leaves behind, and repeat when another ninja touches the cache. Without them the
    # same calls go to gloo (deepspeed 0.19.8, comm/torch.py, build_shm_op).
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    if device.type != "cuda":
        # It wants arithmetic units for fp16; torch 2.13 computes in it on every CPU, slowly without them.
        deepspeed.accelerator.get_accelerator().is_fp16_supported = lambda: True
    # Its calls of collectives that torch 2.13 renamed; nobody here can change them.
    warnings.filterwarnings("ignore", message="`torch.distributed.*` is deprecated", category=FutureWarning)
    for handler in logging.getLogger("DeepSpeed").handlers:
        if type(handler) is logging.StreamHandler:  # not a subclass: a test runner's collects elsewhere
            if handler.stream.closed:  # by who had put it in the place of stderr; it cannot be flushed any more
                handler.stream = sys.stderr
            handler.setStream(sys.stderr)
    return deepspeed
