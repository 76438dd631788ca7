"""Peak memory of the 25M-parameter step: `python -m bench._peak_step WAY WIDTH`.

Prints the largest resident size of a warm process during a step, in bytes (Linux). The difference
between two widths is what tensors need: Python, torch, compilers and code are the same in both.
Where the state holds the params, the module is sent to the meta device, so that it keeps no second
copy of them.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable

import torch

from bench import _workloads
from bench._process import forget_peak, memory


def build(way: str, width: int) -> Callable[[], object]:
    torch.manual_seed(0)
    work = _workloads.wide(width)
    if way == "jit":
        return _workloads.lean(work)
    if way == "jax":
        from bench._workloads_jax import jax_step

        run = jax_step(work)
        work.net.to("meta")
        return run
    return _workloads.imperative(work, compiled=way == "compiled")


def main(way: str, width: int) -> None:
    run = build(way, width)
    for _ in range(3):
        run()
    gc.collect()
    forget_peak()
    for _ in range(3):
        run()
    print(memory("VmHWM"))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
