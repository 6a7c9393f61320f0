"""A small Llama under the plain frameworks, for measurements: DeepSpeed at any stage and offload, DDP, FSDP2.

The model is that of `reference/ds_cpu_measured.csv`: 29.5M parameters and 8 tokens, so that activations are negligible
and what is left are the states and buffers of the framework.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import nn

from scaling.engines.deepspeed import import_deepspeed
from scaling.meter import Meter
from scaling.ownership import Owned, deepspeed_owners, fsdp2_owners, module_owners
from strategies.estimate import Phase

VOCAB_SIZE = 4096
SEQ_LEN = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """One way to train the model."""

    framework: Literal["deepspeed", "ddp", "fsdp2"]
    zero_stage: int = 0
    precision: Literal["bf16", "fp32"] = "bf16"
    """DeepSpeed: 16-bit weights with fp32 masters. FSDP2: fp32 shards, bf16 compute. DDP: plain bf16 weights."""
    gradient_accumulation_steps: int = 1
    bucket_size: int = 5_000_000
    """Elements; DDP's bucket holds as many gradients."""
    overlap_comm: bool = False
    offload_optimizer: bool = False
    offload_param: bool = False
    fused: bool | None = None
    """AdamW: fused kernel, foreach (False) or what torch chooses (None: foreach on CUDA, a loop on CPU)."""
    num_layers: int = 8
    hidden_size: int = 512
    intermediate_size: int = 1376
    num_steps: int = 3


def run(setup: Setup, meter: Meter) -> object:
    """Train for a few steps under the meter's phases, in a process group that exists; return the trainer."""
    with meter.phase(Phase.INITIALISE):
        trainer = _build(setup, meter)
    input_ids = torch.randint(0, VOCAB_SIZE, (1, SEQ_LEN))
    for _ in range(setup.num_steps):
        for micro_step in range(setup.gradient_accumulation_steps):
            with trainer.micro_batch(is_last=micro_step == setup.gradient_accumulation_steps - 1):
                with meter.phase(Phase.FORWARD):
                    loss = trainer.wrapped(input_ids=input_ids, labels=input_ids).loss
                with meter.phase(Phase.BACKWARD):
                    trainer.backward(loss)
                del loss
        with meter.phase(Phase.OPTIMIZER_STEP):
            trainer.step()
    return trainer


def num_parameters(setup: Setup) -> int:
    """Return the number of parameters of the model."""
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in small_llama(setup).parameters())


def small_llama(setup: Setup) -> Any:
    """Return a Hugging Face Llama with random fp32 weights."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=setup.hidden_size,
        intermediate_size=setup.intermediate_size,
        num_hidden_layers=setup.num_layers,
        num_attention_heads=8,
        num_key_value_heads=8,
        vocab_size=VOCAB_SIZE,
        max_position_embeddings=512,
        tie_word_embeddings=False,
        use_cache=False,
    )
    return LlamaForCausalLM(config)


@dataclass(slots=True)
class _Torch:
    """DDP or FSDP2 with torch AdamW."""

    wrapped: Any
    optimizer: torch.optim.Optimizer
    is_ddp: bool

    def micro_batch(self, *, is_last: bool) -> AbstractContextManager[None]:
        if self.is_ddp:
            return nullcontext() if is_last else self.wrapped.no_sync()
        self.wrapped.set_requires_gradient_sync(is_last)
        return nullcontext()

    def backward(self, loss: torch.Tensor) -> None:
        loss.backward()  # type: ignore[no-untyped-call]

    def step(self) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad()


@dataclass(slots=True)
class _DeepSpeed:
    """A DeepSpeed engine; it counts micro batches itself, so every one ends with `step`."""

    wrapped: Any
    gradient_accumulation_steps: int

    def micro_batch(self, *, is_last: bool) -> AbstractContextManager[None]:
        self.wrapped.set_gradient_accumulation_boundary(is_last)
        return nullcontext()

    def backward(self, loss: torch.Tensor) -> None:
        self.wrapped.backward(loss)

    def step(self) -> None:
        self.wrapped.step()


def _build(setup: Setup, meter: Meter) -> _Torch | _DeepSpeed:
    model = small_llama(setup)
    meter.attach(lambda: module_owners(model))
    if setup.framework == "deepspeed":
        return _build_deepspeed(setup, model, meter)
    if setup.framework == "ddp":
        return _build_ddp(setup, model, meter)
    return _build_fsdp2(setup, model, meter)


def _build_ddp(setup: Setup, model: nn.Module, meter: Meter) -> _Torch:
    if setup.precision == "bf16":
        model = model.bfloat16()
    wrapped = nn.parallel.DistributedDataParallel(
        model, bucket_cap_mb=setup.bucket_size * next(model.parameters()).element_size() / 2**20
    )
    optimizer = _adamw(model, setup)
    meter.attach(lambda: module_owners(model, optimizer))
    return _Torch(wrapped, optimizer, is_ddp=True)


def _build_fsdp2(setup: Setup, model: Any, meter: Meter) -> _Torch:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard

    options: dict[str, Any] = {
        "mesh": init_device_mesh("cpu", (dist.get_world_size(),)),
        "offload_policy": CPUOffloadPolicy(pin_memory=False) if setup.offload_param else OffloadPolicy(),
    }
    if setup.precision == "bf16":
        options["mp_policy"] = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in model.model.layers:
        fully_shard(layer, **options)
    fully_shard(model, **options)
    optimizer = _adamw(model, setup)
    meter.attach(lambda: fsdp2_owners(model, optimizer))
    return _Torch(model, optimizer, is_ddp=False)


def _build_deepspeed(setup: Setup, model: nn.Module, meter: Meter) -> _DeepSpeed:
    deepspeed = import_deepspeed(torch.device("cpu"))
    deepspeed.init_distributed(dist_backend=dist.get_backend(), verbose=False)
    engine, *_ = deepspeed.initialize(model=model, optimizer=_adamw(model, setup), config=_deepspeed_config(setup))
    meter.attach(lambda: _owners(engine))
    return _DeepSpeed(engine, setup.gradient_accumulation_steps)


def _owners(engine: Any) -> Iterable[Owned]:
    return deepspeed_owners(engine)


def _adamw(model: nn.Module, setup: Setup) -> torch.optim.AdamW:
    return torch.optim.AdamW(model.parameters(), lr=1e-4, fused=setup.fused)


def _deepspeed_config(setup: Setup) -> dict[str, Any]:
    return {
        "train_batch_size": dist.get_world_size() * setup.gradient_accumulation_steps,
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": setup.gradient_accumulation_steps,
        "gradient_clipping": 1.0,
        "bf16": {"enabled": setup.precision == "bf16"},
        "zero_optimization": {
            "stage": setup.zero_stage,
            "overlap_comm": setup.overlap_comm,
            "reduce_bucket_size": setup.bucket_size,
            "allgather_bucket_size": setup.bucket_size,
            **dict(_offload(setup)),
        },
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "steps_per_print": 2**31,
    }


def _offload(setup: Setup) -> Iterator[tuple[str, dict[str, str]]]:
    if setup.offload_optimizer:
        yield "offload_optimizer", {"device": "cpu"}
    if setup.offload_param:
        yield "offload_param", {"device": "cpu"}
