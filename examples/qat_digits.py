"""Few bits on the real digits: rounding after training against training with learned steps (LSQ).

A small net of separable convolutions is trained in float32. Then its weights and the outputs of its
ReLUs are rounded to 8, 4, 3 and 2 bits, once as it is, and once, for each of `--bits`, after some
epochs of quantization-aware training. Each training compiles a step of its own, in a minute or two.

python examples/qat_digits.py [--epochs N] [--bits 4 3] [--no-jit] [--device cuda] [--out FOLDER]
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn

import funcloop as fl
from funcloop import ops

BATCH, BITS = 64, (8, 4, 3, 2)
Leaves = dict[str, Tensor]


def separable(inputs: int, outputs: int) -> list[nn.Module]:
    return [
        nn.Conv2d(inputs, inputs, 3, padding=1, groups=inputs, bias=False),
        nn.BatchNorm2d(inputs),
        nn.ReLU(),
        nn.Conv2d(inputs, outputs, 1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(),
    ]


def network() -> nn.Module:
    """(B, 1, 8, 8) -> (B, 10)."""
    stem = [nn.Conv2d(1, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU()]
    high = [*separable(16, 16), *separable(16, 32), nn.MaxPool2d(2)]
    low = [*separable(32, 32), *separable(32, 32), *separable(32, 32), nn.MaxPool2d(2)]
    return nn.Sequential(*stem, *high, *low, nn.Flatten(), nn.Linear(128, 10))


def digits(device: torch.device) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Images in [0, 1], (N, 1, 8, 8), and classes, (N,): four fifths to train on, one to test."""
    images, classes = load_digits(return_X_y=True)
    x = torch.tensor(images / 16, dtype=torch.float32).view(-1, 1, 8, 8)
    y = torch.tensor(classes)
    train, test = train_test_split(range(len(y)), test_size=0.2, stratify=classes, random_state=0)
    return (x[train].to(device), y[train].to(device)), (x[test].to(device), y[test].to(device))


def quantize(model: fl.Stateless, bits: int) -> ops.Quantized:
    """The model with weights and ReLU outputs of so many bits, one scale for each tensor."""
    return ops.quantized(
        model,
        weights=ops.QuantSpec(bits, narrow=True),
        activations=ops.QuantSpec(bits, signed=False),
    )


class Trainer:
    """Trains and tests any model on the digits."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.train_set, self.test_set = digits(args.device)
        key = fl.random.key(0).to(args.device)
        self.net_key, data_key, self.run_key = fl.random.split(key, 3)
        self.data = fl.loop.batches(data_key, self.train_set, BATCH)

    def train(
        self, model: fl.Stateless | ops.Quantized, params: Leaves, buffers: Leaves, rate: float
    ) -> tuple[Leaves, Leaves]:
        total = self.args.epochs * len(self.data)
        schedule = fl.schedules.warmup_cosine(rate, total // 10, total)
        tx = fl.optim.chain(fl.optim.clip_by_global_norm(1.0), fl.optim.adamw(schedule))
        state = fl.TrainState.create(params, buffers, tx, key=self.run_key)
        step = fl.train_step(fl.value_and_grad(fl.supervised(model, F.cross_entropy)), tx)
        if not self.args.no_jit:
            step = fl.jit(step, donate=0)
        state = fl.loop.fit(state, step, self.data, epochs=self.args.epochs).state
        return state.params, state.buffers

    def accuracy(
        self, model: fl.Stateless | ops.Quantized, params: Leaves, buffers: Leaves
    ) -> float:
        x, y = self.test_set
        with torch.no_grad():
            logits, _ = model.apply(params, buffers, x, train=False)
        return (logits.argmax(-1) == y).float().mean().item()


def plot(float_accuracy: float, rows: Mapping[str, Mapping[int, float]], out: Path) -> Path:
    """Accuracy over bits, a line for each method and a dashed one for float32."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    axes.axhline(100 * float_accuracy, color="gray", linestyle="--", label="float32")
    for (name, row), marker in zip(rows.items(), "os", strict=True):
        axes.plot(list(row), [100 * a for a in row.values()], marker=marker, label=name)
    axes.set_title("Digits: accuracy of weights and activations of few bits")
    axes.set_xlabel("bits")
    axes.set_ylabel("test accuracy (%)")
    axes.set_xticks(BITS)
    axes.invert_xaxis()
    axes.grid(alpha=0.3)
    axes.legend()
    out.mkdir(parents=True, exist_ok=True)
    figure.savefig(out / "accuracy.png", dpi=150)
    return out / "accuracy.png"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", default=12, type=int, help="of each training")
    parser.add_argument("--bits", default=(4,), type=int, nargs="*", help="to train with")
    parser.add_argument("--no-jit", action="store_true", help="run every step eagerly")
    parser.add_argument("--device", default="cpu", type=torch.device)
    parser.add_argument("--out", default="runs/qat_digits", type=Path, help="folder of the plot")
    args = parser.parse_args()

    trainer = Trainer(args)
    model = fl.stateless(network().to(args.device))
    params, buffers = trainer.train(model, *model.init(trainer.net_key), rate=5e-3)
    full = trainer.accuracy(model, params, buffers)

    sample = trainer.train_set[0][:256]
    rounded: dict[int, float] = {}
    learned: dict[int, float] = {}
    for bits in BITS:
        small = quantize(model, bits)
        scaled = small.calibrate(params, buffers, sample, observer=ops.min_max)
        rounded[bits] = trainer.accuracy(small, *scaled)
        if bits in args.bits:
            start = small.calibrate(params, buffers, sample, observer=ops.mse)
            learned[bits] = trainer.accuracy(small, *trainer.train(small, *start, rate=2e-3))

    print(f"\n{'bits':>7}  {'rounded':>8}  {'LSQ':>8}")
    print(f"{'float32':>7}  {full:8.1%}  {full:8.1%}")
    for bits in BITS:
        trained = f"{learned[bits]:8.1%}" if bits in learned else ""
        print(f"{bits:7}  {rounded[bits]:8.1%}  {trained}")
    rows = {"rounded after training": rounded, "trained with LSQ": learned}
    print(f"plot: {plot(full, rows, args.out)}")


if __name__ == "__main__":
    main()
