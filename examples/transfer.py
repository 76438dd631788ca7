"""Transfer learning: weights from a file, a new head, the rest frozen and later thawed by pattern.

A CNN learns to tell the digits 0 to 4, and its weights are saved as any PyTorch program does. With
three examples of each of the digits 5 to 9, a new head is then trained on what it has learned, and
at last the whole of it; beside it, the same network that starts from nothing.

python examples/transfer.py [--steps N] [--shots 3] [--jit] [--device cuda]
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn

import funcloop as fl

#: Params and buffers.
Leaves = tuple[dict[str, Tensor], dict[str, Tensor]]
Data = tuple[Tensor, Tensor]


class Network(nn.Module):
    """(B, 1, 8, 8) -> (B, C): features, and a head on top of them."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 32, 3, padding=1, bias=False),
            nn.BatchNorm2d(32),
            nn.ReLU(),
            nn.Conv2d(32, 64, 3, padding=1, bias=False),
            nn.BatchNorm2d(64),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
        )
        self.head = nn.Linear(64 * 16, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x))


def digits(device: torch.device, shots: int) -> tuple[Data, Data, Data]:
    """Digits 0 to 4; and of 5 to 9, called 0 to 4, so many of each to train on and the rest."""
    images, classes = load_digits(return_X_y=True)
    x = torch.tensor(images / 16, dtype=torch.float32).view(-1, 1, 8, 8).to(device)
    y = torch.tensor(classes).to(device)
    old, new = y < 5, y >= 5
    x_new, y_new = x[new], y[new] - 5
    rank = F.one_hot(y_new, 5).cumsum(0).gather(1, y_new[:, None])[:, 0]  # among its own, from 1
    few = rank <= shots
    return (x[old], y[old]), (x_new[few], y_new[few]), (x_new[~few], y_new[~few])


def train(model: fl.Stateless, leaves: Leaves, data: Data, rate: float, args: Any) -> Leaves:
    """The params and buffers after training; what is frozen lies in the buffers, and stays."""
    data_key, run_key = fl.random.split(fl.random.key(1).to(data[0].device))
    tx = fl.optim.adamw(fl.schedules.warmup_cosine(rate, args.steps // 10, args.steps))
    state = fl.TrainState.create(*leaves, tx, key=run_key)
    # Frozen features keep their statistics too: nothing but the head is trained then.
    frozen = not any(name.startswith("features") for name in state.params)
    loss_fn = fl.supervised(model, F.cross_entropy, train=not frozen)
    step = fl.train_step(fl.value_and_grad(loss_fn), tx)
    step = fl.jit(step, donate=0) if args.jit else step
    batches = fl.loop.batches(data_key, data, min(50, len(data[1])))
    state = fl.loop.fit(state, step, batches, steps=args.steps, progress=False).state
    return state.params, state.buffers


def accuracy(model: fl.Stateless, leaves: Leaves, data: Data) -> float:
    logits, _ = model.apply(*leaves, data[0], train=False)
    return float(fl.estimators.accuracy(logits, data[1]).mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100, help="updates in each phase")
    parser.add_argument("--shots", type=int, default=3, help="examples of each new digit")
    parser.add_argument("--jit", action="store_true", help="compile the steps")
    parser.add_argument("--device", default="cpu", type=torch.device)
    args = parser.parse_args()
    old, few, rest = digits(args.device, args.shots)
    key = fl.random.key(0).to(args.device)

    model = fl.stateless(Network(5).to(args.device))
    leaves = train(model, model.init(key), old, 3e-3, args)
    print(f"digits 0 to 4, {len(old[1])} examples to train on: {accuracy(model, leaves, old):.4f}")
    path = Path(tempfile.mkdtemp(), "digits.pt")
    torch.save(model.merge(*leaves).state_dict(), path)

    fresh = model.init(fl.random.fold_in(key, 1))
    scratch = train(model, fresh, few, 3e-3, args)
    print(f"digits 5 to 9 from nothing: {accuracy(model, scratch, rest):.4f}")

    loaded = fl.checkpoint.load_torch(path, *fresh, keep="head", drop="head")
    print(loaded)
    leaves = model.freeze(loaded.params, loaded.buffers, "features")
    leaves = train(model, leaves, few, 3e-3, args)
    print(f"a new head on frozen features: {accuracy(model, leaves, rest):.4f}")

    leaves = model.thaw(*leaves, "features.*")
    leaves = train(model, leaves, few, 3e-4, args)
    print(f"all of it, thawed: {accuracy(model, leaves, rest):.4f}")


if __name__ == "__main__":
    main()
