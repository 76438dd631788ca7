"""scikit-learn's 1,797 real handwritten digits: a small CNN, one jitted and donated step.

python examples/digits.py [--steps N] [--precision bf16] [--accumulate 4] [--no-jit] [--device cuda]
                          [--out FOLDER] [--resume]
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn

import funcloop as fl

BATCH, EPOCHS = 64, 15


def network() -> nn.Module:
    """(B, 1, 8, 8) -> (B, 10)."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1, bias=False),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, padding=1, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Dropout(0.3),
        nn.Flatten(),
        nn.Linear(64 * 16, 10),
    )


def digits(device: torch.device) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Images in [0, 1], (N, 1, 8, 8), and classes, (N,): four fifths to train on, one to test."""
    images, classes = load_digits(return_X_y=True)
    x = torch.tensor(images / 16, dtype=torch.float32).view(-1, 1, 8, 8)
    y = torch.tensor(classes)
    train, test = train_test_split(range(len(y)), test_size=0.2, stratify=classes, random_state=0)
    return (x[train].to(device), y[train].to(device)), (x[test].to(device), y[test].to(device))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, help=f"updates, instead of {EPOCHS} epochs")
    parser.add_argument("--precision", default="fp32", choices=["fp32", "bf16"])
    parser.add_argument("--accumulate", default=1, type=int, help="parts of a batch, one at a time")
    parser.add_argument("--no-jit", action="store_true", help="run every step eagerly")
    parser.add_argument("--device", default="cpu", type=torch.device)
    parser.add_argument("--out", default="runs/digits", type=Path, help="folder of the curves")
    parser.add_argument("--resume", action="store_true", help="go on from the last checkpoint")
    args = parser.parse_args()
    began = time.perf_counter()

    train_set, test_set = digits(args.device)
    net_key, data_key, run_key = fl.random.split(fl.random.key(0).to(args.device), 3)
    train_data = fl.loop.batches(data_key, train_set, BATCH)
    test_data = fl.loop.batches(None, test_set, 360)

    model = fl.stateless(network().to(args.device))
    if args.precision == "bf16":
        model = fl.precision.mixed(model, fl.precision.Policy("compute=bfloat16"))
    params, buffers = model.init(net_key)
    total = args.steps or EPOCHS * len(train_data)
    tx = fl.optim.chain(
        fl.optim.clip_by_global_norm(1.0),
        fl.optim.adamw(fl.schedules.warmup_cosine(3e-3, total // 10, total), weight_decay=1e-2),
    )
    state = fl.TrainState.create(params, buffers, tx, key=run_key)

    grad_fn = fl.value_and_grad(fl.supervised(model, F.cross_entropy))
    if args.accumulate > 1:
        grad_fn = fl.accumulate(grad_fn, args.accumulate)
    step = fl.train_step(grad_fn, tx)
    evaluate = fl.eval_step(fl.supervised(model, F.cross_entropy, train=False))
    if not args.no_jit:  # the evaluation runs sixteen times: not worth a compilation
        step = fl.jit(step, donate=0)

    checkpoints = fl.checkpoint.Checkpoints(args.out / "checkpoints", keep_best="val/accuracy")
    if not args.resume:
        checkpoints.clear()

    evaluate = fl.loop.evaluator(evaluate, test_data)
    result = fl.loop.fit(
        state,
        step,
        train_data,
        steps=args.steps,
        epochs=None if args.steps else EPOCHS,
        evaluate=evaluate,
        checkpoints=checkpoints,
        log_dir=args.out,
        config=vars(args),
    )
    print(f"curves: {args.out / 'curves.png'}  report: {args.out / 'report.html'}")
    print(f"test accuracy: {evaluate(result.state)['accuracy']:.4f}", end="  ")
    print(f"({result.position.step} steps in {time.perf_counter() - began:.1f} s)")


if __name__ == "__main__":
    main()
