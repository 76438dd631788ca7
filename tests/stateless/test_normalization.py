"""Running statistics: batched with their input, or refused."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from funcloop._errors import UnsupportedError
from funcloop.stateless import stateless
from tests.cases import generator
from tests.laws import assert_trees_close, assert_trees_equal, assert_vmap_equal, snapshot

KINDS = {
    "batch": lambda: nn.BatchNorm1d(3, dtype=torch.float64),
    "cumulative": lambda: nn.BatchNorm1d(3, momentum=None, dtype=torch.float64),
    "instance": lambda: nn.InstanceNorm1d(
        3, affine=True, track_running_stats=True, dtype=torch.float64
    ),
}


def members(kind: str, device: torch.device):
    """Two members: params, buffers and an input of each."""
    net = KINDS[kind]().to(device)
    params, buffers = stateless(net).init()
    x = torch.randn(2, 4, 3, 5, generator=generator(), dtype=torch.float64).to(device)
    other = {name: 0.5 * b if b.is_floating_point() else b + 3 for name, b in buffers.items()}
    return net, [
        (params, buffers, x[0]),
        ({name: 0.5 * p for name, p in params.items()}, other, x[1]),
    ]


def value_and_grad(model, train):
    def loss(params, buffers, x):
        output, after = model.apply(params, buffers, x, train=train)
        return output.sin().sum(), after

    return torch.func.grad_and_value(loss, has_aux=True)


@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_an_ensemble_keeps_the_statistics_of_each_member(
    kind: str, train: bool, device: torch.device
):
    net, batch = members(kind, device)
    given = snapshot(batch)
    assert_vmap_equal(value_and_grad(stateless(net), train), *batch)
    assert_trees_equal(batch, given)


def test_a_mean_over_all_batches_is_the_modules_own():
    net = KINDS["cumulative"]()
    model = stateless(net)
    params, after = model.init()
    step = torch.func.grad_and_value(lambda p, b, x: loss_of(model, p, b, x), has_aux=True)
    for x in torch.randn(3, 4, 3, 5, generator=generator(), dtype=torch.float64):
        expected = net(x).sin().sum()
        net.zero_grad()
        expected.backward()
        grads, (value, after) = step(params, after, x)
        assert_trees_close(value, expected.detach())
        assert_trees_close(grads, {name: p.grad for name, p in net.named_parameters()})
        assert_trees_close(after, snapshot(dict(net.named_buffers())))
    assert "forward" not in vars(net)


def loss_of(model, params, buffers, x):
    output, after = model.apply(params, buffers, x, train=True)
    return output.sin().sum(), after


def test_b26_each_task_starts_from_the_same_buffers():
    model = stateless(nn.BatchNorm1d(1))
    params, buffers = model.init()
    tasks = torch.tensor([[[1.0], [3.0]], [[5.0], [9.0]]])
    run = lambda buffers, x: model.apply(params, buffers, x, train=True)[1]  # noqa: E731
    own = {name: b.expand(2, *b.shape) for name, b in buffers.items()}
    after = torch.func.vmap(run)(own, tasks)
    assert_trees_close(after["running_mean"], torch.tensor([[0.2], [0.7]]))
    assert_trees_close(after["running_var"], torch.tensor([[1.1], [1.7]]))
    assert_trees_equal(buffers["running_mean"], torch.zeros(1))
    for task, n in ((1, 1), (0, 0)):  # in any order
        assert_trees_close(run(buffers, tasks[task])["running_var"], after["running_var"][n])


@pytest.mark.parametrize("kind", KINDS)
def test_b27_shared_statistics_under_vmap_are_refused(kind: str):
    net = nn.Sequential(KINDS[kind]())
    model = stateless(net)
    params, buffers = model.init()
    x = torch.randn(2, 4, 3, 5, generator=generator(), dtype=torch.float64)
    run = lambda mode: torch.func.vmap(  # noqa: E731
        lambda x: model.apply(params, buffers, x, train=mode)[0]
    )(x)
    with pytest.raises(UnsupportedError, match=r"Norm1d '0' normalises.*GroupNorm.*train="):
        run(True)
    for frozen in (False, {"0": False, "": True}):
        assert_trees_close(run(frozen)[1], model.apply(params, buffers, x[1], train=False)[0])


def test_a_norm_without_statistics_works_under_vmap():
    model = stateless(nn.BatchNorm1d(3, track_running_stats=False, dtype=torch.float64))
    params, _ = model.init()
    x = torch.randn(2, 4, 3, generator=generator(), dtype=torch.float64)
    run = lambda x: model.apply(params, {}, x, train=True)[0]  # noqa: E731
    assert_vmap_equal(run, *[(member,) for member in x])


class Ema(nn.Module):
    """A hand-written running mean, in place or assigned."""

    mean: Tensor

    def __init__(self, in_place: bool) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(3))
        self.in_place = in_place

    def forward(self, x: Tensor) -> Tensor:
        if self.in_place:
            self.mean.mul_(0.9).add_(0.1 * x.mean(0))
        else:
            self.mean = 0.9 * self.mean + 0.1 * x.mean(0)
        return x - self.mean


@pytest.mark.parametrize("in_place", [True, False])
def test_own_statistics_under_vmap(in_place: bool):
    model = stateless(Ema(in_place))
    _, buffers = model.init()
    x = torch.randn(2, 4, 3, generator=generator())
    run = lambda buffers, x: model.apply({}, buffers, x, train=True)  # noqa: E731
    assert_vmap_equal(run, *[(buffers, member) for member in x])
    shared = torch.func.vmap(run, (None, 0))
    if in_place:
        with pytest.raises(UnsupportedError, match=r"share cannot be written.*mul_"):
            shared(buffers, x)
    else:
        assert_trees_close(shared(buffers, x)[1]["mean"][1], run(buffers, x[1])[1]["mean"])
