"""Freed memory that stays with the process, for the next call needs it again.

A step frees its intermediates when it ends and asks for as many when it is called again. glibc
gives large freed blocks back to the system, which then has to provide every page anew, filled with
zeros: a quarter of a step that is bound by memory, a third of a small CNN's (two cores).
"""

from __future__ import annotations

import ctypes
import functools
import os

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of malloc.h
#: Blocks above the largest that glibc takes from its heap have their own mappings as before.
_FROM_HEAP = 32 << 20
_KEPT = 1 << 30
_VARIABLES = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")


@functools.cache
def keep_freed_pages() -> None:
    """Let glibc keep up to 1 GiB of freed memory, and take blocks of up to 32 MiB from its heap.

    It is a setting of the whole process. Where the environment has one (MALLOC_TRIM_THRESHOLD_,
    MALLOC_MMAP_THRESHOLD_ or GLIBC_TUNABLES), that one stands. Other C libraries have none.
    """
    if any(name in os.environ for name in _VARIABLES):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if os.name == "posix" else None
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, _FROM_HEAP)
        mallopt(_TRIM_THRESHOLD, _KEPT)
