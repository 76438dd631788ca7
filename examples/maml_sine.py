"""MAML's sine waves: learn an initialisation from which 5 steps on 10 points fit a new wave.

python examples/maml_sine.py [--steps N] [--no-jit] [--out FOLDER]
"""

from __future__ import annotations

import argparse
import math
import time
from pathlib import Path

import matplotlib
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import funcloop as fl
from funcloop import meta

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # the backend is chosen first

TASKS, SHOTS, INNER_STEPS = 25, 10, 5
Sets = tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]


def network() -> nn.Module:
    return nn.Sequential(
        nn.Linear(1, 40), nn.ReLU(), nn.Linear(40, 40), nn.ReLU(), nn.Linear(40, 1)
    )


def waves(key: Tensor, tasks: int, queries: int) -> Sets:
    """`tasks` waves of amplitude 0.1 to 5 and phase 0 to pi: 10 points each, and the queries."""
    keys = fl.random.split(key, 4)
    amplitude = 0.1 + 4.9 * fl.random.uniform(keys[0], (tasks, 1, 1))
    phase = math.pi * fl.random.uniform(keys[1], (tasks, 1, 1))
    xs = 10 * fl.random.uniform(keys[2], (tasks, SHOTS, 1)) - 5
    xq = 10 * fl.random.uniform(keys[3], (tasks, queries, 1)) - 5
    return (xs, amplitude * (xs - phase).sin()), (xq, amplitude * (xq - phase).sin())


def train(grad_fn, params, steps: int, jit: bool, seed: int):
    """Params after `steps` updates, each on its own tasks, which the graph draws itself."""
    tx = fl.optim.chain(
        fl.optim.clip_by_global_norm(10.0),
        fl.optim.adam(fl.schedules.warmup_cosine(2e-3, steps // 20, steps)),
    )
    update = fl.train_step(grad_fn, tx)

    def step(state: fl.TrainState, key: Tensor):
        return update(state, waves(fl.random.fold_in(key, state.step), TASKS, SHOTS))

    state = fl.TrainState.create(params, {}, tx, key=fl.random.key(seed))
    run = fl.jit(step, donate=0) if jit else step
    key = fl.random.key(seed + 1)
    for _ in range(steps):
        state, _ = run(state, key)
    return state.params


def error_by_step(adapt_to, model: fl.Stateless, params, sets: Sets) -> Tensor:
    """Mean squared query error after 0, 1, ... inner steps, mean over tasks, shape (steps + 1,)."""
    (xs, ys), (xq, yq) = sets

    def one(xs: Tensor, ys: Tensor, xq: Tensor, yq: Tensor) -> Tensor:
        errors = []
        for steps in range(INNER_STEPS + 1):
            adapted = adapt_to(steps).adapt(params, {}, (xs, ys), fl.random.key(0))
            output, _ = model.apply(adapted.params, {}, xq, train=False)
            errors.append(F.mse_loss(output, yq))
        return torch.stack(errors)

    return torch.func.vmap(one)(xs, ys, xq, yq).mean(0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=15_000, help="meta-updates")
    parser.add_argument("--no-jit", action="store_true", help="run every step eagerly")
    parser.add_argument("--out", default="runs/maml_sine", type=Path, help="folder of the plot")
    args = parser.parse_args()
    began = time.perf_counter()

    model = fl.stateless(network())
    params, _ = model.init(fl.random.key(1))
    loss_fn = fl.supervised(model, F.mse_loss)

    # The learner: initial params, and an inner learning rate for each of their elements.
    learner = meta.metasgd(loss_fn, INNER_STEPS)
    start = meta.MetaParams.with_rates(params, 0.01)
    learned = train(learner, start, args.steps, not args.no_jit, seed=2)

    # The baseline: the same net on the same waves all together, then fine-tuned.
    def pooled(params, buffers, sets: Sets, key: Tensor):
        (xs, ys), (xq, yq) = sets
        x, y = torch.cat([xs, xq], 1).flatten(0, 1), torch.cat([ys, yq], 1).flatten(0, 1)
        return loss_fn(params, buffers, (x, y), key)

    pretrained = train(fl.value_and_grad(pooled), params, args.steps, not args.no_jit, seed=2)

    test = waves(fl.random.key(99), 200, 100)
    ours = error_by_step(lambda n: meta.metasgd(loss_fn, n), model, learned, test)
    # The baseline may choose the rate that suits it best on these very tasks.
    tuned = [
        error_by_step(
            lambda n, lr=lr: meta.maml(loss_fn, fl.optim.sgd(lr), n), model, pretrained, test
        )
        for lr in (0.001, 0.003, 0.01, 0.02, 0.05)
    ]
    baseline = min(tuned, key=lambda errors: float(errors[-1].nan_to_num(torch.inf)))

    print(f"{'inner steps':>12}  {'meta-learned':>12}  {'pre-trained':>12}")
    for n, (a, b) in enumerate(zip(ours, baseline, strict=True)):
        print(f"{n:>12}  {a:>12.4f}  {b:>12.4f}")
    print(f"error after {INNER_STEPS} steps, ours / baseline: {ours[-1] / baseline[-1]:.3f}")

    args.out.mkdir(parents=True, exist_ok=True)
    plot(args.out / "adaptation.png", ours, baseline, model, learner, learned, test)
    print(f"wrote {args.out / 'adaptation.png'} after {time.perf_counter() - began:.0f} s")


def plot(path: Path, ours, baseline, model, learner, learned, test: Sets) -> None:
    """Error against inner steps, and one wave before and after adaptation."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4))
    left.semilogy(ours, "o-", label="meta-learned")
    left.semilogy(baseline, "s--", label="pre-trained on all waves")
    left.set(xlabel="inner steps on 10 points", ylabel="mean squared error", title="200 new waves")
    left.legend()

    (xs, ys), (xq, yq) = ((x[0], y[0]) for x, y in test)
    x, order = xq.sort(0)
    fast = learner.adapt(learned, {}, (xs, ys), fl.random.key(0)).params
    for label, p, style in (("before", learned.params, ":"), ("after 5 steps", fast, "-")):
        right.plot(x, model.apply(p, {}, x, train=False)[0], style, label=label)
    right.plot(x, yq[order.flatten()], "k--", linewidth=0.8, label="the wave")
    right.plot(xs, ys, "k^", label="its 10 points")
    right.set(xlabel="x", title="one of them")
    right.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    main()
