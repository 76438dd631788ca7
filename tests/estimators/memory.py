"""How much memory a call takes, as torch's profiler sees it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from torch.profiler import ProfilerActivity, profile


def peak(f: Any, *args: Any, folder: Path) -> int:
    """Most bytes that a call holds at a time beyond what was there before."""
    f(*args)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as prof:
        f(*args)
    path = folder / "trace.json"
    prof.export_chrome_trace(str(path))
    events = [e for e in json.loads(path.read_text())["traceEvents"] if e["name"] == "[memory]"]
    events.sort(key=lambda event: event["ts"])
    before = events[0]["args"]["Total Allocated"] - events[0]["args"]["Bytes"]
    return max(event["args"]["Total Allocated"] for event in events) - before
