"""Functions with a fault each, and the checks that have to name it; and functions without."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function

from funcloop import ops
from tests.cases import generator

X = torch.tensor([-0.62, 0.3, 1.4])
Y = torch.tensor([0.4, -1.2, 0.7])


class Wrong(NamedTuple):
    """A faulty function; `named` are checks of which each has to fail."""

    f: Callable[..., Any]
    args: tuple[Any, ...]
    named: tuple[str, ...]
    surrogate: Callable[..., Any] | None = None


class Product(Function):
    """A right Function that the wrong ones change: `x * y`."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x, y):
        return x * y

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx, grad):
        x, y = ctx.saved_tensors
        return grad * y, grad * x

    @staticmethod
    def jvp(ctx, tx, ty):
        x, y = ctx.saved_tensors
        return tx * y + x * ty


class InPlace(Product):
    @staticmethod
    def forward(x, y):
        result = x * y
        x.add_(1)
        return result


class InPlaceBackward(Product):
    @staticmethod
    def backward(ctx, grad):
        x, y = ctx.saved_tensors
        with torch.no_grad():
            y.add_(1)
        return grad * y, grad * x


class WrongJvp(Product):
    @staticmethod
    def jvp(ctx, tx, ty):
        x, y = ctx.saved_tensors
        return tx * y - x * ty


class NoJvp(Product):
    jvp = Function.jvp


class NotSaved(Product):
    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.inputs = inputs
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx, grad):
        x, y = ctx.inputs
        return grad * y, grad * x


class DetachedBackward(Product):
    """Right gradients that end there: second derivatives are zero."""

    @staticmethod
    def backward(ctx, grad):
        x, y = ctx.saved_tensors
        return grad * y.detach(), grad * x.detach()


class NoVmap(Product):
    generate_vmap_rule = False


class VmapOfWrongDimension(Product):
    """As if the batch were always the first dimension."""

    generate_vmap_rule = False

    @staticmethod
    def vmap(info, in_dims, x, y):
        return VmapOfWrongDimension.apply(x, y), 0


class VmapDropsBackward(Product):
    """The batched forward no longer goes through the Function, whose backward is doubled."""

    generate_vmap_rule = False

    @staticmethod
    def backward(ctx, grad):
        x, y = ctx.saved_tensors
        return 2 * grad * y, 2 * grad * x

    @staticmethod
    def jvp(ctx, tx, ty):
        x, y = ctx.saved_tensors
        return 2 * (tx * y + x * ty)

    @staticmethod
    def vmap(info, in_dims, x, y):
        dims = tuple(in_dims)
        return torch.func.vmap(torch.mul, dims)(x, y), 0


class OldStyle(Function):
    """As most are written: it cannot be transformed at all."""

    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return x * y

    @staticmethod
    def backward(ctx, grad):
        x, y = ctx.saved_tensors
        return grad * y, grad * x


class SingleGrad(Product):
    @staticmethod
    def backward(ctx, grad):
        x, y = ctx.saved_tensors
        return (grad * y).float(), grad * x


def not_contiguous(x: Tensor, y: Tensor) -> Tensor:
    """Reads memory in order, whatever the strides say."""
    return x.as_strided(x.shape, [1] * x.ndim) * y


def looks_at_value(x: Tensor, y: Tensor) -> Tensor:
    return x * y if x.sum().item() > -100 else x


def half(x: Tensor, y: Tensor) -> Tensor:
    return (x * y).float()


def noisy(x: Tensor, y: Tensor) -> Tensor:
    return x * y * (1 + 1e-3 * torch.rand(()))


def counting() -> Callable[..., Tensor]:
    calls = 0

    def f(x: Tensor, y: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        return x * y * (1 + 1e-3 * calls)

    return f


def saturating(x: Tensor) -> Tensor:
    return x.round().clamp(-1, 1)


#: A quantizer to [-1, 1]: the gradient passes where the code is not cut off.
def clipped(grad: Tensor, _: Tensor, x: Tensor) -> Tensor:
    return torch.where(x.round().abs() <= 1, grad, 0)


def clipped_surrogate(x: Tensor) -> Tensor:
    return torch.where(x.detach().round().abs() <= 1, x, 0)


def scale_wrong(grad: Tensor, _: Tensor, x: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
    """As if the codes did not move with the scale: `code` for `code - x / scale`."""
    code = (x / s).round()
    inside = code.abs() <= 1
    return torch.where(inside, grad, 0), (grad * code.clamp(-1, 1)).sum_to_size(s.shape)


def scale_forward(x: Tensor, s: Tensor) -> Tensor:
    return (x / s).round().clamp(-1, 1) * s


def scale_surrogate(x: Tensor, s: Tensor) -> Tensor:
    steps = SCALED[0].double() / SCALED[1].double()
    code = steps.round()
    return torch.where(code.abs() <= 1, x + s * (code - steps), s * code.clamp(-1, 1))


SCALED = (torch.tensor([-2.0, 0.11, 0.3]), torch.tensor(0.4))

WRONG: dict[str, Wrong] = {
    "wrong mask": Wrong(
        ops.function(saturating, lambda g, y, x: torch.where(x.abs() <= 1, g, 0)),
        (X,),
        ("gradcheck",),
        clipped_surrogate,
    ),
    "no mask": Wrong(
        ops.function(saturating, lambda g, y, x: g),
        (torch.tensor([-3.0, 0.3]),),
        ("gradcheck",),
        clipped_surrogate,
    ),
    "backward dropped": Wrong(saturating, (X,), ("gradcheck",), clipped_surrogate),
    "wrong scale gradient": Wrong(
        ops.function(scale_forward, scale_wrong), SCALED, ("gradcheck",), scale_surrogate
    ),
    "wrong sign": Wrong(ops.function(torch.cos, lambda g, y, x: g * x.sin()), (X,), ("gradcheck",)),
    "dropped batching rule": Wrong(NoVmap.apply, (X, Y), ("vmap", "vmap(grad)", "grad(vmap)")),
    "batching rule of the wrong dimension": Wrong(VmapOfWrongDimension.apply, (X, Y), ("vmap",)),
    "batching rule without the backward": Wrong(
        VmapDropsBackward.apply, (X, Y), ("grad(vmap)",), lambda x, y: 2 * x * y
    ),
    "in-place input": Wrong(InPlace.apply, (X, Y), ("pure",)),
    "in-place input in backward": Wrong(InPlaceBackward.apply, (X, Y), ("pure",)),
    "missing save": Wrong(NotSaved.apply, (X, Y), ("save",)),
    "backward cut off": Wrong(DetachedBackward.apply, (X, Y), ("gradgradcheck",)),
    "wrong jvp": Wrong(WrongJvp.apply, (X, Y), ("gradcheck", "jvp")),
    "no jvp": Wrong(NoJvp.apply, (X, Y), ("jvp",)),
    "old style": Wrong(OldStyle.apply, (X, Y), ("gradcheck", "vmap", "jit")),
    "not linear": Wrong(
        ops.function(lambda x: x * 1, lambda g, y, x: g.clamp(-0.1, 0.1)), (X,), ("linear",)
    ),
    "depends on the global generator": Wrong(noisy, (X, Y), ("pure", "deterministic", "jit")),
    "depends on a count": Wrong(counting(), (X, Y), ("deterministic",)),
    "reads memory in order": Wrong(not_contiguous, (torch.ones(2, 3), Y), ("strides",)),
    "looks at a value": Wrong(looks_at_value, (X, Y), ("jit", "vmap")),
    "casts its output": Wrong(half, (X, Y), ("dtype",)),
    "adds up batched gradients": Wrong(
        # the value does not depend on the batched input, the derivative does
        type("Hidden", (Product,), {"forward": staticmethod(lambda x, y: x.sign())}).apply,
        (X, Y),
        ("grad(vmap)",),
        lambda x, y: x * y,
    ),
}

RIGHT: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "sin": (torch.sin, (X,)),
    "matmul": (torch.matmul, (torch.randn(2, 3, generator=generator()), Y)),
    "tree": (
        lambda tree, n: {"s": tree["a"].sum() * tree["b"][0], "n": n},
        ({"a": X, "b": [Y]}, X),
    ),
    "exp": (ops.function(torch.exp, lambda g, y, x: g * y), (X,)),
    "with a constant": (
        ops.function(lambda x, n: x**n, lambda g, y, x, n: (g * n * x ** (n - 1), None)),
        (X, 3),
    ),
    "with a jvp": (
        ops.function(torch.sin, lambda g, y, x: g * x.cos(), jvp=lambda t, y, x: t[0] * x.cos()),
        (X,),
    ),
}
