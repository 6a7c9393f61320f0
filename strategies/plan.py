"""`Plan`: one fully resolved way to train. Nothing in it is left to be filled in later."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from strategies.errors import PlanError


class Framework(StrEnum):
    """What trains the model."""

    PYTORCH = "pytorch"
    TENSORFLOW = "tensorflow"


class StrategyName(StrEnum):
    """How model states are spread over the data-parallel ranks."""

    DDP = "ddp"
    ZERO1 = "zero1"
    ZERO2 = "zero2"
    ZERO3 = "zero3"
    FSDP2 = "fsdp2"
    """torch's ``fully_shard``, block by block."""
    MIRRORED = "mirrored"
    """TensorFlow's ``MirroredStrategy``: everything on every GPU of one node, driven by one process."""

    @property
    def framework(self) -> Framework:
        """Whose strategy it is."""
        return Framework.TENSORFLOW if self is StrategyName.MIRRORED else Framework.PYTORCH


REPLICATED = (StrategyName.DDP, StrategyName.MIRRORED)
"""Those that keep all model states on every rank."""
PYTORCH_STRATEGIES = tuple(name for name in StrategyName if name.framework is Framework.PYTORCH)
"""Those that the search looks at where no framework is named."""


class ActivationCheckpointing(StrEnum):
    """Which activations are dropped in forward and computed again in backward."""

    NONE = "none"
    SELECTIVE = "selective"
    """Blocks keep their input and the outputs of fused attention and of every second linear layer, as in torchtitan."""
    FULL = "full"
    """Blocks keep their input only."""


class OffloadDevice(StrEnum):
    """Where a model state rests between uses."""

    NONE = "none"
    CPU = "cpu"
    NVME = "nvme"


MAX_BUCKET_ELEMENTS = 10**13
"""Above any model: larger numbers are slips."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Buckets:
    """Sizes of the communication buffers, in elements, under DeepSpeed's own names.

    Source of the names: deepspeed 0.19.8, runtime/zero/config.py. DDP uses ``reduce_bucket_size`` alone.
    """

    reduce_bucket_size: int
    allgather_bucket_size: int
    stage3_prefetch_bucket_size: int
    stage3_param_persistence_threshold: int
    stage3_max_live_parameters: int
    overlap_comm: bool

    @classmethod
    def outside_deepspeed(cls, elements: int) -> Buckets:
        """Return buffers of ``elements`` that overlap with computing, without anything of stage 3."""
        return cls(
            reduce_bucket_size=elements,
            allgather_bucket_size=elements,
            stage3_prefetch_bucket_size=0,
            stage3_param_persistence_threshold=0,
            stage3_max_live_parameters=0,
            overlap_comm=True,
        )

    def __post_init__(self) -> None:
        for name in ("reduce_bucket_size", "allgather_bucket_size"):
            if getattr(self, name) <= 0:
                raise PlanError(f"{name}={getattr(self, name)} must be above zero; give it in elements")
        for name in Buckets.__slots__:
            if not 0 <= getattr(self, name) <= MAX_BUCKET_ELEMENTS:
                raise PlanError(f"{name}={getattr(self, name)} must be from 0 to {MAX_BUCKET_ELEMENTS} elements")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One way to run a job on a cluster."""

    strategy: StrategyName
    micro_batch_size: int
    """Samples one GPU handles in one forward pass."""
    gradient_accumulation_steps: int
    """Micro batches per optimizer step."""
    activation_checkpointing: ActivationCheckpointing = ActivationCheckpointing.NONE
    checkpoint_every: int = 1
    """Blocks 0, k, 2k, ... are checkpointed; the others keep everything."""
    reshard_after_forward: bool = True
    """FSDP2: whether blocks give their gathered weights back after forward. The others do not look at it."""
    sync_each_batch: bool = True
    """FSDP2: whether gradients are reduced after every micro batch; else whole ones add up until the last, which saves
    messages and holds the model's size. accelerate's word, whose default is not to. The others do not look at it."""
    offload_optimizer: OffloadDevice = OffloadDevice.NONE
    offload_param: OffloadDevice = OffloadDevice.NONE
    buckets: Buckets

    def __post_init__(self) -> None:
        sizes = {
            "micro_batch_size": self.micro_batch_size,
            "gradient_accumulation_steps": self.gradient_accumulation_steps,
            "checkpoint_every": self.checkpoint_every,
        }
        if bad := [f"{name}={value}" for name, value in sizes.items() if value <= 0]:
            raise PlanError(f"{', '.join(bad)} must be above zero; give positive whole numbers")


def accumulation_steps(*, global_batch_size: int, micro_batch_size: int, data_parallel_size: int) -> int:
    """Return micro batches per optimizer step that give exactly ``global_batch_size`` samples.

    Raises:
        PlanError: the global batch is not a multiple of ``micro_batch_size * data_parallel_size``.
    """
    samples_per_pass = micro_batch_size * data_parallel_size
    steps, remainder = divmod(global_batch_size, samples_per_pass)
    if remainder or steps < 1:
        raise PlanError(
            f"global_batch_size={global_batch_size} is not a positive multiple of micro_batch_size="
            f"{micro_batch_size} * data_parallel_size={data_parallel_size} = {samples_per_pass}; "
            f"try global_batch_size={max(steps, 1) * samples_per_pass}"
        )
    return steps
