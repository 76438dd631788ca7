"""A training step compiled and saved by one process, and continued by another that has no model.

python examples/saved_step.py [--out FOLDER]      trains, saves, and starts the second process
python examples/saved_step.py --continue [...]    what the second process does

The second process imports neither the network nor Inductor: it loads the code of the whole step
(an AOTInductor package) and the state (a checkpoint), and goes on.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

import torch.nn.functional as F
from torch import Tensor, nn

import funcloop as fl

STEPS = 200


def data() -> tuple[Tensor, Tensor]:
    """Points (256, 8), and in which quadrant of their first two coordinates they lie, (256,)."""
    x = fl.random.normal(fl.random.key(1), (256, 8))
    return x, (x[:, 0] * x[:, 1] > 0).long()


def train(step: fl.compile.Compiled, state: fl.TrainState) -> fl.TrainState:
    """STEPS updates, and what the last one reports."""
    batch, began = data(), time.perf_counter()
    state, metrics = step(state, batch)
    first = time.perf_counter() - began
    for _ in range(STEPS - 1):
        state, metrics = step(state, batch)
    print(f"step {state.step}: loss {metrics['loss']:.4f}, first call {first * 1e3:.0f} ms")
    return state


def begin(folder: Path) -> None:
    net = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 2))
    model, tx = fl.stateless(net), fl.optim.adamw(fl.schedules.warmup_cosine(1e-2, 20, 2 * STEPS))
    state = fl.TrainState.create(*model.init(fl.random.key(0)), tx, key=fl.random.key(2))
    step = fl.train_step(fl.value_and_grad(fl.supervised(model, F.cross_entropy)), tx)
    compiled = fl.jit(step, donate=0).lower(state, data()).compile()
    compiled.save(folder / "step.pt2")
    state = train(compiled, state)
    fl.checkpoint.save(folder / "state.safetensors", state)


def go_on(folder: Path) -> None:
    began = time.perf_counter()
    step = fl.compile.load_compiled(folder / "step.pt2")
    state = fl.checkpoint.restore(folder / "state.safetensors", like=step.arguments[0])
    print(f"loaded in {(time.perf_counter() - began) * 1e3:.0f} ms")
    train(step, state)
    print(f"Inductor was imported: {'torch._inductor' in sys.modules}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--continue", action="store_true", dest="continued")
    parser.add_argument("--out", default="runs/saved_step", type=Path)
    args = parser.parse_args()
    if args.continued:
        go_on(args.out)
        return
    args.out.mkdir(parents=True, exist_ok=True)
    begin(args.out)
    command = [sys.executable, __file__, "--continue", "--out", str(args.out)]
    subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
