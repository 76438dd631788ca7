"""Small modules and batches shared by the tests."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class MLP(nn.Module):
    """Two layers and dropout: (B, 4) -> (B, 3)."""

    def __init__(self, dropout: float = 0.5) -> None:
        super().__init__()
        self.hidden = nn.Linear(4, 8)
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.dropout(torch.tanh(self.hidden(x))))


class ConvNet(nn.Module):
    """Convolution, BatchNorm, dropout: (B, 1, 8, 8) -> (B, 10)."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.dropout = nn.Dropout(0.25)
        self.head = nn.Linear(4 * 16, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.norm(self.conv(x))), 2)
        return self.head(self.dropout(x.flatten(1)))


class Tied(nn.Module):
    """An embedding that is also the output head: (B, T) of tokens -> (B, T, 11) logits."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 6)
        self.head = nn.Linear(6, 11, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(torch.tanh(self.embed(tokens)))


class TwoNames(nn.Module):
    """One submodule under two names: (B, 1) -> (B, 1)."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(1, 1, bias=False)
        self.b = self.a

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.a(x))


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def classification(n: int, *shape: int, classes: int = 3, seed: int = 0) -> tuple[Tensor, Tensor]:
    """A batch of `n` examples of the given shape with class targets."""
    g = generator(seed)
    return torch.randn(n, *shape, generator=g), torch.randint(classes, (n,), generator=g)
