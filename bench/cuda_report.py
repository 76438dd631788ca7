"""Is it right on CUDA, and how fast? `python -m bench.cuda_report`, in under five minutes.

Numerics first, then the step table of `pytest bench -k step`, in one process. Where there is no
CUDA device it says so and exits with 0.
"""

from __future__ import annotations

import gc
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping

import torch

from bench import _table, _workloads
from bench._interleave import Rival, interleave
from bench._numerics import checks
from bench._rivals import (
    COMPILED,
    EAGER,
    OURS,
    assert_same_losses,
    imperative_rivals,
    overhead_rivals,
)

#: Seconds after which no part is begun; the longest takes some forty.
LIMIT = 240.0
BUDGET = 8.0


def numerics(device: torch.device) -> int:
    """The number of checks that fail; each is printed."""
    failed = 0
    for name, check in checks(device):
        try:
            check()
        except Exception as error:  # the report goes on, whatever a device does
            failed += 1
            print(f"  FAIL  {name}: {str(error).strip().splitlines()[0][:200]}")
        else:
            print(f"  ok    {name}")
    return failed


def speed(question: str, rivals: Mapping[str, Rival]) -> list[_table.Row]:
    """Time of the first calls and of a step."""
    began, first = time.perf_counter(), {}
    for name, run in rivals.items():
        run()
        torch.cuda.synchronize()
        first[name] = time.perf_counter() - began
        began = time.perf_counter()
    assert_same_losses(rivals)
    timings = interleave(rivals, budget=BUDGET)
    compiled = {name: s for name, s in first.items() if name != EAGER}
    cold = _table.rows(f"{question}: first call", compiled, _table.plain_ratios(compiled))
    return _table.rows(question, timings.medians, timings.ratios) + cold


def peak_memory() -> list[_table.Row]:
    """Bytes that the 25M-parameter step allocates at its peak."""
    peaks = {}
    for name in (OURS, EAGER, COMPILED):
        run = _peak_of(name)
        for _ in range(2):
            run()
        torch.cuda.reset_peak_memory_stats()
        run()
        peaks[name] = torch.cuda.max_memory_allocated() / 1e6
        del run
        gc.collect()
        torch.cuda.empty_cache()
    return _table.rows("wide: peak memory", peaks, _table.plain_ratios(peaks), "MB")


def _peak_of(name: str) -> Rival:
    work = _workloads.build("wide")
    if name != OURS:
        return _workloads.imperative(work, compiled=name == COMPILED)
    return _workloads.lean(work)


def parts() -> Iterator[Callable[[], list[_table.Row]]]:
    yield lambda: speed("tiny: overhead", overhead_rivals("tiny"))
    for name in ("mlp", "cnn", "wide", "gpt"):
        yield lambda name=name: speed(f"{name} train step", imperative_rivals(name))
    yield peak_memory
    yield lambda: speed("gpt: same step", overhead_rivals("gpt"))


def main() -> int:
    if not torch.cuda.is_available():
        print("no CUDA device here: nothing to report")
        return 0
    began = time.perf_counter()
    # Both sides in full float32, so that what differs is an error; and compiled from nothing.
    torch.backends.cudnn.allow_tf32 = False
    with tempfile.TemporaryDirectory() as cache:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = cache
        print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}\nnumerics:")
        failed = numerics(torch.device("cuda"))
        table: list[_table.Row] = []
        for number, part in enumerate(parts()):
            if time.perf_counter() - began > LIMIT:
                print(f"out of time: parts from {number + 1} on are left out")
                break
            table += part()
    print("\n".join(_table.lines(table)))
    print(f"{failed} numerics checks failed; {time.perf_counter() - began:.0f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
