"""A line on stderr when compiling takes long."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Iterator

#: Seconds of silence, and between two lines.
PATIENCE = 2.0


@contextlib.contextmanager
def compiling(name: str, operators: int) -> Iterator[None]:
    """Say on stderr what is being compiled and for how long, once it has taken over two seconds.

    `FUNCLOOP_PROGRESS=0` in the environment silences it.
    """
    if os.environ.get("FUNCLOOP_PROGRESS") == "0":
        yield
        return
    done, began = threading.Event(), time.monotonic()

    def report() -> None:
        while not done.wait(PATIENCE):
            spent = time.monotonic() - began
            _write(f"compiling {name}: traced {operators:,} operators, {spent:.0f} s so far")

    watcher = threading.Thread(target=report, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()
        if (spent := time.monotonic() - began) > PATIENCE:
            _write(f"compiled {name} in {spent:.0f} s", end="\n")


def _write(text: str, end: str = "") -> None:
    """On a terminal each line replaces the one before; a log gets the last one only."""
    terminal = sys.stderr.isatty()
    if terminal or end:
        sys.stderr.write(f"\r\x1b[K{text}{end}" if terminal else f"{text}{end}")
        sys.stderr.flush()
