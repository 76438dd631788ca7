"""Ctrl-C and SIGTERM end a run between two steps, so that it can be saved."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stop:
    """Whether a signal has asked the run to end, and which."""

    asked: signal.Signals | None = None


@contextmanager
def stopping(active: bool) -> Iterator[Stop]:
    """Within, the first signal only says that the run is to end; a second one ends it at once.

    Afterwards the handlers are as they were, and the first signal is given to the one that it was
    for: Ctrl-C raises KeyboardInterrupt, and SIGTERM, where nobody else handles it, SystemExit.

    Args:
        active: Whether to listen; threads other than the main one never do, as Python has it.
    """
    stop = Stop()
    if not active or threading.current_thread() is not threading.main_thread():
        yield stop
        return

    def ask(number: int, frame: Any) -> None:
        if stop.asked is not None:
            raise KeyboardInterrupt
        stop.asked = signal.Signals(number)

    before = {number: signal.getsignal(number) for number in _SIGNALS}
    # An ignored signal stays ignored, and a handler from C (None) could not be put back.
    before = {n: h for n, h in before.items() if h not in (signal.SIG_IGN, None)}
    for number in before:
        signal.signal(number, ask)
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if stop.asked is not None:
        if before[stop.asked] is signal.SIG_DFL:  # unlike a dying process, it cleans up
            raise SystemExit(128 + stop.asked)
        signal.raise_signal(stop.asked)
