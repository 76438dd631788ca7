"""Every configuration that torch tests its optimizers with: the same trajectory here."""

import inspect
import re

import pytest
import torch
from torch.testing._internal.common_optimizers import optim_db

from funcloop import optim
from funcloop._errors import UnsupportedError
from tests.optim.trajectories import distance, gradients, run, run_torch, start

pytestmark = pytest.mark.usefixtures("float64")

#: Switches between torch's implementations of the same numbers.
SWITCHES = ("foreach", "fused", "capturable", "differentiable")
REFUSED = {"LBFGS": "closure", "SparseAdam": "sparse"}
CONFIGURATIONS = [
    pytest.param(info.optim_cls, entry.kwargs, id=f"{info.optim_cls.__name__}-{entry.desc}")
    for info in optim_db
    if info.optim_cls.__name__ not in REFUSED
    for entry in info.optim_inputs_func(device="cpu")
]


def builder(optimizer):
    return getattr(optim, optimizer.__name__.lower())


@pytest.mark.parametrize(("optimizer", "options"), CONFIGURATIONS)
def test_ten_steps_of_optim_db(optimizer, options):
    # A learning rate in float32 would round torch's 1 - lr * decay to float32, and ours not.
    options = {
        k: v.double() if isinstance(v, torch.Tensor) else v
        for k, v in options.items()
        if k not in SWITCHES
    }
    params = start()
    if optimizer is torch.optim.Muon:
        params = {"w": params["w"], "tall": params["w"].T.contiguous() * 2}
    grads = gradients(params, 10)
    want = run_torch(lambda p: optimizer(p, **options), params, grads)
    assert distance(run(builder(optimizer)(**options), params, grads), want) < 1e-10


def test_the_walk_is_the_whole_database():
    walked = {p.values[0].__name__ for p in CONFIGURATIONS}
    assert walked | set(REFUSED) == {info.optim_cls.__name__ for info in optim_db}
    assert len(CONFIGURATIONS) > 80


@pytest.mark.parametrize("optimizer", {p.values[0]: None for p in CONFIGURATIONS})
def test_defaults_and_argument_names_are_torchs(optimizer):
    theirs = inspect.signature(optimizer).parameters
    ours = inspect.signature(builder(optimizer)).parameters
    for name, parameter in theirs.items():
        if name not in ("params", *SWITCHES):
            assert ours[name].default == parameter.default, name


@pytest.mark.parametrize("name", REFUSED)
def test_other_optimizers_are_refused_by_name(name):
    optimizer = getattr(torch.optim, name)([("p", torch.nn.Parameter(torch.ones(2)))])
    with pytest.raises(UnsupportedError, match=f"{name}.*{REFUSED[name]}"):
        optim.from_torch(optimizer)


@pytest.mark.parametrize("name", ["Adam", "SGD", "RMSprop", "NAdam", "RAdam", "Rprop", "ASGD"])
def test_complex_params_as_torch(name):
    g = torch.Generator().manual_seed(0)
    params = {"z": torch.randn(5, dtype=torch.complex128, generator=g)}
    grads = [{"z": torch.randn(5, dtype=torch.complex128, generator=g)} for _ in range(10)]
    options = {"momentum": 0.9} if name in ("SGD", "RMSprop") else {}
    make = getattr(torch.optim, name)
    want = run_torch(lambda p: make(p, lr=0.1, **options), params, grads)
    assert distance(run(builder(make)(0.1, **options), params, grads), want) < 1e-10


@pytest.mark.parametrize("optimizer", {p.values[0]: None for p in CONFIGURATIONS})
def test_sparse_gradients_are_refused(optimizer):
    params = {"w": torch.ones(3, 2)}
    tx = builder(optimizer)()
    grads = {"w": torch.ones(3, 2).to_sparse()}
    with pytest.raises(UnsupportedError, match=re.escape("w has layout torch.sparse_coo")):
        tx.update(grads, tx.init(params), params)
