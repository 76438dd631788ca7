import itertools

import pytest
import torch

from funcloop import optim
from funcloop._errors import ArgumentError
from tests.optim.trajectories import distance, gradients, run, run_torch, start

GRID = [
    {"betas": betas, "eps": eps, "weight_decay": decay, "maximize": maximize}
    for betas, eps, decay, maximize in itertools.product(
        [(0.9, 0.999), (0.5, 0.7)], [1e-8, 1e-3], [0.0, 0.1], [False, True]
    )
]


@pytest.mark.parametrize("options", GRID, ids=str)
@pytest.mark.parametrize("name", ["Adam", "AdamW"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-6)])
def test_trajectory_equals_torch(name, options, dtype, tolerance, device):
    params = start(dtype, device)
    grads = gradients(params, 20)
    make = getattr(torch.optim, name)
    want = run_torch(lambda p: make(p, lr=0.01, **options), params, grads)
    got = run(getattr(optim, name.lower())(0.01, **options), params, grads)
    assert distance(got, want) < tolerance


def one_step(tx, grad, dtype=torch.float64, steps=1):
    params = {"p": torch.ones((), dtype=dtype)}
    return run(tx, params, [{"p": torch.tensor(grad, dtype=dtype)}] * steps)["p"]


def test_b10_where_eps_and_decay_stand():
    f64 = torch.float64
    cases = [
        (optim.adam(1.0, eps=1e-3), 1e-3, 0.5),
        (optim.adamw(0.1, weight_decay=0.1, eps=1e-30), 1.0, 0.89),
        (optim.adam(0.1, weight_decay=0.1, eps=1e-30), 1.0, 0.9),
    ]
    for tx, grad, want in cases:
        torch.testing.assert_close(one_step(tx, grad), torch.tensor(want, dtype=f64))


@pytest.mark.parametrize(
    ("grad", "steps", "want"), [(0.0, 1, 1.0), (1e-4, 1, 0.9990234375), (1e-4, 2, 0.998046875)]
)
def test_b10_fp16_params_are_updated_in_float32(grad, steps, want):
    got = one_step(optim.adam(1e-3), grad, torch.float16, steps)
    assert got.dtype is torch.float16
    assert got.item() == want


def test_meta_gradient_through_the_root_at_zero_is_finite():
    params = {"p": torch.tensor([1.0, 2.0])}

    def after(grad):
        return run(optim.adam(0.1), params, [{"p": grad}, {"p": grad}])["p"].sum()

    gradient = torch.func.grad(after)(torch.tensor([0.0, 1.0]))
    assert gradient.isfinite().all()
    second = torch.func.jacrev(torch.func.grad(after))(torch.tensor([0.0, 1.0]))
    assert second.isfinite().all()


@pytest.mark.parametrize("options", [{"betas": (1.0, 0.9)}, {"eps": -1.0}, {"lr": -1.0}])
def test_numbers_out_of_range_are_refused(options):
    with pytest.raises(ArgumentError, match=next(iter(options))):
        optim.adam(**options)
