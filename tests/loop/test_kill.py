"""A real training program, killed with SIGKILL at random moments, always starts and always ends
with the bits of a run that nobody killed."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

PROGRAM = Path(__file__).with_name("killed.py")
ROOT = Path(__file__).parents[2]


def killed(folder: Path, *kills: int) -> dict[str, dict[str, int]]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    with (folder / "output.txt").open("w") as output:  # orphaned workers would keep a pipe open
        program = subprocess.Popen(
            [sys.executable, str(PROGRAM), str(folder), *map(str, kills)],
            env=environment,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        try:
            program.wait()
        finally:
            # A worker whose parent is killed before it has looked for it never ends by itself.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(program.pid, signal.SIGKILL)
            program.wait()
    assert program.returncode == 0, (folder / "output.txt").read_text()
    return json.loads((folder / "report.json").read_text())


def test_a_hundred_kills_some_of_them_with_two_workers(tmp_path: Path):
    """92 with `batches`, 8 with a DataLoader whose workers read ahead; most in mid-epoch."""
    report = killed(tmp_path, 92, 8)
    assert (report["batches"]["kills"], report["loader"]["kills"]) == (92, 8)
    assert report["batches"]["in_saves"] >= 5
    assert report["batches"]["places"] >= 20
    assert report["loader"]["places"] >= 3
