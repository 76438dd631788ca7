"""A compiled step finds the memory that its last call freed: it is taken from glibc's heap."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(
    "CS_GNU_LIBC_VERSION" not in getattr(os, "confstr_names", ()),
    reason="only glibc has these settings",
)

#: Prints how many blocks of their own mapping two tensors of 20 MB bring with them.
PROGRAM = """
import ctypes, torch
import funcloop as fl

class Mallinfo(ctypes.Structure):
    _fields_ = [(str(place), ctypes.c_int) for place in range(10)]

libc = ctypes.CDLL(None)
libc.mallinfo.restype = Mallinfo
mapped = lambda: getattr(libc.mallinfo(), "3")  # hblks

fl.jit(lambda x: x + 1, backend="aot_eager")(torch.ones(3))
before = mapped()
large = [torch.empty(5 << 20) for _ in range(2)]
print(mapped() - before)
"""


def mapped_blocks(**environment: str) -> int:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    program = [sys.executable, "-W", "ignore", "-c", PROGRAM]
    done = subprocess.run(
        program, env=clean | environment, capture_output=True, text=True, check=True
    )
    return int(done.stdout)


def test_large_blocks_come_from_the_heap():
    """Where they stay; a mapping of its own is given back with every free."""
    assert mapped_blocks() == 0


def test_a_setting_in_the_environment_stands():
    assert mapped_blocks(MALLOC_TRIM_THRESHOLD_="131072") == 2
