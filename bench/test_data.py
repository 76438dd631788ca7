"""Does the input pipeline keep a step of 5 ms fed from 2 workers?"""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader

from bench.conftest import Compare
from funcloop import random
from funcloop.loop import ImageFolder, KeyedSampler, prefetch

BATCH, BATCHES, COPIES = 8, 120, 8
STEP = 0.005


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """JPEGs of 64x64 noise, which is the slowest thing to decode, in two classes."""
    images = pytest.importorskip("PIL.Image")
    root = tmp_path_factory.mktemp("images")
    for number in range(BATCH * BATCHES // COPIES):
        folder = root / str(number % 2)
        folder.mkdir(exist_ok=True)
        pixels = torch.randint(256, (24, 24, 3), dtype=torch.uint8).numpy()
        images.fromarray(pixels).resize((64, 64)).save(folder / f"{number}.jpg")
    return root


def test_a_step_of_5_ms_is_fed_from_2_workers(compare: Compare, root: Path):
    """The step runs elsewhere, as on a GPU: this process sleeps for as long."""
    images = ImageFolder(root, 48)
    loader = DataLoader(
        torch.utils.data.ConcatDataset([images] * COPIES),
        BATCH,
        sampler=KeyedSampler(random.key(0), COPIES * len(images)),
        num_workers=2,
        persistent_workers=True,
    )

    def run(batches: Iterable[object]) -> None:
        for _ in batches:
            time.sleep(STEP)

    in_memory = list(loader)
    assert len(in_memory) == BATCHES
    rivals = {
        "ours": lambda: run(prefetch(loader, "cpu", ahead=4)),
        "the same batches in memory": lambda: run(in_memory),
        "DataLoader alone": lambda: run(loader),
    }
    compare("120 steps of 5 ms on 8 JPEGs each, 2 workers", rivals, rounds=6)
