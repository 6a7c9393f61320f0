"""`trace_training`: the trainer's own engine, loss and loop on tensors without data, as rank 0 of a plan."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING

import torch

from scaling.ownership import Cause, Owned, Owners, Place
from scaling.trace.emulation import emulated_device
from scaling.trace.engine import EngineSpec
from scaling.trace.explain import explained
from scaling.trace.log import Section, TraceLog
from scaling.trace.patching import patched
from scaling.trace.ranks.answers import FiniteGradients
from scaling.trace.ranks.ddp import Ddp
from scaling.trace.ranks.deepspeed import Zero, bookkeeping_owners
from scaling.trace.ranks.fsdp2 import Fsdp2
from scaling.trace.recorder import Recorder
from strategies.emit.deepspeed import deepspeed_config
from strategies.estimate import Phase
from strategies.load_model import resolve_model
from strategies.plan import StrategyName

if TYPE_CHECKING:
    from scaling.batch import Batch
    from scaling.engines.base import Engine
    from strategies.decision import Decision


def trace_training(decision: Decision, *, num_steps: int = 2) -> TraceLog:
    """Return what rank 0 of the plan allocates when this package trains it, on the plan's device.

    The engine of the plan's strategy, the token-sum loss and the training loop run as they are: ``num_steps`` optimizer
    steps, one evaluation and one gathering of all weights as for a save. Neither weights nor a GPU are needed.

    Raises:
        TraceError: an operation needs data; the message names it and its module.
    """
    from scaling.models import InitialWeights, build_config, build_model
    from scaling.rehearsal import example, rehearse
    from scaling.tasks.example import vocabulary

    emulated = "cpu" if decision.cluster.gpu.is_cpu else "cuda"
    config = build_config(resolve_model(decision.model))
    recorder = Recorder(device="meta", emulated=emulated, vocab_size=vocabulary(config))
    with _inside_log(recorder) if emulated == "cpu" else nullcontext(), torch.device("meta"):
        model = build_model(config, InitialWeights(folder=None), decision=decision, seed=0)
    spec, batch = _environment_of(decision), example(config, decision)
    if emulated == "cpu":  # there from the start, where a GPU's batch comes from the host
        batch = batch.to("meta")
    place = Place.DEVICE if emulated == "cpu" else spec.parameters_place(model)
    with explained(model), emulated_device(emulated), spec.environment(recorder), _meta_as_device():
        with _inside_log(recorder):
            recorder.claim(Owned(Cause.PARAMETERS, parameter, place) for parameter in model.parameters())
            kept = rehearse(
                model,
                lambda: batch,
                decision=decision,
                num_steps=num_steps,
                device=torch.device("meta"),
                meter=_RecorderMeter(recorder),
                more_owners=partial(_more_owners, batch),
            )
        log = recorder.result()
        del kept
    return log


def _more_owners(batch: Batch, engine: Engine) -> list[Owners]:
    inputs = [Owned(Cause.OTHER, tensor) for tensor in batch.tensors()]
    inner = getattr(engine, "_engine", None)
    return [lambda: inputs] if inner is None else [partial(bookkeeping_owners, inner), lambda: inputs]


class _RecorderMeter:
    """A `scaling.meter.PhaseMeter` that makes every phase a section of a trace."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._step = 0
        self._micro_batch = 0

    def attach(self, owners: Owners) -> None:
        self._recorder.owners.append(owners)
        self._recorder.ask_owners()

    @contextmanager
    def phase(self, phase: Phase) -> Iterator[None]:
        section = Section(self._step, self._micro_batch, phase)
        with self._recorder.section(section), FiniteGradients() if phase is Phase.OPTIMIZER_STEP else nullcontext():
            yield
        if phase is Phase.BACKWARD:
            self._micro_batch += 1
        if phase is Phase.OPTIMIZER_STEP:
            self._step, self._micro_batch = self._step + 1, 0


def _environment_of(decision: Decision) -> EngineSpec:
    """Return the spec whose environment the plan's engine needs; its engine is not made."""
    world_size = decision.cluster.gpus
    config = deepspeed_config(decision)
    if config is not None:
        return Zero(world_size=world_size, config=config)
    return Fsdp2(world_size=world_size) if decision.plan.strategy is StrategyName.FSDP2 else Ddp(world_size=world_size)


@contextmanager
def _inside_log(recorder: Recorder) -> Iterator[None]:
    with recorder.log:
        yield


@contextmanager
def _meta_as_device() -> Iterator[None]:
    """Leave out DDP's comparison of shapes over ranks, which needs data, and let FSDP2's mesh be one of CPUs."""
    from torch.distributed import device_mesh
    from torch.nn.parallel import distributed

    make_mesh = device_mesh.init_device_mesh
    with ExitStack() as stack:
        name = "_verify_param_shape_across_processes"
        stack.enter_context(patched(distributed, name, lambda *_, **__: True))
        stack.enter_context(patched(device_mesh, "init_device_mesh", lambda _, shape: make_mesh("cpu", shape)))
        yield
