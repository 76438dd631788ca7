"""Functions with a backward of their own, right under every transform of torch.func and jit."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from funcloop._compat import backward_would_be_lost, forward_mode, without_tangent
from funcloop._errors import UnsupportedError
from funcloop._pytree import PyTree, flatten, unflatten
from funcloop.ops._rule import Backward, Call, Jvp, Rule, dims_of

#: `(info, in_dims, *inputs) -> (output, out_dims)`, as in torch.autograd.Function.vmap.
Batching = Callable[..., tuple[PyTree, PyTree]]


def function(
    forward: Callable[..., PyTree],
    backward: Backward,
    *,
    jvp: Jvp | None = None,
    vmap: Literal["auto"] | Batching = "auto",
) -> Callable[..., PyTree]:
    """A function with the value of `forward` and the derivative that `backward` says.

    It works under `grad`, `vmap`, `jvp`, `jit`, any nesting of them, and double backward. What
    backward may look at are the inputs and the output, so nothing that depends on an input is ever
    cut from the graph of a second derivative; a costly intermediate value is returned as one more
    output, or computed again (inside jit the compiler merges the two).

    Args:
        forward: `(*inputs) -> output`. Inputs and output are any pytrees; a tensor among the inputs
            that is not floating, and anything else, is a constant.
        backward: `(grad, output, *inputs) -> gradients`. `grad` looks like `output`; the gradients
            are a tuple with one tree for each input, or None where there is no gradient. For one
            input it is the gradient alone. It is differentiated for second derivatives.
        jvp: `(tangents, output, *inputs) -> tangent` for forward mode, with a tuple of one tangent
            tree for each input (None for a constant). By default the transpose of `backward`,
            which is exact where `backward` is linear in `grad`, as every true derivative is.
        vmap: `"auto"` lets vmap see through `forward` and `backward`. Where it cannot (NumPy
            inside), a batching rule `(info, in_dims, *inputs) -> (output, out_dims)`.

    Returns:
        The function `(*inputs) -> output`.

    Raises:
        StructureError: at the call, where a gradient has another structure than its input, or the
            output holds something that is no tensor.
        ShapeError: at the call, where a gradient has another shape than its input.
        UnsupportedError: at the call, where torch.compile traces through a torch.func transform:
            it would drop the backward without a word.

    >>> import torch
    >>> round_through = function(torch.round, lambda grad, output, x: grad)
    >>> torch.func.vmap(torch.func.grad(lambda x: 3 * round_through(x)))(torch.tensor([0.2, 1.7]))
    tensor([3., 3.])
    >>> exp = function(torch.exp, lambda grad, output, x: grad * output)
    >>> torch.func.grad(torch.func.grad(exp))(torch.tensor(0.0))
    tensor(1.)
    """
    name = getattr(forward, "__name__", type(forward).__name__)
    rule = Rule(name, forward, backward, jvp)
    kind = _autograd_function(rule, None if vmap == "auto" else vmap)

    @functools.wraps(forward)
    def apply(*inputs: PyTree) -> PyTree:
        if backward_would_be_lost():
            raise UnsupportedError(
                "torch.compile drops custom backwards inside torch.func transforms",
                f"{name} would get the derivative of its forward",
                "compile with funcloop.jit, which traces first",
            )
        leaves, structure = flatten(inputs)
        call = Call(leaves, structure)
        outputs = kind.apply(call, *call.tensors(leaves))
        assert call.output is not None, name  # forward has run
        return unflatten(call.output, outputs)

    return apply


def _autograd_function(rule: Rule, batching: Batching | None) -> type[torch.autograd.Function]:
    """The class that torch knows the function by; all of it is new-style, so functorch takes it."""

    def setup_context(ctx: Any, inputs: tuple[Any, ...], outputs: tuple[Tensor, ...]) -> None:
        call, *tensors = inputs
        ctx.call = call
        ctx.save_for_backward(*tensors, *outputs)
        ctx.save_for_forward(*tensors, *outputs)

    def saved(ctx: Any) -> tuple[Call, Sequence[Tensor], Sequence[Tensor]]:
        number = len(ctx.call.places)
        return ctx.call, ctx.saved_tensors[:number], ctx.saved_tensors[number:]

    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        return None, *rule.backward(*saved(ctx), grads)

    def jvp(ctx: Any, _: None, *tangents: Any) -> tuple[Any, ...]:
        call, tensors, outputs = saved(ctx)
        with forward_mode():
            return tuple(rule.jvp(call, [without_tangent(x) for x in tensors], outputs, tangents))

    def vmap(info: Any, in_dims: Any, call: Call, *tensors: Tensor) -> Any:
        assert batching is not None
        output, out_dims = batching(info, call.aligned(in_dims[1:]), *call.inputs(tensors))
        outputs, call.output = flatten(output)
        return tuple(outputs), tuple(dims_of(call.output, out_dims))

    members: dict[str, Any] = {
        "forward": staticmethod(rule.forward),
        "setup_context": staticmethod(setup_context),
        "backward": staticmethod(backward),
        "jvp": staticmethod(jvp),
        "generate_vmap_rule": batching is None,
    }
    if batching is not None:
        members["vmap"] = staticmethod(vmap)
    return type(rule.name, (torch.autograd.Function,), members)
