"""Modules that are no Hugging Face models, as a user might write them: what traces must not take for granted."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class OwnModel(nn.Module):
    """A small language model of torch's own layers, with a loss of its own and no base class but nn.Module."""

    def __init__(self, *, vocab_size: int = 300, width: int = 48, num_layers: int = 3) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, width)
        layer = nn.TransformerEncoderLayer(width, 4, 96, dropout=0.1, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, num_layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, vocab_size)

    def forward(self, tokens: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1], device=tokens.device)
        return self.head(self.blocks(self.embedding(tokens), mask=mask.to(self.head.weight.dtype)))


class SharedLayer(nn.Module):
    """The same layer applied twice in one forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(300, 32)
        self.inner = nn.Linear(32, 32)
        self.head = nn.Linear(32, 300)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = F.gelu(self.inner(self.embedding(tokens)))
        return self.head(F.gelu(self.inner(hidden)))


class TiedModel(nn.Module):
    """One matrix that is both embedding and output layer."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(300, 32)
        self.block = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 32), nn.LayerNorm(32))
        self.head = nn.Linear(32, 300, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.block(self.embedding(tokens)))


class FrozenModel(TiedModel):
    """Only the last layers are trained."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(32, 300)
        for parameter in self.embedding.parameters():
            parameter.requires_grad_(False)
        for parameter in self.block[0].parameters():
            parameter.requires_grad_(False)


class PickyModel(TiedModel):
    """Looks at its data: which tokens are not zero decides what is computed."""

    def forward(self, tokens: Tensor) -> Tensor:
        rows = torch.nonzero(tokens.flatten()).squeeze(1)
        return self.head(self.block(self.embedding(tokens).flatten(0, 1)[rows]))


OWN_MODULES: dict[str, type[nn.Module]] = {
    "own module": OwnModel,
    "layer used twice": SharedLayer,
    "tied weights": TiedModel,
    "frozen parameters": FrozenModel,
}


def token_rows(*, batch_size: int = 2, length: int = 24) -> dict[str, Tensor]:
    """Return token ids and targets of (batch, seq) for these modules."""
    return {name: torch.zeros((batch_size, length), dtype=torch.long) for name in ("tokens", "targets")}


def cross_entropy(module: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """Return a loss of the user's own making: the mean over tokens plus a penalty on large logits."""
    logits = module(batch["tokens"])
    return F.cross_entropy(logits.flatten(0, -2), batch["targets"].flatten()) + 1e-4 * logits.square().mean()
