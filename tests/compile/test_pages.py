"""A compiled step finds the memory that its last call freed."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

glibc = pytest.mark.skipif(
    not hasattr(os, "confstr") or "CS_GNU_LIBC_VERSION" not in os.confstr_names,
    reason="only glibc has these settings",
)

FAULTS = """
import resource, torch
import funcloop as fl

@fl.jit(backend="aot_eager")
def f(x):
    return ((x + 1) * (x + 2)).sum()  # 16 MB each

def faults():
    f(x)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

x = torch.ones(4 << 20)
for _ in range(5):
    f(x)
before = faults()
for _ in range(10):
    f(x)
print((faults() - before) / 11)
"""


def page_faults_of_a_call(**environment: str) -> float:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    result = subprocess.run(
        [sys.executable, "-c", FAULTS],
        env=clean | environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return float(result.stdout)


@glibc
def test_pages_are_not_asked_for_again():
    assert page_faults_of_a_call() < 100


@glibc
def test_a_setting_in_the_environment_stands():
    """With it, each of the three blocks of 4,096 pages is new at each call."""
    assert page_faults_of_a_call(MALLOC_TRIM_THRESHOLD_="0", MALLOC_MMAP_THRESHOLD_="65536") > 4000
