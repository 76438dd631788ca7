"""DP-SGD on scikit-learn's real digits, epsilon shown as it trains, beside the same net without.

python examples/dp_digits.py [--steps N] [--epsilon E] [--no-jit] [--out FOLDER]
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn

import funcloop as fl
from funcloop import privacy

DELTA, BATCH, STEPS = 1e-5, 256, 150


def network() -> nn.Module:
    """(B, 1, 8, 8) -> (B, 10); GroupNorm, since BatchNorm would let examples see each other."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.GroupNorm(4, 16),
        nn.Tanh(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(256, 10),
    )


def digits() -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Images in [0, 1], (N, 1, 8, 8), and classes, (N,): four fifths to train on, one to test."""
    images, classes = load_digits(return_X_y=True)
    x = torch.tensor(images / 16, dtype=torch.float32).view(-1, 1, 8, 8)
    y = torch.tensor(classes)
    train, test = train_test_split(range(len(y)), test_size=0.2, stratify=classes, random_state=0)
    return (x[train], y[train]), (x[test], y[test])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--epsilon", type=float, default=4.0, help="the budget at delta = 1e-5")
    parser.add_argument("--no-jit", action="store_true", help="run every step eagerly")
    parser.add_argument("--out", default="runs/dp_digits", type=Path, help="folder of the curves")
    args = parser.parse_args()

    train_set, test_set = digits()
    net = network()
    assert not privacy.validate(net)
    model = fl.stateless(net)
    net_key, data_key, run_key = fl.random.split(fl.random.key(0), 3)
    params, buffers = model.init(net_key)
    loss_fn = fl.supervised(model, F.cross_entropy)
    score = fl.eval_step(fl.supervised(model, F.cross_entropy, train=False))

    n = len(train_set[0])
    q = privacy.sampling_probability(BATCH, n)
    noise = privacy.calibrate_noise(
        args.epsilon, delta=DELTA, sampling_probability=q, steps=args.steps, method="rdp"
    )
    accountant = privacy.Accountant(noise, q, DELTA, args.steps, "rdp")
    private = privacy.dp_sgd(
        loss_fn,
        max_norm=1.0,
        noise_multiplier=noise,
        expected_batch_size=BATCH,
        accountant=accountant,
    )
    tx = fl.optim.adam(fl.schedules.cosine(0.02, args.steps))
    data = privacy.poisson_batches(data_key, n, q).of(train_set)

    def run(grad_fn: fl.GradFn, buffers: object, name: str) -> fl.TrainState:
        def evaluate(state: fl.TrainState) -> dict[str, float]:
            own = getattr(state.buffers, "buffers", state.buffers)
            found = score(state._replace(buffers=own), test_set)
            return {"loss": float(found.loss), "accuracy": float(found.metrics["accuracy"])}

        state = fl.TrainState.create(params, buffers, tx, key=run_key)
        step = fl.train_step(grad_fn, tx)
        if not args.no_jit:
            step = fl.jit(step, donate=0)
        result = fl.loop.fit(
            state, step, data, steps=args.steps, evaluate=evaluate, log_dir=args.out / name,
            log_every=1,
        )  # fmt: skip
        accuracy = evaluate(result.state)["accuracy"]
        print(f"{name}: test accuracy {accuracy:.4f}")
        return result

    runs = {
        "private": run(private, private.init(buffers), "private"),
        "non-private": run(fl.value_and_grad(loss_fn), buffers, "non-private"),
    }
    spent = accountant.epsilon(runs["private"].state.buffers.steps)
    print(f"epsilon {spent:.3f} at delta {DELTA:g}, noise multiplier {noise:.3f}")
    plot(runs, args.out / "dp_digits.png")


def plot(runs: dict[str, fl.loop.FitResult], path: Path) -> None:
    """Loss of both runs over the steps, and what the private one has spent."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, left = plt.subplots(figsize=(7, 4))
    for name, result in runs.items():
        rows = [r for r in result.history if "train/loss" in r]
        left.plot([r["step"] for r in rows], [r["train/loss"] for r in rows], label=name)
    rows = [r for r in runs["private"].history if "train/epsilon" in r]
    right = left.twinx()
    right.plot(
        [r["step"] for r in rows], [r["train/epsilon"] for r in rows], "k--", label="epsilon"
    )
    left.set(xlabel="step", ylabel="training loss", yscale="log")
    right.set(ylabel="epsilon at delta 1e-5")
    left.legend(loc="center right")
    figure.tight_layout()
    figure.savefig(path)
    print(f"curves: {path}")


if __name__ == "__main__":
    main()
