"""Finds deliberately mislabelled digits: by self-influence, by noise rank, by held-out ones.

python examples/influence.py [--steps N] [--flipped F]
"""

from __future__ import annotations

import argparse

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn

import funcloop as fl
from funcloop import persample


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--flipped", type=float, default=0.05, help="fraction of wrong labels")
    args = parser.parse_args()

    images, classes = load_digits(return_X_y=True)
    x, y = torch.tensor(images / 16, dtype=torch.float32), torch.tensor(classes)
    flip_key, net_key, data_key, run_key = fl.random.split(fl.random.key(0), 4)
    order = fl.random.permutation(flip_key, len(y))
    x, y = x[order], y[order]
    train_x, train_y, clean = x[:1437], y[:1437].clone(), (x[1437:], y[1437:])
    wrong = torch.arange(int(args.flipped * len(train_y)))  # the order is random already
    train_y[wrong] = (train_y[wrong] + 1 + fl.random.randint(data_key, wrong.shape, 0, 9)) % 10

    model = fl.stateless(nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)))
    params, buffers = model.init(net_key)
    loss_fn = fl.supervised(model, F.cross_entropy)
    tx = fl.optim.sgd(0.1, momentum=0.9)
    step = fl.train_step(fl.value_and_grad(loss_fn), tx)
    state = fl.TrainState.create(params, buffers, tx, key=run_key)

    influence, norms = persample.influence(loss_fn), persample.norms(loss_fn)
    helps, own = torch.zeros(len(train_y)), torch.zeros(len(train_y))
    for n in range(args.steps):
        state, metrics = step(state, (train_x, train_y))
        if n % 10 == 9:  # TracIn sums over checkpoints
            at = state.params, buffers
            helps += influence(*at, (train_x, train_y), clean, run_key).sum(1)
            norm = norms(*at, (train_x, train_y), run_key)
            own += norm.square()  # the influence of an example on itself

    print(f"loss {float(metrics['loss']):.3f}, {len(wrong)} of {len(train_y)} labels are wrong")
    looked_at = len(wrong)  # as many as there are wrong ones: 5% of the examples
    for name, suspicion in (
        ("self-influence", own),
        ("gradient norm at the end", norm),
        ("harm to held-out digits", -helps),
    ):
        print(f"recall at {args.flipped:.0%} by {name}: {recall(suspicion, wrong, looked_at):.3f}")


def recall(suspicion: Tensor, wrong: Tensor, looked_at: int) -> float:
    """The fraction of the wrong examples among the most suspicious ones."""
    return float(torch.isin(wrong, suspicion.topk(looked_at).indices).float().mean())


if __name__ == "__main__":
    main()
