"""Which labels are wrong? A weight for each example, learned by the implicit gradient.

A third of the training labels of scikit-learn's real digits is replaced. The inner problem is a
weighted logistic regression; the outer one asks for weights that make it right on a few examples
that are known to be clean.

python examples/bilevel.py [--steps N]
"""

from __future__ import annotations

import argparse

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor

import funcloop as fl
from funcloop import meta

TRAIN, CLEAN, WRONG, L2 = 600, 200, 0.33, 1e-2


def data() -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor], tuple[Tensor, Tensor], Tensor]:
    """Train with wrong labels, clean, test; and which train labels are wrong."""
    x, y = load_digits(return_X_y=True)
    order, label_key, wrong_key = fl.random.split(fl.random.key(0), 3)
    place = fl.random.permutation(order, len(y))
    images = torch.tensor(x / 16, dtype=torch.float32)[place]
    labels = torch.tensor(y)[place]
    wrong = fl.random.uniform(wrong_key, (TRAIN,)) < WRONG
    other = (labels[:TRAIN] + fl.random.randint(label_key, (TRAIN,), 1, 10)) % 10
    noisy = torch.where(wrong, other, labels[:TRAIN])
    end = TRAIN + CLEAN
    clean, test = (images[TRAIN:end], labels[TRAIN:end]), (images[end:], labels[end:])
    return (images[:TRAIN], noisy), clean, test, wrong


def logits(w: Tensor, x: Tensor) -> Tensor:
    return x @ w[:-1] + w[-1]


def inner_loss(w: Tensor, hyper: Tensor, batch, key: Tensor) -> Tensor:
    """Cross-entropy with the learned weights; strongly convex in w."""
    x, y = batch
    losses = F.cross_entropy(logits(w, x), y, reduction="none")
    return (hyper.sigmoid() * losses).mean() + L2 / 2 * w.square().sum()


def solve(w: Tensor, hyper: Tensor, batch, key: Tensor) -> Tensor:
    """Newton's method from the last solution; each step is solved by conjugate gradients."""
    gradient = torch.func.grad(lambda w: inner_loss(w, hyper, batch, key))

    def hessian(v: Tensor, at: Tensor) -> Tensor:
        return torch.func.jvp(gradient, (at,), (v,))[1]

    for _ in range(4):
        direction, _ = meta.cg(rtol=1e-3, maxiter=60)(hessian, gradient(w), w)
        w = w - direction
    return w


def outer_loss(w: Tensor, hyper: Tensor, batch, key: Tensor) -> Tensor:
    x, y = batch
    return F.cross_entropy(logits(w, x), y, reduction="none")


def separation(weight: Tensor, wrong: Tensor) -> float:
    """Chance that a wrong label weighs less than a right one (area under the ROC curve)."""
    return float((weight[wrong].unsqueeze(1) < weight[~wrong]).float().mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=30, help="outer updates")
    args = parser.parse_args()

    train, clean, (x, y), wrong = data()
    grad_fn = meta.bilevel(inner_loss, outer_loss, solve, solver=meta.cg(maxiter=100))
    tx = fl.optim.adam(0.3)
    # The weights are the params; the regression's are the buffers, which stay warm.
    start = torch.zeros(TRAIN), torch.zeros(65, 10)
    state = fl.TrainState.create(*start, tx, key=fl.random.key(1))
    step = fl.train_step(grad_fn, tx)
    for n in range(args.steps):
        state, metrics = step(state, (train, clean))
        if n == 0:
            uniform = state.buffers
        if n % 10 == 0 or n == args.steps - 1:
            print(
                f"step {n:3}  clean loss {metrics['loss']:.3f}  "
                f"wrong labels told apart {separation(state.params, wrong):.3f}"
            )
    for name, w in (("equal weights", uniform), ("learned weights", state.buffers)):
        hit = (logits(w, x).argmax(-1) == y).float().mean()
        print(f"{name:16} test accuracy {hit:.3f}")
    weight = state.params.sigmoid()
    print(
        f"mean weight: wrong labels {weight[wrong].mean():.2f}, right {weight[~wrong].mean():.2f}"
    )


if __name__ == "__main__":
    main()
