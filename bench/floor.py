"""How far is each training step from what the machine could do? `python -m bench.floor`.

The floor of a step is the larger of two times: its floating-point operations at the measured peak
of a large matrix product, and the bytes that it has to move at the measured bandwidth of an update
in place. Those bytes are: params and both moments read and written, gradients and everything saved
for the backward pass written and read, the batch read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from bench._interleave import interleave
from bench._workloads import DEVICE, Workload, build, pure

NAMES = ("mlp", "cnn", "gpt", "wide")


class Floor(NamedTuple):
    """Seconds that arithmetic and memory need at least."""

    arithmetic: float
    memory: float


def peak() -> float:
    """Operations a second of a float32 product of 2048 x 2048 (8192 on CUDA)."""
    size = 2048 if DEVICE.type == "cpu" else 8192
    a, b = (torch.rand(size, size, device=DEVICE) for _ in "ab")
    return 2 * size**3 / _seconds(lambda: a @ b)


def bandwidth() -> float:
    """Bytes a second, read and written, of an update in place of 400 MB."""
    x = torch.zeros(100_000_000, device=DEVICE)
    return 2 * 4 * x.numel() / _seconds(lambda: x.add_(1.0))


def _seconds(run: Callable[[], object]) -> float:
    return interleave({"it": run}, rounds=9, budget=4.0).medians["it"]


def operations(work: Workload) -> int:
    x, y = work.batch
    with FlopCounterMode(display=False) as counter:
        F.cross_entropy(work.net(x), y).backward()
    return counter.get_total_flops()


def moved(work: Workload) -> int:
    """Bytes that a step has to read or write."""
    params, (x, y) = list(work.net.parameters()), work.batch
    seen = {p.untyped_storage().data_ptr() for p in (*params, x, y)}
    saved: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in seen:
            saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        loss = F.cross_entropy(work.net(x), y)
        del loss
    state = sum(p.nbytes for p in params)
    return 8 * state + 2 * sum(saved.values()) + x.nbytes + y.nbytes


def floor(name: str, peak: float, bandwidth: float) -> Floor:
    work = build(name)
    return Floor(operations(work) / peak, moved(work) / bandwidth)


def main() -> None:
    flops, rate = peak(), bandwidth()
    print(f"peak {flops / 1e9:.0f} GFLOP/s, bandwidth {rate / 1e9:.0f} GB/s")
    for name in NAMES:
        run, least = pure(build(name)), floor(name, flops, rate)
        run()
        ours = interleave({"ours": run}, rounds=15, budget=5.0).medians["ours"]
        print(
            f"{name:5} arithmetic {1e3 * least.arithmetic:8.3f} ms,"
            f" memory {1e3 * least.memory:8.3f} ms, ours {1e3 * ours:8.3f} ms,"
            f" ours / floor {ours / max(least):.2f}"
        )


if __name__ == "__main__":
    main()
