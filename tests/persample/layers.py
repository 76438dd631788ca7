"""Layers for the property tests: a module, a strategy for its shape, and what it is fed with."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from hypothesis import strategies as st
from torch import Tensor, nn

TOKENS = 11


class Case(NamedTuple):
    """A module in float64 and the shape of one example; integer shapes are tokens."""

    net: nn.Module
    shape: tuple[int, ...]
    tokens: bool = False

    def batch(self, size: int) -> Tensor:
        if self.tokens:
            return torch.randint(TOKENS, (size, *self.shape))
        return torch.randn(size, *self.shape, dtype=torch.float64)


def losses(output: Tensor) -> Tensor:
    """A loss for each example that no layer's gradient can hide from: (B, ...) -> (B,)."""
    flat = output.flatten(1)
    ramp = torch.linspace(-1, 1, flat.shape[1], dtype=flat.dtype)
    return (flat.tanh() * ramp).sum(1) + flat.square().mean(1)


@st.composite
def linears(draw: st.DrawFn) -> Case:
    leading = tuple(draw(st.lists(st.integers(1, 4), max_size=3)))
    bias = draw(st.booleans())
    return Case(nn.Linear(3, draw(st.integers(1, 4)), bias=bias), (*leading, 3))


@st.composite
def convolutions(draw: st.DrawFn) -> Case:
    dims, groups = draw(st.integers(1, 3)), draw(st.integers(1, 2))
    pick = lambda low, high: tuple(draw(st.integers(low, high)) for _ in range(dims))  # noqa: E731
    kernel, stride, dilation = pick(1, 3), pick(1, 2), pick(1, 2)
    transposed = draw(st.booleans())
    options = {"stride": stride, "dilation": dilation, "groups": groups}
    options["bias"] = draw(st.booleans())
    if transposed:
        kind = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)[dims - 1]
        options["padding"] = tuple(
            min(p, d * (k - 1)) for p, d, k in zip(pick(0, 1), dilation, kernel, strict=True)
        )
        options["output_padding"] = tuple(
            min(o, max(s, d) - 1) for o, s, d in zip(pick(0, 1), stride, dilation, strict=True)
        )
    else:
        kind = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[dims - 1]
        modes = [pick(0, 2), "valid"] + (["same"] if set(stride) == {1} else [])
        options["padding"] = draw(st.sampled_from(modes))
        options["padding_mode"] = draw(st.sampled_from(["zeros", "circular"]))
        if options["padding_mode"] == "circular" and options["padding"] == "valid":
            options["padding_mode"] = "zeros"
    channels = 2 * groups
    return Case(
        kind(channels, groups * draw(st.integers(1, 2)), kernel, **options), (channels, *[5] * dims)
    )


@st.composite
def embeddings(draw: st.DrawFn) -> Case:
    padding = draw(st.sampled_from([None, 0, -1]))
    net = nn.Embedding(TOKENS, 3, padding_idx=padding, scale_grad_by_freq=draw(st.booleans()))
    return Case(net, (draw(st.integers(1, 6)),), tokens=True)


@st.composite
def bags(draw: st.DrawFn) -> Case:
    mode = draw(st.sampled_from(["sum", "mean", "max"]))
    padding = draw(st.sampled_from([None, 2]))
    return Case(nn.EmbeddingBag(TOKENS, 3, mode=mode, padding_idx=padding), (4,), tokens=True)


@st.composite
def norms(draw: st.DrawFn) -> Case:
    net = draw(
        st.sampled_from(
            [
                nn.LayerNorm(6),
                nn.LayerNorm((2, 6)),
                nn.RMSNorm(6),
                nn.GroupNorm(2, 4),
                nn.InstanceNorm1d(4, affine=True),
            ]
        )
    )
    before = draw(st.sampled_from([nn.Identity(), nn.Linear(6, 6)]))
    return Case(
        nn.Sequential(before, net, nn.Tanh(), nn.Linear(6, 2)),
        (4, 2, 6)[:3] if isinstance(net, nn.LayerNorm) else (4, 6),
    )


class Attention(nn.Module):
    def __init__(self, cross: bool, separate: bool, batch_first: bool) -> None:
        super().__init__()
        sizes = {"kdim": 3, "vdim": 5} if separate else {}
        self.attention = nn.MultiheadAttention(4, 2, batch_first=batch_first, **sizes)
        self.cross, self.sizes, self.batch_first = cross, sizes, batch_first

    def forward(self, x: Tensor) -> Tensor:
        x = x if self.batch_first else x.transpose(0, 1)
        key = value = x.flip(0) + 1 if self.cross else x
        if self.sizes:
            key, value = x[..., :3], torch.cat([x, x[..., :1]], -1)
        output = self.attention(x, key, value, need_weights=False)[0]
        return output if self.batch_first else output.transpose(0, 1)


attentions = st.builds(
    lambda *flags: Case(Attention(*flags), (3, 4)), st.booleans(), st.booleans(), st.booleans()
)


class Shared(nn.Module):
    """Every way in which one parameter is used more than once, or not as itself."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way = way
        self.embed = nn.Embedding(TOKENS, 4)
        self.weight = nn.Parameter(torch.randn(4, 4))
        self.scale = nn.Parameter(torch.randn(4))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)  # (B, T, 4)
        match self.way:
            case "tied head":
                return F.linear(torch.tanh(x), self.embed.weight)
            case "tied transposed":
                return torch.tanh(x) @ self.embed.weight.t()
            case "called twice":
                return F.linear(torch.relu_(F.linear(x, self.weight)), self.weight, self.scale)
            case "two sides":
                return torch.tanh(x @ self.weight) @ self.weight.T
            case "scaled weight":
                return F.linear(x, self.weight * self.scale)
            case "column slices":
                return (
                    F.linear(x[..., :2], self.weight[:, :2])
                    + F.linear(x, self.weight[1:3])[..., :1]
                )
            case "chunks":
                first, second = self.weight.chunk(2)
                return F.linear(x, first) * F.linear(x, second)
            case "overlapping":
                return F.linear(x, self.weight[:3]).sum(-1, True) * F.linear(x, self.weight[2:])
            case "stacked":
                return F.linear(x, torch.cat([self.weight, self.weight[:1] * 2]))
            case "broadcast":
                return (x * self.scale + self.scale) * self.weight.sum() + self.scale.mean()
            case "einsum":
                return torch.einsum("btd,de->bte", x, self.weight)
            case "addmm":
                return torch.addmm(self.scale, x[:, 0], self.weight)
            case "written over":
                y = F.linear(x, self.weight, self.scale)
                y[..., 0] += 1
                return F.linear(y.mul_(2).relu_(), self.weight)
            case "written through a view":
                y = F.linear(x, self.weight, self.scale)
                y.view(-1)[0] *= 3
                return F.linear(y, self.weight)
            case "in and out":
                return (
                    F.linear(x * self.scale, self.weight, self.scale)
                    + self.embed.weight[:, 0].sum()
                )
            case "no grad":
                with torch.no_grad():
                    fixed = F.linear(x, self.weight)
                return fixed * F.linear(x, self.weight.detach()) * self.scale
            case "moved":
                return F.linear(x, self.weight.clone().view(2, 8).reshape(4, 4).T.contiguous())


WAYS = (
    "tied head",
    "tied transposed",
    "called twice",
    "two sides",
    "scaled weight",
    "column slices",
    "chunks",
    "overlapping",
    "stacked",
    "broadcast",
    "einsum",
    "addmm",
    "written over",
    "written through a view",
    "in and out",
    "no grad",
    "moved",
)
shared = st.sampled_from(WAYS).map(lambda way: Case(Shared(way), (3,), tokens=True))


def recurrent(kind: Callable[..., nn.Module]) -> Case:
    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = kind(3, 2, num_layers=2, batch_first=True, bidirectional=True)

        def forward(self, x: Tensor) -> Tensor:
            return self.net(x)[0]

    return Case(Recurrent(), (4, 3))
