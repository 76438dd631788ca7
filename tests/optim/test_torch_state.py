"""A half-finished torch run goes on here, and a run from here goes on in torch."""

import copy

import pytest
import torch

from funcloop import optim
from funcloop._errors import StructureError, UnsupportedError
from tests.laws import assert_trees_close
from tests.optim.trajectories import gradients, start

pytestmark = pytest.mark.usefixtures("float64")

OPTIONS = {
    "Adadelta": {},
    "Adafactor": {"weight_decay": 0.1},
    "Adagrad": {"lr_decay": 0.1, "initial_accumulator_value": 0.1},
    "Adam": {"weight_decay": 0.1, "amsgrad": True},
    "AdamW": {},
    "Adamax": {},
    "ASGD": {"t0": 2, "weight_decay": 0.1},
    "Muon": {},
    "NAdam": {"decoupled_weight_decay": True, "weight_decay": 0.1},
    "RAdam": {},
    "RMSprop": {"centered": True, "momentum": 0.5},
    "Rprop": {},
    "SGD": {"momentum": 0.9, "dampening": 0.5, "maximize": True},
}


def make(name, groups=False):
    params = start()
    if name == "Muon":
        params = {"w": params["w"], "v": params["w"] * 2}
    leaves = {k: torch.nn.Parameter(v.clone()) for k, v in params.items()}
    named = list(leaves.items())
    arguments = named
    if groups:
        arguments = [{"params": named[:1], "lr": 0.03}, {"params": named[1:]}]
    return leaves, getattr(torch.optim, name)(arguments, lr=0.1, **OPTIONS[name])


def step_torch(leaves, optimizer, grads):
    for g in grads:
        for k, p in leaves.items():
            p.grad = g[k].clone()
        optimizer.step()


def step_here(tx, state, params, grads):
    for g in grads:
        updates, state = tx.update(g, state, params)
        params = optim.apply_updates(params, updates)
    return params, state


def values(leaves):
    return {k: p.detach().clone() for k, p in leaves.items()}


def by_key(entry):
    return dict(sorted(entry.items()))


@pytest.mark.parametrize("groups", [False, True], ids=["one group", "two groups"])
@pytest.mark.parametrize("begin", [0, 3])
@pytest.mark.parametrize("name", OPTIONS)
def test_there_and_back(name, begin, groups):
    leaves, optimizer = make(name, groups)
    grads = gradients(values(leaves), 9)
    step_torch(leaves, optimizer, grads[:begin])
    before = copy.deepcopy(optimizer.state_dict())
    tx, state = optim.from_torch(optimizer)
    here, state = step_here(tx, state, values(leaves), grads[begin:6])
    assert_trees_close(optimizer.state_dict()["state"], before["state"], rtol=0)

    step_torch(leaves, optimizer, grads[begin:6])
    assert_trees_close(here, values(leaves), rtol=1e-10)
    twin_leaves, twin = make(name, groups)
    for k, p in twin_leaves.items():
        p.data.copy_(here[k])
    twin.load_state_dict(optim.to_torch(state, twin))
    for a, b in zip(leaves.values(), twin_leaves.values(), strict=True):
        assert_trees_close(by_key(twin.state[b]), by_key(optimizer.state[a]), rtol=1e-10)
    step_torch(leaves, optimizer, grads[6:])
    step_torch(twin_leaves, twin, grads[6:])
    assert_trees_close(values(twin_leaves), values(leaves), rtol=1e-10)


def test_a_state_inside_a_larger_one_is_found():
    leaves, optimizer = make("AdamW")
    grads = gradients(values(leaves), 1)
    tx = optim.chain(optim.clip_by_global_norm(1.0), optim.adamw(0.1))
    _, state = step_here(tx, tx.init(values(leaves)), values(leaves), grads)
    loaded = optim.to_torch(state, optimizer)["state"]
    torch.testing.assert_close(loaded[0]["exp_avg"], state[1][0][0].exp_avg["w"])
    assert loaded[0]["step"] == 1


def test_names_come_from_the_module_too():
    net = torch.nn.Linear(2, 1)
    optimizer = torch.optim.Adam(net.parameters())
    with pytest.raises(StructureError, match="keyed by parameter names"):
        optim.from_torch(optimizer)
    _, state = optim.from_torch(optimizer, net.named_parameters())
    assert list(state[0].exp_avg) == ["weight", "bias"]


def test_params_at_different_steps_are_refused():
    leaves, optimizer = make("Adam")
    leaves["w"].grad = torch.ones_like(leaves["w"])
    optimizer.step()
    with pytest.raises(UnsupportedError, match=r"at the steps \[0, 1\]"):
        optim.from_torch(optimizer)


def test_a_custom_optimizer_is_refused_by_name():
    class Custom(torch.optim.SGD):
        pass

    with pytest.raises(UnsupportedError, match="Custom"):
        optim.from_torch(Custom([("p", torch.nn.Parameter(torch.ones(1)))]))
