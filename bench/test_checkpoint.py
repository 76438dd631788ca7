"""What does a save take beyond writing the bytes?"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

import funcloop as fl


@pytest.mark.parametrize("leaves", [16, 480])
def test_saving_100_mb(leaves: int, compare, tmp_path: Path):
    """Against one write of as many bytes into a new file, brought to disk and renamed as well."""
    tree = {f"layer.{n}.weight": torch.randn(25_000_000 // leaves) for n in range(leaves)}
    data = torch.cat(list(tree.values())).numpy().tobytes()

    def ours() -> None:
        fl.checkpoint.save(tmp_path / "ours", tree)

    def bytes_alone() -> None:
        with (tmp_path / "new").open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        (tmp_path / "new").replace(tmp_path / "theirs")

    rivals = {"checkpoint.save": ours, "the bytes, written and synced": bytes_alone}
    timings = compare(f"save 100 MB in {leaves} tensors", rivals, rounds=20)
    print(f"bar 1.3: {next(iter(timings.ratios.values())):.2f}")
