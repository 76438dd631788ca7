"""State that a swap cannot reach is refused by the path of what holds it."""

from __future__ import annotations

import functools
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from funcloop._errors import HiddenStateError, UnsupportedError
from funcloop.stateless import stateless
from tests.laws import assert_trees_equal

GLOBAL = nn.Linear(1, 1)
NAMED_LIKE_AN_ATTRIBUTE = nn.Linear(1, 1)


class Leaky(nn.Module):
    """Keeps its own parameter in a plain list, beside the registered one."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(1, 1, bias=False)
        self.cached = list(self.lin.parameters())

    def forward(self, x: Tensor) -> Tensor:
        return self.lin(x).pow(2).sum() + self.cached[0].pow(2).sum()


def test_b02_a_parameter_in_a_plain_list_is_found():
    with pytest.raises(HiddenStateError, match=r"cached\[0\] is not registered"):
        stateless(Leaky())


def test_b02_allow_hidden_keeps_it_as_a_constant():
    net = Leaky()
    net.lin.weight.data.fill_(3.0)
    model = stateless(net, allow_hidden="cached")
    output, _ = model.apply({"lin.weight": torch.zeros(1, 1)}, {}, torch.ones(1, 1), train=True)
    assert_trees_equal(output.detach(), torch.tensor(9.0))


class Holds(nn.Module):
    def __init__(self, make) -> None:
        super().__init__()
        self.inner = nn.Linear(1, 1)
        self.inner.held = make(self)


class Plain:
    def __init__(self, value) -> None:
        self.values = [value]


def closure(net: nn.Module):
    layer = nn.Linear(1, 1)
    return lambda x: layer(x)


HOLDERS = {
    "list": lambda net: [nn.Parameter(torch.ones(1))],
    "nested": lambda net: {"a": ([{"b": nn.Parameter(torch.ones(1))}],)},
    "set": lambda net: {nn.Parameter(torch.ones(1))},
    "module in tuple": lambda net: (nn.Linear(1, 1),),
    "tensor that requires grad": lambda net: torch.ones(1, requires_grad=True),
    "result of autograd": lambda net: net.inner.weight * 2,
    "alias of a buffer": lambda net: [net.inner.weight],
    "partial": lambda net: functools.partial(torch.add, nn.Parameter(torch.ones(1))),
    "closure": closure,
    "default": lambda net: lambda x, w=nn.Parameter(torch.ones(1)): x * w,  # noqa: B008  # the case
    "method of another module": lambda net: nn.Linear(1, 1).forward,
    "object": lambda net: Plain(nn.Parameter(torch.ones(1))),
    "namespace": lambda net: SimpleNamespace(weight=nn.Parameter(torch.ones(1))),
}


@pytest.mark.parametrize("holder", HOLDERS)
def test_b02_each_hiding_place_is_found(holder: str):
    with pytest.raises(HiddenStateError, match=r"inner\.held"):
        stateless(Holds(HOLDERS[holder]))
    stateless(Holds(HOLDERS[holder]), allow_hidden="inner.held")


class UsesGlobal(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return self.step(x)

    def step(self, x: Tensor) -> Tensor:
        return GLOBAL(x)


class OnTheClass(nn.Module):
    weight = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight


def test_b02_globals_and_class_attributes_are_found():
    with pytest.raises(HiddenStateError, match=r"step\(\) global GLOBAL"):
        stateless(UsesGlobal())
    with pytest.raises(HiddenStateError, match="weight"):
        stateless(OnTheClass())


class Harmless(nn.Module):
    """What looks similar and is no state."""

    def __init__(self) -> None:
        super().__init__()
        self.NAMED_LIKE_AN_ATTRIBUTE = nn.Linear(1, 1)
        self.table = [self.NAMED_LIKE_AN_ATTRIBUTE]
        self.constants = [torch.ones(1)]
        self.acts = {"relu": nn.ReLU(), "drop": nn.Dropout(0.5)}
        self.names = ["a"] * 10
        self.me = [self]

    def forward(self, x: Tensor) -> Tensor:
        return self.acts["drop"](self.NAMED_LIKE_AN_ATTRIBUTE(x)) * self.constants[0]

    def unused(self) -> nn.Module:
        return GLOBAL


def test_what_holds_no_state_passes():
    model = stateless(Harmless())
    assert model.names == ("NAMED_LIKE_AN_ATTRIBUTE.weight", "NAMED_LIKE_AN_ATTRIBUTE.bias")


def test_a_mode_in_a_plain_container_is_set_too():
    net = Harmless()
    model = stateless(net)
    x = torch.ones(1, 1)
    output, _ = model.apply(*model.init(), x, train=False)  # draws nothing
    assert_trees_equal(output, net.NAMED_LIKE_AN_ATTRIBUTE(x).detach())
    assert net.acts["drop"].training


def test_b02_lazy_modules_are_refused_until_they_have_seen_a_batch():
    net = nn.Sequential(nn.LazyLinear(2), nn.LazyBatchNorm1d())
    with pytest.raises(HiddenStateError, match=r"0\.weight is uninitialised.*dummy batch"):
        stateless(net)
    net(torch.ones(2, 3))
    assert stateless(net).names == ("0.weight", "0.bias", "1.weight", "1.bias")


def test_overlapping_memory_is_refused():
    net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    net[1].weight = nn.Parameter(net[0].weight.data)
    with pytest.raises(HiddenStateError, match=r"0\.weight and 1\.weight overlap"):
        stateless(net)
    flat = torch.zeros(8)
    net[0].weight.data, net[1].weight.data = flat[:4].view(2, 2), flat[4:].view(2, 2)
    stateless(net)  # side by side in one piece of memory is no overlap


@pytest.mark.parametrize(
    "hook",
    [
        lambda net: net.register_full_backward_hook(lambda *a: None),
        lambda net: net.register_full_backward_pre_hook(lambda *a: None),
        lambda net: net.weight.register_hook(lambda g: g),
        lambda net: net.weight.register_post_accumulate_grad_hook(lambda p: None),
    ],
)
def test_backward_hooks_are_refused(hook):
    net = nn.Linear(1, 1)
    handle = hook(net)
    with pytest.raises(UnsupportedError, match="no backward hooks"):
        stateless(net)
    handle.remove()
    stateless(net)


def test_forward_hooks_run():
    net, seen = nn.Linear(1, 1), []
    net.register_forward_pre_hook(lambda module, args: seen.append("before"))
    net.register_forward_hook(lambda module, args, output: output + 1)
    model = stateless(net)
    x = torch.ones(1, 1)
    output, _ = model.apply(*model.init(), x, train=True)
    assert_trees_equal(output, torch.nn.functional.linear(x, net.weight, net.bias).detach() + 1)
    assert seen == ["before"]
    assert len(net._forward_hooks) == len(net._forward_pre_hooks) == 1
