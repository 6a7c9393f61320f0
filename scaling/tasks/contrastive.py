"""CLIP's loss: every text is to find its image among those of one forward pass, and every image its text.

What is computed, exactly. The samples of one forward pass over all ranks, n = micro_batch_size * data_parallel_size of
them, are compared each with each: logits = exp(logit_scale) * text features @ image features.T, both of unit length.
A sample's loss is the mean of two cross-entropies over n classes: of its text among all images, and of its image among
all texts. The batch's loss is the sum over its samples; the loop divides by the samples of the global batch.

What depends on the cut. A sample is never compared with those of another micro batch. So the same global batch with a
smaller micro batch or fewer ranks has fewer wrong answers to choose from, and is another, easier training: log n is
the loss of a model that knows nothing. Rank count and micro batch can change as long as their product stays. Nothing
here adjusts that silently: `Task.couples_samples` says so, and whoever cuts micro batches anew must refuse.

Gradients flow through the gathered features of all ranks: what rank r's samples owe to rank s's features reaches rank
s, so that the sum over ranks is the gradient of the whole pass's loss. Source: Radford et al. 2021, arXiv:2103.00020,
figure 3; transformers 5.24.0, models/clip/modeling_clip.py, clip_loss, on one rank.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, final

import torch
import torch.distributed as dist
from torch.nn import functional

from scaling.batch import Batch
from scaling.losses import IGNORED_LABEL, count_labels
from scaling.tasks.base import Task, training_only


class _Pass(NamedTuple):
    """Logits of this rank's samples against those of all ranks: (own, all); where each one's partner stands."""

    of_texts: torch.Tensor
    of_images: torch.Tensor
    partners: torch.Tensor
    """(own,), ignored ones as -100."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Contrastive(Task):
    """Pairs of text and image; every rank must bring equally many rows, ignored ones (label -100) included."""

    couples_samples = True
    label_smoothing: float = 0.0

    def num_units(self, labels: torch.Tensor) -> int:
        return count_labels(labels)

    def loss_of(self, outputs: Any, batch: Batch) -> torch.Tensor:
        found = _compared(outputs, batch)
        smoothing = training_only(self.label_smoothing)
        return (_sum_loss(found.of_texts, found, smoothing) + _sum_loss(found.of_images, found, smoothing)) / 2

    def counts_of(self, outputs: Any, batch: Batch) -> Mapping[str, torch.Tensor]:
        found = _compared(outputs, batch)
        return {
            "texts": (found.of_texts.argmax(dim=-1) == found.partners).sum(),
            "images": (found.of_images.argmax(dim=-1) == found.partners).sum(),
        }

    def metrics(self, counts: Mapping[str, torch.Tensor], *, num_units: int) -> dict[str, float]:
        """Return the share of texts that found their image among those of their pass, and of images their text."""
        return {
            "text_to_image_accuracy": int(counts["texts"]) / max(num_units, 1),
            "image_to_text_accuracy": int(counts["images"]) / max(num_units, 1),
        }


def _compared(outputs: Any, batch: Batch) -> _Pass:
    texts, images = outputs.text_embeds.float(), outputs.image_embeds.float()
    scale = _scale_of(outputs.logits_per_text.float(), texts @ images.T)
    is_counted = batch.labels != IGNORED_LABEL
    # Rows that only fill up are nobody's wrong answer.
    is_absent = ~_of_all_ranks(is_counted.to(torch.uint8)).bool()
    rank = dist.get_rank() if dist.is_initialized() else 0
    own = torch.arange(len(texts), device=texts.device) + rank * len(texts)
    return _Pass(
        of_texts=(texts @ _of_all_ranks(images).T * scale).masked_fill(is_absent, float("-inf")),
        of_images=(images @ _of_all_ranks(texts).T * scale).masked_fill(is_absent, float("-inf")),
        partners=own.masked_fill(~is_counted, IGNORED_LABEL),
    )


def _scale_of(logits: torch.Tensor, cosines: torch.Tensor) -> torch.Tensor:
    """Return the factor that makes ``logits`` of ``cosines``, with its gradient and no other.

    The model gives only the product of both. As a quotient of sums it is had under every strategy, also one that has
    cut the parameter itself into shards; the gradients of the cosines cancel, since logits are linear in them.
    """
    return (logits * cosines).sum() / cosines.square().sum()


def _sum_loss(logits: torch.Tensor, found: _Pass, smoothing: float) -> torch.Tensor:
    return functional.cross_entropy(
        logits, found.partners, ignore_index=IGNORED_LABEL, reduction="sum", label_smoothing=smoothing
    )


def _of_all_ranks(rows: torch.Tensor) -> torch.Tensor:
    """Return the rows of every rank, rank 0's first; gradients go back to the rank that a row came from."""
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return rows
    gathered: torch.Tensor = _Gather.apply(rows)  # type: ignore[no-untyped-call]
    return gathered


class _Gather(torch.autograd.Function):
    """All-gather whose backward adds what every rank's loss says about this rank's rows."""

    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor) -> torch.Tensor:
        parts = [torch.empty_like(rows) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, rows.contiguous())
        return torch.cat(parts)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        # Not a reduce-scatter, which gloo does not have for lists; a copy, since what autograd hands over is its own.
        summed = gradients[0].clone(memory_format=torch.contiguous_format)
        dist.all_reduce(summed)
        return summed.chunk(dist.get_world_size())[dist.get_rank()]
