import itertools

import pytest
import torch

from funcloop import optim
from funcloop._errors import ArgumentError
from tests.optim.trajectories import distance, gradients, run, run_torch, start

GRID = [
    {
        "momentum": m,
        "dampening": d,
        "nesterov": n,
        "maximize": x,
        "weight_decay": w,
    }
    for m, d, n, x, w in itertools.product(
        [0.0, 0.9], [0.0, 0.5], [False, True], [False, True], [0.0, 0.1]
    )
    if not n or (m > 0 and d == 0)
]


@pytest.mark.parametrize("options", GRID, ids=str)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-6)])
def test_b09_whole_grid_equals_torch(options, dtype, tolerance, device):
    params = start(dtype, device)
    grads = gradients(params, 20)
    want = run_torch(lambda p: torch.optim.SGD(p, lr=0.05, **options), params, grads)
    assert distance(run(optim.sgd(0.05, **options), params, grads), want) < tolerance


def test_b09_first_buffer_is_the_first_gradient():
    params, grads = {"p": torch.tensor(1.0)}, [{"p": torch.tensor(1.0)}] * 3
    dampened = run(optim.sgd(0.1, momentum=0.9, dampening=0.5), params, grads)
    nesterov = run(optim.sgd(0.1, momentum=0.9, nesterov=True), params, grads)
    torch.testing.assert_close(dampened["p"], torch.tensor(0.584))
    torch.testing.assert_close(nesterov["p"], torch.tensor(0.1951))


@pytest.mark.parametrize("options", [{"momentum": 0.9, "dampening": 0.5}, {"momentum": 0.0}])
def test_b09_nesterov_needs_momentum_and_no_dampening(options):
    with pytest.raises(ArgumentError, match="nesterov needs momentum and no dampening"):
        optim.sgd(0.1, nesterov=True, **options)


@pytest.mark.parametrize("options", [{"lr": -0.1}, {"momentum": -0.9}, {"weight_decay": -1.0}])
def test_numbers_out_of_range_are_refused(options):
    with pytest.raises(ArgumentError, match=next(iter(options))):
        optim.sgd(**options)


def test_schedules_and_tensors_give_what_floats_give():
    params = start()
    grads = gradients(params, 5)
    want = run(optim.sgd(0.1, momentum=0.9, dampening=0.3, weight_decay=0.2), params, grads)
    f64 = torch.float64
    tensors = optim.sgd(*(torch.tensor(x, dtype=f64) for x in (0.1, 0.9, 0.3, 0.2)))
    schedules = optim.sgd(
        *(lambda c, x=x: c * 0 + torch.tensor(x, dtype=f64) for x in (0.1, 0.9, 0.3, 0.2))
    )
    assert distance(run(tensors, params, grads), want) < 1e-14
    assert distance(run(schedules, params, grads), want) < 1e-14
