"""Few-shot digits: meta-learn on seven of scikit-learn's real digits, test on the other three.

Seven classes are soon known by heart, so each image turned or mirrored is one of a class of its own
to learn from, as is usual for handwriting (Santoro et al. 2016): 56 classes in all.

python examples/maml_digits.py [--steps N] [--no-jit]
"""

from __future__ import annotations

import argparse

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn

import funcloop as fl
from funcloop import meta

WAYS, SHOTS, QUERIES, TASKS, INNER_STEPS = 3, 5, 10, 16, 5


def images_by_class() -> Tensor:
    """(10, 174, 64), in [0, 1]: as many of each digit as the rarest one has."""
    x, y = load_digits(return_X_y=True)
    images, classes = torch.tensor(x / 16, dtype=torch.float32), torch.tensor(y)
    return torch.stack([images[classes == digit][:174] for digit in range(10)])


def turned(images: Tensor) -> Tensor:
    """(C, N, 64) -> (8 C, N, 64): each image turned and mirrored is one of another class."""
    squares = images.unflatten(-1, (8, 8))
    kinds = [m.rot90(k, (2, 3)) for m in (squares, squares.mT) for k in range(4)]
    return torch.cat(kinds).flatten(2)


def sample(key: Tensor, images: Tensor, tasks: int):
    """Tasks that tell WAYS of the digits apart, which get new labels in each."""

    which, shuffle = fl.random.split(key)
    # The order of random numbers is a random order.
    chosen = fl.random.uniform(which, (tasks, len(images))).argsort(-1)[:, :WAYS]
    orders = fl.random.uniform(shuffle, (tasks, WAYS, images.shape[1])).argsort(-1)
    picked = orders[..., : SHOTS + QUERIES]
    x = images[chosen.unsqueeze(-1), picked]  # (T, WAYS, SHOTS + QUERIES, 64)
    label = torch.arange(WAYS).unsqueeze(1)

    def part(x: Tensor) -> tuple[Tensor, Tensor]:
        return x.flatten(1, 2), label.expand(x.shape[:3]).flatten(1)

    return part(x[:, :, :SHOTS]), part(x[:, :, SHOTS:])


def network(outputs: int) -> nn.Module:
    """BatchNorm in training mode everywhere: transductive, each set is its own statistics."""
    return nn.Sequential(
        nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(),
        nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(),
        nn.Linear(64, outputs),
    )  # fmt: skip


def learners():
    """Name, GradFn, and the params and buffers it starts from."""
    net = fl.stateless(network(WAYS))
    params, buffers = net.init(fl.random.key(0))
    loss_fn = fl.supervised(net, F.cross_entropy)
    yield "MAML", meta.maml(loss_fn, fl.optim.sgd(0.1), INNER_STEPS), params, buffers
    yield (
        "ANIL, the head adapts",
        meta.anil(loss_fn, fl.optim.sgd(0.1), INNER_STEPS, head="6"),
        params,
        buffers,
    )
    body = fl.stateless(network(32))

    def embed(params, buffers, x, key):
        return body.apply(params, buffers, x, train=True)

    yield "prototypes", meta.protonet(embed, WAYS), *body.init(fl.random.key(0))


def accuracy(grad_fn: meta.MetaGradFn, params, buffers, images: Tensor) -> float:
    """On 200 tasks of digits that were never trained on."""
    tasks = sample(fl.random.key(7), images, 200)
    _, aux = grad_fn.loss_fn(params, buffers, tasks, fl.random.key(8))
    return float(aux.metrics["accuracy"].mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=600, help="meta-updates of each learner")
    parser.add_argument("--no-jit", action="store_true", help="run every step eagerly")
    args = parser.parse_args()

    images = images_by_class()
    train_images, test_images = turned(images[:7]), images[7:]
    print(f"{WAYS} ways, {SHOTS} shots; accuracy on 200 tasks of the unseen digits 7, 8, 9")
    for name, grad_fn, params, buffers in learners():
        tx = fl.optim.adam(fl.schedules.cosine(3e-3, args.steps))
        state = fl.TrainState.create(params, buffers, tx, key=fl.random.key(1))
        update = fl.train_step(grad_fn, tx)
        step = update if args.no_jit else fl.jit(update, donate=0)
        for n in range(args.steps):
            key = fl.random.fold_in(fl.random.key(2), n)
            state, _ = step(state, sample(key, train_images, TASKS))
        before, after = (accuracy(grad_fn, p, buffers, test_images) for p in (params, state.params))
        print(f"{name:24} untrained {before:.3f}  meta-learned {after:.3f}")


if __name__ == "__main__":
    main()
