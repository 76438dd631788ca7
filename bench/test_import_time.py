"""How long does `import funcloop` take beyond `import torch`?"""

from __future__ import annotations

import subprocess
import sys
from statistics import median

PROGRAM = (
    "import time, torch; began = time.perf_counter(); import funcloop; "
    "print(time.perf_counter() - began)"
)


def test_import_time(benchmark):
    def measure() -> float:
        return float(subprocess.check_output([sys.executable, "-c", PROGRAM]))

    benchmark.extra_info["seconds beyond torch"] = median(measure() for _ in range(5))
    print(f"import funcloop beyond torch: {benchmark.extra_info['seconds beyond torch']:.3f} s")
    benchmark.pedantic(measure, rounds=1)
