"""`Batch`: what one rank feeds through one forward pass."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch

from scaling.losses import IGNORED_LABEL, count_loss_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Inputs of the model by name, and labels, on the CPU until an engine takes them. Dimension 0 is the sample."""

    inputs: Mapping[str, torch.Tensor]
    """As the model's forward names them: ``input_ids`` (batch, seq), ``attention_mask``, ``pixel_values``, …"""
    labels: torch.Tensor
    """What the task's loss compares with: (batch, seq) for language models, else (batch,); ignored where -100."""
    num_loss_units: int
    """Weight of this batch: the tokens or samples that the loss sums over, as the task counts them."""

    @property
    def num_samples(self) -> int:
        """Return the rows of the batch, counted or not."""
        return len(self.labels)

    def tensors(self) -> Iterator[torch.Tensor]:
        """Yield every tensor: the inputs, then the labels."""
        yield from self.inputs.values()
        yield self.labels

    def to(self, device: torch.device | str) -> Batch:
        """Return the batch on ``device``, without waiting for copies out of pinned memory."""
        return Batch(
            inputs={name: tensor.to(device, non_blocking=True) for name, tensor in self.inputs.items()},
            labels=self.labels.to(device, non_blocking=True),
            num_loss_units=self.num_loss_units,
        )

    def pin_memory(self) -> Batch:
        """Return the batch in page-locked memory, out of which copies to a GPU run beside its work."""
        return Batch(
            inputs={name: tensor.pin_memory() for name, tensor in self.inputs.items()},
            labels=self.labels.pin_memory(),
            num_loss_units=self.num_loss_units,
        )


def causal_batch(
    input_ids: torch.Tensor, *, labels: torch.Tensor | None = None, attention_mask: torch.Tensor | None = None
) -> Batch:
    """Return a batch whose labels are the ids themselves unless given; the loss moves them by one."""
    labels = input_ids.clone() if labels is None else labels
    mask = {} if attention_mask is None else {"attention_mask": attention_mask}
    inputs = {"input_ids": input_ids, **mask}
    return Batch(inputs=inputs, labels=labels, num_loss_units=count_loss_tokens(labels))


def weightless(batch: Batch) -> Batch:
    """Return the batch with every label ignored: a forward that counts for nothing, to keep ranks in step."""
    return Batch(inputs=batch.inputs, labels=torch.full_like(batch.labels, IGNORED_LABEL), num_loss_units=0)
