"""A module as a pure function: what goes in, what comes out, and what stays as it was."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import Tensor, nn

from funcloop._errors import HiddenStateError, RandomnessError, StructureError, UnsupportedError
from funcloop.random import key
from funcloop.stateless import stateless
from tests.cases import MLP, ConvNet, Tied, classification, generator
from tests.laws import (
    assert_module_unchanged,
    assert_pure,
    assert_trees_close,
    assert_trees_equal,
    module_state,
    snapshot,
)

CASES = {
    "mlp": (MLP, classification(5, 4)[0]),
    "convnet": (ConvNet, classification(5, 1, 8, 8)[0]),
    "tied": (Tied, torch.randint(11, (5, 3), generator=generator())),
}


@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize("case", CASES)
def test_nothing_is_changed(case: str, train: bool, device: torch.device):
    make, x = CASES[case]
    net, x = make().to(device).train(not train), x.to(device)
    before = module_state(net)
    model = stateless(net)
    params, buffers = model.init()
    assert_pure(lambda *a: model.apply(*a, key=key(0), train=train), params, buffers, x)
    assert_module_unchanged(net, before)


@pytest.mark.parametrize("case", CASES)
def test_evaluation_equals_the_module(case: str, device: torch.device):
    make, x = CASES[case]
    net, x = make().to(device).eval(), x.to(device)
    model = stateless(net)
    params, buffers = model.init()
    output, after = model.apply(params, buffers, x, train=False)
    assert_trees_equal(output, net(x).detach())
    assert all(after[name] is buffers[name] for name in buffers)


def test_init_gives_copies_by_qualified_name():
    net = ConvNet()
    params, buffers = stateless(net).init()
    assert list(params) == [name for name, _ in net.named_parameters()]
    assert list(buffers) == [name for name, _ in net.named_buffers()]
    own = {id(t) for t in (*net.parameters(), *net.buffers())}
    for leaf in (*params.values(), *buffers.values()):
        assert id(leaf) not in own
        assert not leaf.requires_grad
        assert type(leaf) is Tensor
        leaf.zero_()
    assert all(bool(p.any()) for p in net.conv.parameters())


def test_frozen_parameters_live_in_buffers():
    net = MLP()
    net.hidden.requires_grad_(False)
    params, buffers = stateless(net).init()
    assert list(params) == ["head.weight", "head.bias"]
    assert list(buffers) == ["hidden.weight", "hidden.bias"]


def test_a_leaf_may_stand_on_either_side():
    model = stateless(MLP())
    params, buffers = model.init()
    x = CASES["mlp"][1]
    want, _ = model.apply(params, buffers, x, train=False)
    moved = {"head.weight": params.pop("head.weight")}
    got, after = model.apply(params, moved, x, train=False)
    assert_trees_equal(got, want)
    assert after == moved


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda p, b: p.pop("head.bias"), r"missing \['head.bias'\], unknown \[\]"),
        (lambda p, b: p.update(extra=torch.ones(1)), r"missing \[\], unknown \['extra'\]"),
        (lambda p, b: b.update({"head.bias": p["head.bias"]}), r"in both \['head.bias'\]"),
    ],
)
def test_names_have_to_match(change, message):
    model = stateless(MLP())
    params, buffers = model.init()
    change(params, buffers)
    with pytest.raises(StructureError, match=message):
        model.apply(params, buffers, torch.ones(1, 4), train=False)


def test_train_is_required():
    model = stateless(MLP())
    with pytest.raises(TypeError, match="train"):
        model.apply(*model.init(), torch.ones(1, 4))  # type: ignore[call-arg]  # the point


def test_dropout_comes_from_the_key():
    model = stateless(MLP())
    params, buffers = model.init()
    x = torch.ones(64, 4)

    def draw(seed: int) -> Tensor:
        return model.apply(params, buffers, x, key=key(seed), train=True)[0]

    torch.manual_seed(1)
    first = draw(0)
    torch.manual_seed(2)
    assert_trees_equal(draw(0), first)
    assert not torch.equal(draw(1), first)
    with pytest.raises(RandomnessError):
        model.apply(params, buffers, x, train=True)


def test_tied_weights_get_one_gradient():
    net = Tied()
    model = stateless(net)
    params, buffers = model.init()
    assert list(params) == ["embed.weight"]
    tokens = CASES["tied"][1]

    def loss(params):
        return model.apply(params, buffers, tokens, train=True)[0].square().mean()

    got = torch.func.grad(loss)(params)["embed.weight"]
    net(tokens).square().mean().backward()
    assert_trees_close(got, net.embed.weight.grad)


class Buffers(nn.Module):
    """Every way in which a forward changes a buffer."""

    shared: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("inplace", torch.zeros(2))
        self.register_buffer("assigned", torch.zeros(2), persistent=False)
        self.register_buffer("count", torch.tensor(0))
        self.register_buffer("view", torch.zeros(2, 2))
        self.register_buffer("through_data", torch.zeros(2))
        self.register_buffer("constant", torch.ones(2))
        self.register_buffer("nothing", None)

    def forward(self, x: Tensor) -> Tensor:
        self.inplace.add_(x.detach().sum(0))
        self.assigned = self.assigned + 1
        self.count += 1
        self.view[0].mul_(2).add_(1)
        self.through_data.data.add_(1)
        return x * self.count + self.constant


def test_buffers_come_back_however_they_change():
    net = Buffers()
    model = stateless(net)
    before = module_state(net)
    params, buffers = model.init()
    given = snapshot(buffers)
    x = torch.ones(3, 2)
    after = buffers
    for step in range(1, 4):
        output, after = model.apply(params, after, x, train=True)
        assert_trees_equal(output, x * step + 1)
    assert list(after) == list(buffers)
    assert_trees_equal(after["inplace"], torch.full((2,), 9.0))
    assert_trees_equal(after["assigned"], torch.full((2,), 3.0))
    assert_trees_equal(after["count"], torch.tensor(3))
    assert_trees_equal(after["view"], torch.tensor([[7.0, 7.0], [0.0, 0.0]]))
    assert_trees_equal(after["through_data"], torch.full((2,), 3.0))
    assert after["constant"] is buffers["constant"]
    assert_trees_equal(buffers, given)
    assert_module_unchanged(net, before)


class LateBuffer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", None)

    def forward(self, x: Tensor) -> Tensor:
        self.mean = x.mean(0) if self.mean is None else self.mean + x.mean(0)
        return x - self.mean


def test_a_buffer_that_is_none_may_be_given_a_value():
    net = LateBuffer()
    model = stateless(net)
    params, buffers = model.init()
    assert buffers == {}
    _, once = model.apply(params, buffers, torch.ones(2, 3), train=True)
    _, twice = model.apply(params, once, torch.ones(2, 3), train=True)
    assert_trees_equal(twice, {"mean": torch.full((3,), 2.0)})
    assert net.mean is None
    assert_trees_equal(model.merge(params, twice).mean, torch.full((3,), 2.0))


class TiedBuffers(nn.Module):
    def __init__(self, cut: bool) -> None:
        super().__init__()
        self.first, self.second = nn.Module(), nn.Module()
        self.first.register_buffer("b", torch.zeros(1))
        self.second.register_buffer("b", self.first.b)
        self.cut = cut

    def forward(self, x: Tensor) -> Tensor:
        if self.cut:
            self.first.b = self.first.b + 1
        else:
            self.first.b.add_(1)
        return x + self.second.b


def test_shared_buffers_stay_shared():
    model = stateless(TiedBuffers(cut=False))
    params, buffers = model.init()
    assert list(buffers) == ["first.b"]
    output, after = model.apply(params, buffers, torch.zeros(1), train=True)
    assert_trees_equal(output, torch.ones(1))
    assert_trees_equal(after, {"first.b": torch.ones(1)})
    model = stateless(TiedBuffers(cut=True))
    with pytest.raises(UnsupportedError, match=r"cuts the tie of buffer first\.b"):
        model.apply(params, buffers, torch.zeros(1), train=True)


def zero_(x: Tensor) -> Tensor:
    return x.detach().zero_()


class Writes(nn.Module):
    """Writes into whatever it is told."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))
        self.attribute = torch.zeros(2)
        self.what = what

    def forward(self, x: Tensor) -> Tensor:
        if self.what == "parameter":
            with torch.no_grad():
                self.weight.clamp_(0, 0.5)
        elif self.what == "parameter data":
            self.weight.data[:1].zero_()
        elif self.what == "new parameter":
            self.weight = nn.Parameter(torch.zeros(2))
        elif self.what == "replaced parameter":
            self._parameters["weight"] = self.weight * 0
        elif self.what == "out":
            torch.add(x[0], x[0], out=self.weight.data)
        elif self.what == "operator":
            torch.ops.aten.add_.Tensor(self.weight.data, x[0])
        elif self.what == "scripted":
            zero_(self.weight)
        elif self.what == "argument":
            x += 1
        return x * self.weight


@pytest.mark.parametrize(
    "what",
    ["parameter", "parameter data", "new parameter", "replaced parameter", "out", "operator"],
)
@pytest.mark.parametrize("transform", ["plain", "grad", "vmap"])
def test_a_written_parameter_is_refused_before_harm(what: str, transform: str):
    net = Writes(what)
    before = module_state(net)
    model = stateless(net)
    params, buffers = model.init()
    given = snapshot(params)

    def output(params, x):
        return model.apply(params, buffers, x, train=True)[0].sum()

    f = {
        "plain": output,
        "grad": torch.func.grad(output),
        "vmap": torch.func.vmap(output, (None, 0)),
    }
    x = torch.ones(3, 1, 2) if transform == "vmap" else torch.ones(1, 2)
    kind = HiddenStateError if what == "new parameter" else UnsupportedError
    with pytest.raises(kind, match="parameter weight"):
        f[transform](params, x)
    assert_trees_equal(params, given)
    assert_module_unchanged(net, before)


def test_a_written_argument_is_copied():
    model = stateless(Writes("argument"))
    x = torch.zeros(1, 2)
    output = assert_pure(lambda x: model.apply(*model.init(), x, train=True)[0], x)
    assert_trees_equal(output, torch.ones(1, 2))


class Large(nn.Module):
    """A large table that is rarely written."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.ones(200, 200))

    def forward(self, x: Tensor, write: bool) -> Tensor:
        if write:
            self.table[0, 0].add_(1)
        return x * self.table.sum()


def test_a_large_buffer_is_copied_only_to_be_written():
    model = stateless(Large())
    _, buffers = model.init()
    x = torch.ones(())
    given = snapshot(buffers)
    for write in (False, False, True, False, True):
        output, after = model.apply({}, buffers, x, write, train=True)
        assert_trees_equal(output, torch.tensor(40001.0 if write else 40000.0))
        assert (after["table"] is buffers["table"]) is not write
        assert after["table"][0, 0] == 1 + write
        assert_trees_equal(buffers, given)


def test_keywords_reach_the_forward():
    class Scaled(nn.Module):
        def forward(self, x: Tensor, *, scale: float) -> Tensor:
            return x * scale

    model = stateless(Scaled())
    output, _ = model.apply({}, {}, torch.ones(2), train=False, scale=3.0)
    assert_trees_equal(output, torch.full((2,), 3.0))


def test_a_model_can_be_copied_and_pickled():
    model = stateless(Tied(), allow_hidden="nothing")
    params, buffers = model.init()
    tokens = CASES["tied"][1]
    expected, _ = model.apply(params, buffers, tokens, train=False)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert_trees_equal(other.apply(params, buffers, tokens, train=False)[0], expected)
        assert_trees_equal(other.init(), model.init())


def test_repr_says_what_it_is():
    assert repr(stateless(ConvNet())) == (
        "stateless(ConvNet: 6 params with 698 elements, 0 frozen, 3 buffers)"
    )
