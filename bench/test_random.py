"""Are keyed random numbers as fast as the global generator's?"""

from __future__ import annotations

import torch
import torch.nn.functional as F

import funcloop as fl

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
N = 1_000_000


def test_uniform(compare):
    key = fl.random.key(0).to(DEVICE)
    draw = fl.jit(lambda key: fl.random.uniform(key, (N,)))
    compare(
        "1M uniform numbers",
        {"random.uniform, jitted": lambda: draw(key), "torch.rand": rand},
    )


def rand() -> torch.Tensor:
    return torch.rand(N, device=DEVICE)


def test_dropout(compare):
    key, x = fl.random.key(0).to(DEVICE), torch.randn(N, device=DEVICE)
    ours = fl.jit(lambda key, x: fl.random.dropout(key, x, 0.5))
    theirs = torch.compile(lambda x: F.dropout(x, 0.5))
    compare(
        "dropout of 1M elements",
        {"random.dropout, jitted": lambda: ours(key, x), "F.dropout, compiled": lambda: theirs(x)},
    )
