"""`Job`: what is to be trained, independent of how it is spread over GPUs."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from strategies.errors import JobError
from strategies.trained import Lora


class Precision(StrEnum):
    """Number formats of weights, gradients and optimizer states."""

    FP32 = "fp32"
    FP16 = "fp16"
    """16-bit weights and gradients, fp32 masters and Adam states, as DeepSpeed does."""
    BF16 = "bf16"
    """Likewise in bfloat16."""
    FP16_AUTOCAST = "fp16-autocast"
    """fp32 weights and gradients, 16-bit computation where autocast says so; FSDP2: 16-bit gathered weights."""
    BF16_AUTOCAST = "bf16-autocast"
    BF16_PURE = "bf16-pure"
    """Everything in bfloat16, optimizer states included; no master."""

    @property
    def weight_bytes(self) -> int:
        """Bytes of one weight, and of one gradient, as the forward pass holds it."""
        return 4 if self is Precision.FP32 or self.is_autocast else 2

    @property
    def compute_bytes(self) -> int:
        """Bytes of one activation of a matrix product."""
        return 4 if self is Precision.FP32 else 2

    @property
    def is_autocast(self) -> bool:
        return self in (Precision.FP16_AUTOCAST, Precision.BF16_AUTOCAST)

    @property
    def is_bf16(self) -> bool:
        return self in (Precision.BF16, Precision.BF16_AUTOCAST, Precision.BF16_PURE)

    @property
    def is_fp16(self) -> bool:
        """Whether gradients pass through fp16, whose range is so small that the loss must be scaled."""
        return self in (Precision.FP16, Precision.FP16_AUTOCAST)

    @property
    def has_master_weights(self) -> bool:
        return self in (Precision.FP16, Precision.BF16)


class OptimizerName(StrEnum):
    """Update rule."""

    ADAMW = "adamw"
    """Two moments a parameter, fp32 (16-bit where the weights that are updated are)."""
    ADAMW_8BIT = "adamw-8bit"
    """Two 8-bit moments a parameter, with one fp32 scale per block of 256."""
    SGD = "sgd"
    """With momentum: one number a parameter."""
    LION = "lion"
    """One moment a parameter."""
    ADAFACTOR = "adafactor"
    """Row and column sums of the second moment; no first moment."""


class Attention(StrEnum):
    """How attention is computed."""

    FLASH = "flash"
    """Fused; nothing quadratic in the sequence length is kept."""
    EAGER = "eager"
    """Plain matrix products and softmax: quadratic in the sequence length."""


class LossImplementation(StrEnum):
    """How the loss is computed from the hidden states."""

    STANDARD = "standard"
    """The framework's own: all logits at once, upcast to fp32."""
    CHUNKED = "chunked"
    """All 16-bit logits at once, then fp32 and softmax over 8 parts of the tokens, each part's softmax kept for
    backward: torchtitan's chunked cross-entropy (commit e23bb707)."""
    FUSED = "fused"
    """Head and loss as one function that never holds all logits and makes gradients in forward, as Liger-Kernel's
    (Hsu et al. 2024, arXiv:2410.10989)."""


MAX_SIZE = 2**31
"""Far above any run: larger numbers are slips, and would make the search endless."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What is trained. ``global_batch_size`` is in samples per optimizer step, over all ranks."""

    seq_len: int
    global_batch_size: int
    precision: Precision = Precision.BF16
    optimizer: OptimizerName = OptimizerName.ADAMW
    attention: Attention = Attention.FLASH
    loss: LossImplementation = LossImplementation.STANDARD
    fused_optimizer: bool = True
    """One kernel a tensor, no temporaries; else torch's ``foreach``, which holds a copy of what it updates."""
    gradient_clipping: float = 1.0
    """Largest global gradient norm; 0 switches clipping off. Always explicit: DeepSpeed's own default has changed."""
    lora: Lora | None = None
    """Adapters that are trained in place of the model's own weights; None: the model itself is trained."""
    freeze: tuple[str, ...] = ()
    """Patterns of parameter names that are not trained, see `strategies.trained.is_frozen`."""

    def __post_init__(self) -> None:
        sizes = {"seq_len": self.seq_len, "global_batch_size": self.global_batch_size}
        if bad := [f"{name}={value}" for name, value in sizes.items() if value <= 0]:
            raise JobError(f"{', '.join(bad)} must be above zero; give positive whole numbers")
        if large := [f"{name}={value}" for name, value in sizes.items() if value > MAX_SIZE]:
            raise JobError(f"{', '.join(large)} is more than {MAX_SIZE}; give what one optimizer step really holds")
        if self.seq_len < 2:
            raise JobError(f"seq_len={self.seq_len} leaves no token to predict; give at least 2")
        if self.lora and self.freeze:
            raise JobError(
                f"freeze={list(self.freeze)} with lora: adapters are trained over a model that is frozen whole; "
                f"leave one of them out"
            )
        if not 0 <= self.gradient_clipping < float("inf"):
            raise JobError(f"gradient_clipping={self.gradient_clipping} must be zero (off) or a positive number")

    @property
    def trains_all(self) -> bool:
        """Whether every weight of the model is trained."""
        return self.lora is None and not self.freeze

    @property
    def tokens_per_step(self) -> int:
        return self.seq_len * self.global_batch_size
