"""The module is put back, whatever happens."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import Tensor, nn

import tests.cases
from funcloop._errors import HiddenStateError, StructureError
from funcloop.random import key
from funcloop.stateless import stateless
from tests.cases import MLP, TwoNames, classification, generator
from tests.laws import assert_module_unchanged, assert_trees_equal, module_state

#: An input for every model of tests/cases.py.
INPUTS = {
    "MLP": classification(3, 4)[0],
    "ConvNet": classification(3, 1, 8, 8)[0],
    "Tied": torch.randint(11, (3, 5), generator=generator()),
    "TwoNames": torch.ones(3, 1),
}
MODELS = [
    kind
    for kind in vars(tests.cases).values()
    if isinstance(kind, type) and issubclass(kind, nn.Module) and kind.__module__ == "tests.cases"
]


def test_b01_a_shared_submodule_is_put_back():
    net = TwoNames()
    model, before = stateless(net), module_state(net)
    given = {"a.weight": torch.tensor([[7.0]])}
    output, _ = model.apply(given, {}, torch.ones(1, 1), train=True)
    assert_trees_equal(output, torch.tensor([[49.0]]))
    assert_module_unchanged(net, before)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        model.apply(given, {}, torch.ones(1, 2), train=True)
    assert_module_unchanged(net, before)


@pytest.mark.parametrize("transform", ["plain", "grad", "vmap"])
@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize("kind", MODELS)
def test_b01_every_model_of_the_suite_is_put_back(kind, train: bool, transform: str):
    net = kind()
    x = INPUTS[kind.__name__]
    model, before = stateless(net), module_state(net)
    params, buffers = model.init()

    def loss(params, buffers):
        return model.apply(params, buffers, x, key=key(0), train=train)[0].sum()

    if transform == "grad":
        torch.func.grad(loss)(params, buffers)
    elif transform == "vmap":
        double = lambda tree: {name: torch.stack([t, t]) for name, t in tree.items()}  # noqa: E731
        torch.func.vmap(loss)(double(params), double(buffers))
    else:
        loss(params, buffers)
    assert_module_unchanged(net, before)


class Recursive(nn.Module):
    """Calls itself as a pure function, halfway through its own forward."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(1, 1, bias=False)
        self.register_buffer("count", torch.zeros(()))
        self.model = []

    def forward(self, x: Tensor, depth: int) -> Tensor:
        self.count += 1
        if not depth:
            return self.lin(x)
        inner = {"lin.weight": torch.full((1, 1), 2.0)}
        y, _ = self.model[0].apply(inner, {"count": self.count}, x, depth - 1, train=True)
        return self.lin(y)


def test_nested_calls_of_one_module():
    net = Recursive()
    model = stateless(net)
    net.model.append(model)
    before = module_state(net)
    params = {"lin.weight": torch.full((1, 1), 5.0)}
    output, after = model.apply(params, {"count": torch.zeros(())}, torch.ones(1, 1), 2, train=True)
    assert_trees_equal(output, torch.full((1, 1), 20.0))
    assert_trees_equal(after, {"count": torch.ones(())})
    assert_module_unchanged(net, before)


def test_threads_wait_for_each_other():
    model = stateless(nn.Sequential(*[nn.Linear(8, 8) for _ in range(8)]))
    params, _ = model.init()
    x = torch.randn(4, 8, generator=generator())
    own = [{name: p * n for name, p in params.items()} for n in range(4)]
    expected = [model.apply(p, {}, x, train=True)[0] for p in own]
    wrong = []

    def work(n: int) -> None:
        for _ in range(20):
            if not torch.equal(model.apply(own[n], {}, x, train=True)[0], expected[n]):
                wrong.append(n)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


class Assigns(nn.Module):
    """Leaves something behind in its attributes."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self.lin = nn.Linear(2, 2)
        self.calls = 0
        self.cache = None
        self.ema = torch.zeros(2)
        self.seen = []
        self.table = {"first": 0}
        self.what = what

    def forward(self, x: Tensor) -> Tensor:
        if self.what == "containers":
            self.seen.append(x)
            self.table["last"] = x
            return self.lin(x) * len(self.seen)
        if self.what == "number":
            self.calls += 1
        elif self.what == "cache":
            self.cache = x.sum() if self.cache is None else self.cache
            return self.lin(x) + self.cache
        elif self.what == "tensor":
            self.ema = 0.5 * self.ema + x.mean(0)
        elif self.what == "tensor in place":
            self.ema.mul_(0.5)
        elif self.what == "module":
            self.late = nn.Linear(2, 2)
        elif self.what == "local module":
            return nn.Linear(2, 2)(x)
        elif self.what == "no parameter":
            self.late = nn.ReLU()
        elif self.what == "replaced module":
            self.lin = nn.ReLU()
        elif self.what == "local module without parameters":
            return self.lin(nn.ReLU()(x))
        elif self.what == "parameter":
            self.late = nn.Parameter(torch.zeros(2))
        elif self.what == "buffer":
            self.register_buffer("late", torch.zeros(2))
        return self.lin(x)


@pytest.mark.parametrize(
    "what", ["number", "cache", "containers", "local module without parameters"]
)
def test_attributes_are_the_same_at_every_call(what: str):
    net = Assigns(what)
    model, before = stateless(net), module_state(net)
    params, buffers = model.init()
    for x in (torch.zeros(1, 2), torch.ones(1, 2)):
        output, _ = model.apply(params, buffers, x, train=True)
        assert_trees_equal(output, (net.lin(x) + (x.sum() if what == "cache" else 0)).detach())
        assert_module_unchanged(net, before)
        assert net.table == {"first": 0}


@pytest.mark.parametrize(
    ("what", "kind", "message"),
    [
        ("tensor", HiddenStateError, "the forward assigns attribute ema"),
        ("tensor in place", HiddenStateError, "the forward writes into attribute ema"),
        ("module", HiddenStateError, "the forward makes parameter weight of a Linear"),
        ("local module", HiddenStateError, "the forward makes parameter weight of a Linear"),
        ("parameter", HiddenStateError, "the forward makes parameter late of a Assigns"),
        ("no parameter", StructureError, "keeps its children, parameters and buffers"),
        ("replaced module", StructureError, "keeps its children, parameters and buffers"),
        ("buffer", StructureError, "keeps its children, parameters and buffers"),
    ],
)
def test_state_made_in_forward_is_refused(what: str, kind, message: str):
    net = Assigns(what)
    model, before = stateless(net), module_state(net)
    with pytest.raises(kind, match=message):
        model.apply(*model.init(), torch.ones(1, 2), key=key(0), train=True)
    assert_module_unchanged(net, before)


def test_a_module_that_was_rebuilt_is_refused():
    net = MLP()
    model = stateless(net)
    params, buffers = model.init()
    net.head = nn.Linear(8, 3)
    with pytest.raises(StructureError, match="this MLP has others now"):
        model.apply(params, buffers, torch.ones(1, 4), train=False)


def test_new_values_in_the_module_do_not_matter():
    net = MLP()
    model = stateless(net)
    params, buffers = model.init()
    x = torch.ones(1, 4)
    expected, _ = model.apply(params, buffers, x, train=False)
    net.head.weight = nn.Parameter(torch.zeros(3, 8))
    before = module_state(net)
    assert_trees_equal(model.apply(params, buffers, x, train=False)[0], expected)
    assert_trees_equal(model.init()[0]["head.weight"], torch.zeros(3, 8))
    assert_trees_equal(model.merge(params, buffers).head.weight.detach(), params["head.weight"])
    assert_module_unchanged(net, before)
