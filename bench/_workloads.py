"""The training steps that are timed: a model, a batch and a loss, once for every rival."""

from __future__ import annotations

import copy
from collections.abc import Callable
from itertools import cycle, pairwise
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import funcloop as fl
from funcloop._types import Transform
from funcloop.step._train_step import TrainStep

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
LR, DECAY = 1e-3, 1e-4
BATCHES = 16
Run = Callable[[], Tensor]


Batch = tuple[Tensor, Tensor]


class Workload(NamedTuple):
    """A net and its batches; the loss is the mean cross-entropy over examples (and tokens).

    Steps take the batches in turn: one that is learned by heart leaves gradients below 1e-38, and
    on such numbers a CPU is three times slower, whoever's step it is.
    """

    net: nn.Module
    batches: list[Batch]

    @property
    def batch(self) -> Batch:
        return self.batches[0]


def mlp() -> Workload:
    """64-256-256-10, 128 examples: small products, small calls."""
    return Workload(dense(64, 256, 256, 10), labelled((128, 64), 10))


def wide(width: int = 2048) -> Workload:
    """25M parameters in 6 layers, 16 examples: bound by the memory that the optimizer touches."""
    return Workload(dense(*[width] * 7), labelled((16, width), 10))


def tiny() -> Workload:
    """2 layers of 8 units: all that is left is the cost of the call."""
    return Workload(dense(8, 8, 8), labelled((8, 8), 8))


def cnn() -> Workload:
    """Two 3x3 convolutions with BatchNorm and max-pooling, 64 images of 32x32."""
    net = nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1, bias=False),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * 64, 10),
    )
    return Workload(net, labelled((64, 3, 32, 32), 10))


def gpt(layers: int = 4, dim: int = 256, length: int = 128, rows: int = 16) -> Workload:
    """A decoder of 4 layers and 4 heads over 256 symbols, 16 rows of 128 of them."""
    texts = [torch.randint(256, (rows, length + 1)) for _ in range(BATCHES)]
    return Workload(
        GPT(layers, dim, 4, length),
        [(text[:, :-1].contiguous(), text[:, 1:].contiguous()) for text in texts],
    )


def labelled(shape: tuple[int, ...], classes: int) -> list[Batch]:
    """Noise with labels drawn by chance; the leading dimension is the examples."""
    return [(torch.randn(shape), torch.randint(classes, shape[:1])) for _ in range(BATCHES)]


def dense(*widths: int) -> nn.Sequential:
    """Linear layers with ReLU between them."""
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class Block(nn.Module):
    """Pre-norm: causal attention, then an MLP four times as wide."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.up, self.down = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        b, t, d = x.shape
        qkv = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, d // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)  # each (B, H, T, D)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(b, t, d))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    """Symbols (B, T) to scores (B, 256, T), as cross_entropy wants them."""

    def __init__(self, layers: int, dim: int, heads: int, length: int, symbols: int = 256) -> None:
        super().__init__()
        self.symbol, self.place = nn.Embedding(symbols, dim), nn.Embedding(length, dim)
        self.blocks = nn.ModuleList(Block(dim, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(dim), nn.Linear(dim, symbols, bias=False)

    def forward(self, text: Tensor) -> Tensor:
        x = self.symbol(text) + self.place.weight
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)).transpose(1, 2)


WORKLOADS = {"mlp": mlp, "cnn": cnn, "gpt": gpt, "wide": wide, "tiny": tiny}


def build(name: str) -> Workload:
    """A workload of `WORKLOADS` on the device, the same each time."""
    torch.manual_seed(0)
    net, batches = WORKLOADS[name]()
    return Workload(net.to(DEVICE), [(x.to(DEVICE), y.to(DEVICE)) for x, y in batches])


def first_state(net: nn.Module) -> fl.TrainState:
    """The state before the first step, a copy of the net's weights."""
    return fl.TrainState.create(*fl.stateless(net).init(), optimizer(), key=fl.random.key(0))


def pure_step(net: nn.Module) -> TrainStep:
    """The pure step; it also reports the gradient norm, which the rivals do not."""
    loss_fn = fl.supervised(fl.stateless(net), F.cross_entropy, metrics={})
    return fl.train_step(fl.value_and_grad(loss_fn), optimizer())


def optimizer() -> Transform:
    return fl.optim.adamw(LR, weight_decay=DECAY)


def pure(work: Workload) -> Run:
    """The jitted and donated step."""
    state = first_state(work.net)
    return running(fl.jit(pure_step(work.net), donate=0), state, work)


def lean(work: Workload) -> Run:
    """The same, and the module keeps no second copy of the params, as the rivals' does not."""
    state = first_state(work.net)
    return running(fl.jit(pure_step(work.net.to("meta")), donate=0), state, work)


def running(step: TrainStep, state: fl.TrainState, work: Workload) -> Run:
    """One step more at each call."""
    batches = cycle(work.batches)

    def run() -> Tensor:
        nonlocal state
        state, metrics = step(state, next(batches))
        return metrics["loss"]

    return run


def imperative(work: Workload, compiled: bool) -> Run:
    """The usual loop body with the fused optimizer."""
    net, batches = copy.deepcopy(work.net), cycle(work.batches)
    optimizer = torch.optim.AdamW(net.parameters(), lr=LR, weight_decay=DECAY, fused=True)
    model = torch.compile(net) if compiled else net

    def run() -> Tensor:
        x, y = next(batches)
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return run


def dynamo(work: Workload) -> Run:
    """The same step on torch.func alone, under torch.compile: what jit is compared with.

    Dynamo cannot trace through `stateless`; transforms, state and arithmetic are the same.
    """
    tx, net = optimizer(), work.net

    def loss(params: dict[str, Tensor], batch: tuple[Tensor, Tensor]) -> Tensor:
        return F.cross_entropy(torch.func.functional_call(net, params, batch[0]), batch[1])

    @torch.no_grad()
    @torch.compile
    def step(state: fl.TrainState, batch: tuple[Tensor, Tensor]):
        grads, value = torch.func.grad_and_value(loss)(state.params, batch)
        updates, opt_state = tx.update(grads, state.opt_state, state.params)
        params = fl.optim.apply_updates(state.params, updates)
        norm = torch.stack([g.square().sum() for g in grads.values()]).sum().sqrt()
        state = state._replace(step=state.step + 1, params=params, opt_state=opt_state)
        return state, {"loss": value, "grad_norm": norm}

    return running(step, first_state(net), work)
