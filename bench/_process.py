"""Fresh Python processes, and what they cost."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
#: glibc gives freed blocks back to the system at once: what is resident is then what is alive.
RETURN_FREED = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}


class Spent(NamedTuple):
    """What a process printed last, and the seconds it took, its compile workers' included."""

    printed: float
    wall: float
    cpu: float


def python(*arguments: str, **environment: str) -> Spent:
    """Run `python -m arguments...` with these additions to the environment."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    result = subprocess.run(
        [sys.executable, "-m", *arguments],
        cwd=ROOT,
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    wall, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Spent(float(result.stdout.split()[-1]), wall, cpu)


def memory(field: str) -> int:
    """Bytes of a line of /proc/self/status: VmRSS now, VmHWM at most (Linux)."""
    with open("/proc/self/status") as status:
        (line,) = [line for line in status if line.startswith(field)]
    return int(line.split()[1]) * 1024


def forget_peak() -> None:
    """VmHWM starts again from what is resident now (Linux)."""
    with open("/proc/self/clear_refs", "w") as clear:
        clear.write("5")
