"""What cannot be transformed is refused with the user's own line, the module and the remedy."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from funcloop._errors import UnsupportedError
from funcloop.random import key
from funcloop.stateless import stateless
from tests.cases import generator
from tests.laws import assert_trees_close, assert_trees_equal


class OldStyle(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, g):
        return g


class Branch(nn.Module):
    """Does one of the things that vmap cannot run."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self.what = what
        self.weight = nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        x = x * self.weight
        if self.what == "branch":
            return x * 2 if x.sum() > 0 else x
        if self.what == "item":
            return x * x.sum().item()
        if self.what == "copy":
            y = torch.zeros(3)
            y.copy_(x)
            return y
        if self.what == "shape":
            return x[x > 0]
        if self.what == "function":
            return OldStyle.apply(x)
        with torch.autograd.graph.save_on_cpu():
            return x.sin()


@pytest.mark.parametrize(
    ("what", "line", "remedy"),
    [
        ("branch", "if x.sum() > 0 else x", "torch.where or torch.cond"),
        ("item", "x.sum().item()", "keep it a tensor"),
        ("copy", "y.copy_(x)", "write out of place"),
        ("shape", "return x[x > 0]", "a mask and torch.where"),
        ("function", "OldStyle.apply(x)", "setup_context"),
        ("hooks", "with torch.autograd.graph.save_on_cpu():", "save_on_cpu"),
    ],
)
def test_b28_one_message_names_the_line(what: str, line: str, remedy: str):
    model = stateless(nn.Sequential(Branch(what)))
    params, _ = model.init()
    x = torch.stack([torch.ones(3), -torch.ones(3)])
    loss = lambda p, x: model.apply(p, {}, x, train=True)[0].sum()  # noqa: E731
    with pytest.raises(UnsupportedError) as caught:
        torch.func.vmap(torch.func.grad(loss), (None, 0))(params, x)
    assert line in caught.value.value
    assert "test_explain.py" in caught.value.value
    assert "Branch '0'" in caught.value.value
    assert remedy in caught.value.remedy
    assert caught.value.__cause__ is not None


def test_errors_of_the_user_are_not_touched():
    model = stateless(nn.Linear(2, 2))
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied") as caught:
        model.apply(*model.init(), torch.ones(1, 3), train=True)
    assert type(caught.value) is RuntimeError


class WrongShape(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.zeros(3).add_(x)


@pytest.mark.parametrize("transform", [lambda f: f, torch.func.grad])
def test_a_wrong_shape_is_not_blamed_on_vmap(transform):
    f = transform(lambda x: stateless(WrongShape()).apply({}, {}, x, train=True)[0].sum())
    with pytest.raises(RuntimeError, match="doesn't match the broadcast shape") as caught:
        f(torch.ones(2, 3))
    assert type(caught.value) is RuntimeError


class Checkpointed(nn.Module):
    def __init__(self, how: str) -> None:
        super().__init__()
        self.block = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Dropout(0.5), nn.Linear(3, 3))
        self.norm = nn.BatchNorm1d(3)
        self.how = how

    def forward(self, x: Tensor) -> Tensor:
        if self.how == "sequential":
            return self.norm(checkpoint_sequential(self.block, 2, x, use_reentrant=False))
        if self.how == "none":
            return self.norm(self.block(x))
        x = checkpoint(self.block, x, use_reentrant=self.how == "reentrant")
        return checkpoint(self.norm, x, use_reentrant=self.how == "reentrant")


@pytest.mark.parametrize("how", ["new", "reentrant", "sequential"])
def test_b28_checkpointed_blocks_are_plain_calls(how: str):
    torch.manual_seed(0)
    net = Checkpointed(how)
    plain = Checkpointed("none")
    plain.load_state_dict(net.state_dict())
    x = torch.randn(4, 3, generator=generator())
    results = []
    for module in (net, plain):
        model = stateless(module)
        params, buffers = model.init()

        def loss(params, model=model, buffers=buffers):
            output, after = model.apply(params, buffers, x, key=key(1), train=True)
            return output.sin().sum(), after

        live = {name: p.requires_grad_() for name, p in params.items()}
        grads = torch.func.grad(loss, has_aux=True)(params)
        by_autograd = torch.autograd.grad(loss(live)[0], [*live.values()])
        assert_trees_close([g.detach() for g in grads[0].values()], list(by_autograd))
        results.append(grads)
    assert_trees_equal(results[0][1], results[1][1])
    assert_trees_close(*[{k: g.detach() for k, g in r[0].items()} for r in results])
    stored = checkpoint(torch.sin, x.requires_grad_(), use_reentrant=False)  # as before
    assert_trees_close(torch.autograd.grad(stored.sum(), x)[0], x.detach().cos())
