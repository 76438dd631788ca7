"""Field case B11: which count a schedule sees."""

import torch

from funcloop import optim, schedules
from tests.optim.trajectories import run


def test_b11_the_first_update_sees_count_zero():
    def lrs(count):
        return torch.clamp(count / 4, max=1.0)

    grads = [{"p": torch.tensor(1.0)}] * 5
    assert run(optim.sgd(lrs), {"p": torch.tensor(0.0)}, grads)["p"].item() == -2.5


def test_b11_cosine_reaches_its_end_at_count_n():
    got = schedules.cosine(1.0, 4)(torch.arange(7))
    want = torch.tensor([1.0, 0.8535534, 0.5, 0.1464466, 0.0, 0.0, 0.0])
    torch.testing.assert_close(got, want.double(), rtol=1e-6, atol=1e-7)
