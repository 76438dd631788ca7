"""What every test shares: the device fixture, and property tests that are the same on each run."""

from __future__ import annotations

import pytest
import torch
from hypothesis import settings

# A noisy machine is no failure, and a random failure is no help.
settings.register_profile("funcloop", deadline=None, derandomize=True, max_examples=50)
settings.load_profile("funcloop")

# Importing torch's own test tables freezes the backend flags of the process, which
# `seed_everything` has to set.
torch.backends.disable_global_flags = lambda: None

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> torch.device:
    return torch.device(request.param)
