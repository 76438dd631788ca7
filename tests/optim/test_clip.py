import pytest
import torch

from funcloop import optim
from funcloop._errors import ArgumentError


def clip(grads, max_norm=1.0, **options):
    tx = optim.clip_by_global_norm(max_norm, **options)
    return tx.update(grads, tx.init(grads), grads)


def test_b15_huge_gradients_are_clipped_not_lost(device):
    clipped, state = clip({"w": torch.full((100,), 1e20, device=device)})
    torch.testing.assert_close(clipped["w"], torch.full((100,), 0.1, device=device))
    torch.testing.assert_close(state.norm, torch.tensor(1e21, dtype=torch.float64, device=device))


@pytest.mark.parametrize("bad", [float("inf"), float("nan")])
def test_b15_non_finite_gradients_are_dropped_and_reported(bad, device):
    grads = {"w": torch.tensor([bad, 1.0], device=device), "b": torch.tensor(1.0, device=device)}
    clipped, state = clip(grads)
    assert clipped["w"].tolist() == [0.0, 0.0]
    assert clipped["b"].item() == 0.0
    assert not state.norm.isfinite()
    assert state.dropped.item() == 1


def test_b15_jacobian_at_zero_is_the_identity(device):
    jacobian = torch.func.jacrev(lambda g: clip(g)[0])(torch.zeros(3, device=device))
    torch.testing.assert_close(jacobian, torch.eye(3, device=device))


@pytest.mark.parametrize("max_norm", [0.0, -1.0])
def test_b15_max_norm_must_be_positive(max_norm):
    with pytest.raises(ArgumentError, match="max_norm"):
        optim.clip_by_global_norm(max_norm)


def test_b15_exact_and_torch_form():
    grads = {"w": torch.tensor([0.02], dtype=torch.float64)}
    exact, torchs = clip(grads, 0.01)[0], clip(grads, 0.01, eps=1e-6)[0]
    torch.testing.assert_close(exact["w"] / 0.02, torch.tensor([0.5], dtype=torch.float64))
    torch.testing.assert_close(
        torchs["w"] / 0.02, torch.tensor([0.499975]).double(), rtol=1e-6, atol=0
    )


def test_b32_clips_what_it_is_given_and_keeps_the_norm():
    clipped, state = clip({"p": torch.tensor([6.0, 8.0])})
    torch.testing.assert_close(clipped["p"], torch.tensor([0.6, 0.8]))
    assert state.norm.item() == pytest.approx(10.0)
    kept, state = clip({"p": torch.tensor([0.3, 0.4])})
    torch.testing.assert_close(kept["p"], torch.tensor([0.3, 0.4]))
    assert state.norm.item() == pytest.approx(0.5)
