"""`trace_step`: run training steps of a real module without data and return what they allocate."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from scaling.ownership import Cause, Owned, Place
from scaling.trace.emulation import emulated_device
from scaling.trace.engine import EngineSpec, SingleDevice, TraceEngine
from scaling.trace.explain import explained
from scaling.trace.log import Section, TraceLog
from scaling.trace.options import TraceOptions
from scaling.trace.recompute import checkpoint_blocks
from scaling.trace.recorder import Recorder
from strategies.estimate import Phase

Batch = Mapping[str, Tensor]
"""Inputs of the module by argument name. Shapes and formats count, and whether a mask given with data has zeros."""

Loss = Callable[[nn.Module, Batch], Tensor]


def trace_step(
    model: Callable[[], nn.Module],
    batch: Batch,
    options: TraceOptions,
    *,
    loss: Loss | None = None,
    engine: EngineSpec | None = None,
    on_cpu: bool = False,
) -> TraceLog:
    """Return everything that training steps of ``model()`` allocate and free on one rank.

    The module is made and run on meta tensors: no weights, no arithmetic, one CPU thread, seconds. `loss` runs the
    module on the batch; by default the ``loss`` that its output carries, or the output itself where that is a tensor.
    `engine`: how it is trained; None for one device and AdamW. `on_cpu` runs real tensors instead, without any
    emulation: the measurement that the trace is held to.

    Raises:
        TraceError: an operation needs data; the message names it and its module.
    """
    device = "cpu" if on_cpu else "meta"
    with torch.device(device):
        module = model()
    _cast(module, options.precision.weight_dtype)
    module.train()
    checkpoint_blocks(module, recompute=options.activation_checkpointing, every=options.checkpoint_every)
    recorder = Recorder(
        device=device,
        emulated="cpu" if on_cpu else options.kernels,
        has_padding=_has_padding(batch),
        vocab_size=_vocab_size(module),
    )
    inputs = {name: tensor.to(device) if on_cpu else _without_data(tensor) for name, tensor in batch.items()}
    run = _Run(module, inputs, options, recorder, loss or model_loss)
    emulation = nullcontext() if on_cpu else emulated_device(options.kernels)
    spec = engine or SingleDevice()
    with explained(module), emulation as device_mode, spec.environment(recorder):
        run.all_steps(spec)
    assumed_values = 0 if device_mode is None else device_mode.num_values_asked
    return replace(recorder.result(), assumed_values=assumed_values)


def model_loss(module: nn.Module, batch: Batch) -> Tensor:
    """Return the loss in the module's output on ``batch``, or the output itself where that is a tensor."""
    output = module(**batch)
    return output if isinstance(output, Tensor) else output.loss


class _Run:
    """The steps of one trace."""

    def __init__(
        self, module: nn.Module, inputs: dict[str, Tensor], options: TraceOptions, recorder: Recorder, loss: Loss
    ) -> None:
        self.module, self.inputs, self.options, self.recorder, self.loss = module, inputs, options, recorder, loss

    def all_steps(self, spec: EngineSpec) -> None:
        engine = self.initialised(spec)
        self.recorder.owners.append(engine.owners)
        for step in range(self.options.num_steps):
            self.one_step(engine, step)
        if self.options.evaluate:
            self.evaluation(engine)
        self.recorder.ask_owners()

    def initialised(self, spec: EngineSpec) -> TraceEngine:
        built = None if spec.whole_model_on_device else spec.build(self.module, self.recorder)
        with self.section(0, 0, Phase.INITIALISE):
            if built is not None:
                self.recorder.claim(built.owners())
            self.recorder.claim(_initial_owners(self.module, self.inputs, spec.parameters_place(self.module)))
            return built or spec.build(self.module, self.recorder)

    def one_step(self, engine: TraceEngine, step: int) -> None:
        last = self.options.gradient_accumulation_steps - 1
        for micro_batch in range(last + 1):
            with self.section(step, micro_batch, Phase.FORWARD), self.autocast():
                loss = engine.forward(self.scaled_loss, is_last=micro_batch == last)
            with self.section(step, micro_batch, Phase.BACKWARD):
                engine.backward(loss, is_last=micro_batch == last)
                del loss
        with self.section(step, 0, Phase.OPTIMIZER_STEP):
            engine.step()

    def evaluation(self, engine: TraceEngine) -> None:
        self.module.eval()
        with self.section(self.options.num_steps, 0, Phase.EVALUATION), torch.no_grad(), self.autocast():
            engine.forward(lambda module: self.loss(module, self.inputs), is_last=True)

    def scaled_loss(self, module: nn.Module) -> Tensor:
        loss = self.loss(module, self.inputs)
        steps = self.options.gradient_accumulation_steps
        return loss / steps if steps > 1 else loss

    def autocast(self) -> Any:
        dtype = self.options.precision.autocast_dtype
        return nullcontext() if dtype is None else torch.autocast("cpu", dtype=dtype)

    @contextmanager
    def section(self, step: int, micro_batch: int, phase: Phase) -> Iterator[None]:
        with self.recorder.section(Section(step, micro_batch, phase)), self.recorder.log:
            yield


def _initial_owners(module: nn.Module, inputs: Mapping[str, Tensor], place: Place) -> Iterator[Owned]:
    yield from (Owned(Cause.PARAMETERS, parameter, place) for parameter in module.parameters())
    yield from (Owned(Cause.OTHER, buffer) for buffer in module.buffers())
    yield from (Owned(Cause.OTHER, tensor) for tensor in inputs.values())


def _cast(module: nn.Module, dtype: torch.dtype) -> None:
    """Bring floating-point parameters and buffers to ``dtype``, as DeepSpeed does; fp32 leaves them as they are."""
    if dtype is not torch.float32:
        apply: Any = module._apply
        apply(lambda tensor: tensor.to(dtype) if tensor.is_floating_point() else tensor)


def _without_data(tensor: Tensor) -> Tensor:
    return torch.empty_like(tensor, device="meta")


def _has_padding(batch: Batch) -> bool:
    masks = [tensor for name, tensor in batch.items() if name.endswith("mask") and tensor.device.type != "meta"]
    return any(not bool(mask.all()) for mask in masks)


def _vocab_size(module: nn.Module) -> int | None:
    find = getattr(module, "get_output_embeddings", None)
    head = find() if callable(find) else None
    return getattr(head, "out_features", None)
