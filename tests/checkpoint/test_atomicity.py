"""Field case B30: whatever happens during a save, the file is wholly old or wholly new."""

from __future__ import annotations

import os
import random
import resource
import signal
import time
from pathlib import Path

import pytest
import torch

from funcloop.checkpoint import restore, save

KILLS = 100


def test_b30_a_save_is_all_or_nothing(tmp_path: Path):
    path = tmp_path / "state"
    trees = [{"n": n, "x": torch.full((500_000,), float(n))} for n in (1, 2)]
    save(path, trees[0])
    chance, halves, seen, longest = random.Random(0), 0, set(), 0.01
    for number in range(KILLS):
        child = os.fork()
        if child == 0:
            try:
                save(path, trees[number % 2])
            finally:
                os._exit(0)  # never back into pytest
        time.sleep(chance.uniform(0, longest))
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        longest *= 0.9 if os.WIFEXITED(status) else 1.1  # on any machine, half of them finish
        halves += len(os.listdir(tmp_path)) > 1
        got = restore(path)
        assert torch.equal(got["x"], trees[got["n"] - 1]["x"])
        seen.add(got["n"])
    assert seen == {1, 2}
    assert halves >= KILLS // 20, "hardly any kill hit a save"
    save(path, trees[1])
    assert os.listdir(tmp_path) == ["state"]
    assert restore(path)["n"] == 2


def test_b30_a_full_disk_keeps_the_old_file(tmp_path: Path):
    path = tmp_path / "state"
    save(path, {"n": 1})
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, limits[1]))
        with pytest.raises(OSError, match="File too large"):
            save(path, {"x": torch.ones(10_000)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, ignored)
    assert restore(path) == {"n": 1}
    assert os.listdir(tmp_path) == ["state"]


def test_a_leaf_that_cannot_be_saved_keeps_the_old_file(tmp_path: Path):
    path = tmp_path / "state"
    save(path, {"n": 1})
    with pytest.raises(ValueError, match="holds tensors"):
        save(path, {"x": torch.ones(10), "y": object()})
    assert restore(path) == {"n": 1}
    assert os.listdir(tmp_path) == ["state"]
