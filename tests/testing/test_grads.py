"""Derivatives against differences: right ones pass, and each fault is named."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from funcloop import ops
from funcloop._errors import ArgumentError, StructureError
from funcloop.testing import check_grads

X, Y = torch.tensor([0.3, -1.2]), torch.tensor([2.0, 0.7])


def test_trees_low_precision_and_constants():
    def f(tree: dict[str, Tensor], n: int, index: Tensor) -> dict[str, Tensor]:
        return {"a": tree["x"] ** n * tree["y"][index], "index": index}

    check_grads(f, ({"x": X.bfloat16(), "y": Y}, 3, torch.tensor([1, 0])))


@pytest.mark.parametrize(
    ("backward", "match"),
    [
        (lambda g, out, x, y: (g * y, 2 * g * x), r"jvp by 1 gives .* at \[0\] of output 0"),
        (lambda g, out, x, y: (g * y.detach(), g * x), "of vjp by 1|of jvp by 1"),
        (lambda g, out, x, y: (None, g * x), "jvp by 0 gives 0 at"),
    ],
)
def test_wrong_derivatives(backward, match: str):
    f = ops.function(torch.mul, backward)
    with pytest.raises(AssertionError, match=match):
        check_grads(f, (X, Y))


def test_reverse_mode_alone():
    f = ops.function(torch.mul, lambda g, out, x, y: (g * y, g), jvp=lambda t, *_: 0 * t[0])
    with pytest.raises(AssertionError, match=r"vjp by 1 gives .* in a random direction"):
        check_grads(f, (X, Y), modes=("rev",))
    check_grads(
        ops.function(torch.sin, lambda g, y, x: g * x.cos(), jvp=lambda t, y, x: 0 * t[0]),
        (X,),
        modes=("rev",),
    )


def test_second_order_is_looked_at_where_asked():
    f = ops.function(torch.sin, lambda g, y, x: g * x.detach().cos())
    check_grads(f, (X,), order=1)
    with pytest.raises(AssertionError, match=r"of jvp|of vjp"):
        check_grads(f, (X,))


def test_nan_is_no_derivative():
    f = ops.function(torch.sin, lambda g, y, x: g * torch.nan)
    with pytest.raises(AssertionError, match="gives nan"):
        check_grads(f, (X,), order=1)


def test_arguments():
    for options in ({"order": 3}, {"modes": ("both",)}, {"modes": ()}):
        with pytest.raises(ArgumentError, match="order 1 or 2"):
            check_grads(torch.sin, (X,), **options)
    with pytest.raises(StructureError, match="a surrogate has outputs of the shapes"):
        check_grads(torch.sin, (X,), surrogate=torch.sum)
