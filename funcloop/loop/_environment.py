"""What a run ran on, for whoever has to repeat it."""

from __future__ import annotations

import datetime
import functools
import math
import platform
import subprocess
import sys
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from funcloop import tree


def describe_run(state: object, config: Mapping[str, Any] | None, step: int) -> dict[str, Any]:
    """When a run began, from which step and key, with which configuration, on what; for JSON."""
    params = [x for x in tree.leaves(getattr(state, "params", None)) if isinstance(x, Tensor)]
    key = getattr(state, "key", None)
    return {
        "started": datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
        "first_step": step,
        "key": key.tolist() if isinstance(key, Tensor) else None,
        "parameters": {"tensors": len(params), "numbers": sum(x.numel() for x in params)},
        "config": plain(config or {}),
        "environment": environment(),
    }


def environment() -> dict[str, str]:
    """Versions, devices, threads, command line and commit, as words."""
    devices = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return {
        "command": " ".join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "commit": _commit(),
        "python": platform.python_version(),
        "funcloop": _version("funcloop"),
        "torch": str(torch.__version__),  # with the build, +cu130, which metadata leaves out
        "numpy": _version("numpy"),
        "system": platform.platform(),
        "processor": f"{_processor()}, {torch.get_num_threads()} threads",
        "accelerators": ", ".join(devices) or "none",
        "deterministic": "yes" if torch.are_deterministic_algorithms_enabled() else "no",
    }


def plain(value: Any) -> Any:
    """A value in JSON's types; what has none of them becomes its words."""
    if isinstance(value, Mapping):
        return {str(name): plain(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    kept = value is None or isinstance(value, (bool, int, str))
    return value if kept or (isinstance(value, float) and math.isfinite(value)) else str(value)


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:  # run from a folder that is not installed
        return "not installed"


@functools.cache
def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


@functools.cache
def _commit() -> str:
    """The commit of the working directory, with a plus where files differ from it."""
    try:
        found = subprocess.run(
            ["git", "describe", "--always", "--dirty=+"], capture_output=True, text=True, timeout=5
        )
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return found.stdout.strip() or "unknown"
