import pytest
import torch

from funcloop import optim
from tests.optim.trajectories import run


def test_b10_eps_stands_outside_the_root():
    params = {"p": torch.tensor(1.0, dtype=torch.float64)}
    tx = optim.rmsprop(0.1, alpha=0.9, eps=0.1)
    got = run(tx, params, [{"p": torch.tensor(1.0, dtype=torch.float64)}])["p"]
    assert got.item() == pytest.approx(0.7597469, rel=1e-6)


def test_a_centered_variance_that_rounds_below_zero_is_no_nan(device):
    params = {"p": torch.tensor(1.0, device=device)}
    grads = [{"p": torch.tensor(1e4, device=device)}] * 50  # v - m * m is zero up to rounding
    assert run(optim.rmsprop(1e-3, centered=True, alpha=0.5), params, grads)["p"].isfinite()
