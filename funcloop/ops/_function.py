"""Functions with a backward of their own, right under every transform of torch.func and under jit."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from funcloop._compat import backward_would_be_lost, forward_mode
from funcloop._errors import ShapeError, StructureError, UnsupportedError
from funcloop._pytree import (
    PyTree,
    Structure,
    flatten,
    flatten_like,
    open_node,
    paths_of,
    unflatten,
)

#: `(grad, output, *inputs) -> gradients`, one for each input; the gradient itself for one input.
Backward = Callable[..., PyTree]
#: `(tangents, output, *inputs) -> output tangent`, with one tangent for each input.
Jvp = Callable[..., PyTree]
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
    rule = _Rule(name, forward, backward, jvp)
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
        call = _Call(leaves, structure)
        outputs = kind.apply(call, *call.tensors(leaves))
        assert call.output is not None, name  # forward has run
        return unflatten(call.output, outputs)

    return apply


def _autograd_function(rule: _Rule, batching: Batching | None) -> type[torch.autograd.Function]:
    """The class that torch knows the function by; all of it is new-style, so functorch takes it."""

    def setup_context(ctx: Any, inputs: tuple[Any, ...], outputs: tuple[Tensor, ...]) -> None:
        call, *tensors = inputs
        ctx.call = call
        ctx.save_for_backward(*tensors, *outputs)
        ctx.save_for_forward(*tensors, *outputs)

    def saved(ctx: Any) -> tuple[_Call, Sequence[Tensor], Sequence[Tensor]]:
        number = len(ctx.call.places)
        return ctx.call, ctx.saved_tensors[:number], ctx.saved_tensors[number:]

    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        return None, *rule.backward(*saved(ctx), grads)

    def jvp(ctx: Any, _: None, *tangents: Any) -> tuple[Any, ...]:
        call, tensors, outputs = saved(ctx)
        with forward_mode():
            return tuple(rule.jvp(call, [primal(x) for x in tensors], outputs, tangents))

    def vmap(info: Any, in_dims: Any, call: _Call, *tensors: Tensor) -> Any:
        assert batching is not None
        output, out_dims = batching(info, call.aligned(in_dims[1:]), *call.inputs(tensors))
        outputs, call.output = flatten(output)
        return tuple(outputs), tuple(_dims_of(call.output, out_dims))

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


class _Call:
    """The part of one call that is no tensor; opaque to torch, which takes NamedTuples apart."""

    __slots__ = ("constants", "output", "places", "structure")

    def __init__(self, leaves: Sequence[Any], structure: Structure | str) -> None:
        self.structure = structure
        self.places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
        self.constants = [None if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        self.output: Structure | str | None = None

    def tensors(self, leaves: Sequence[Any]) -> list[Tensor]:
        return [leaves[i] for i in self.places]

    def inputs(self, tensors: Sequence[Any]) -> tuple[PyTree, ...]:
        return unflatten(self.structure, self._filled(self.constants, tensors))

    def aligned(self, values: Sequence[Any]) -> tuple[PyTree, ...]:
        """Trees like the inputs, with None where an input is a constant."""
        return unflatten(self.structure, self._filled([None] * len(self.constants), values))

    def _filled(self, rest: Sequence[Any], tensors: Sequence[Any]) -> list[Any]:
        filled = list(rest)
        for place, tensor in zip(self.places, tensors, strict=True):
            filled[place] = tensor
        return filled


class _Rule:
    """Forward, backward and jvp of one function on flat lists of tensors."""

    def __init__(
        self, name: str, forward: Callable[..., PyTree], backward: Backward, jvp: Jvp | None
    ) -> None:
        self.name = name
        self._forward, self._backward, self._jvp = forward, backward, jvp

    def forward(self, call: _Call, *tensors: Tensor) -> tuple[Tensor, ...]:
        outputs, call.output = flatten(self._forward(*call.inputs(tensors)))
        for output in outputs:
            if not isinstance(output, Tensor):
                raise StructureError(
                    "a function with its own backward returns tensors",
                    f"{self.name} returns a {type(output).__name__}",
                    "return constants outside of it",
                )
        # autograd wants a tensor of its own, also where nothing is computed
        given = {id(tensor) for tensor in tensors}
        return tuple(x.view_as(x) if id(x) in given else x for x in outputs)

    def backward(
        self, call: _Call, tensors: Sequence[Tensor], outputs: Sequence[Tensor], grads: Any
    ) -> list[Tensor | None]:
        """One gradient for each tensor among the inputs."""
        inputs, output = call.inputs(tensors), unflatten(_known(call), outputs)
        results = self._backward(unflatten(_known(call), list(grads)), output, *inputs)
        if len(inputs) == 1:
            results = (results,)
        if not isinstance(results, tuple) or len(results) != len(inputs):
            raise StructureError(
                "backward returns a tuple with one gradient for each input",
                f"{self.name} has {len(inputs)} inputs, backward returns {_describe(results)}",
                "return None for an input without a gradient",
            )
        leaves: list[Any] = []
        for number, (value, result) in enumerate(zip(inputs, results, strict=True)):
            leaves += self._gradient_leaves(number, value, result)
        return [
            self._checked(tensor, grad)
            for tensor, grad in zip(tensors, call.tensors(leaves), strict=True)
        ]

    def _gradient_leaves(self, number: int, value: PyTree, result: PyTree) -> list[Any]:
        leaves, structure = flatten(value)
        if result is None:
            return [None] * len(leaves)
        return flatten_like(structure, result, f"gradient {number} of {self.name}")

    def _checked(self, tensor: Tensor, grad: Any) -> Tensor | None:
        if grad is None or not (tensor.is_floating_point() or tensor.is_complex()):
            return None
        if grad.shape != tensor.shape:
            raise ShapeError(
                "a gradient has the shape of its input",
                f"{self.name} has an input of shape {tuple(tensor.shape)} and a gradient of shape "
                f"{tuple(grad.shape)}",
                "reduce it in backward with grad.sum_to_size(x.shape)",
            )
        return grad.to(tensor.dtype)

    def jvp(
        self, call: _Call, tensors: Sequence[Tensor], outputs: Sequence[Tensor], tangents: Any
    ) -> list[Tensor | None]:
        """One tangent for each output that can have one."""
        if self._jvp is None:
            results = self._transposed(call, tensors, outputs, tangents)
        else:
            output = unflatten(_known(call), outputs)
            result = self._jvp(call.aligned(tangents), output, *call.inputs(tensors))
            results = flatten_like(_known(call), result, f"tangent of {self.name}")
        return [
            result.to(output.dtype).expand_as(output) if output.is_floating_point() else None
            for result, output in zip(results, outputs, strict=True)
        ]

    def _transposed(
        self, call: _Call, tensors: Sequence[Tensor], outputs: Sequence[Tensor], tangents: Any
    ) -> Sequence[Tensor]:
        """The transpose of the linear map `grad -> gradients`, applied to the tangents."""
        reached: list[bool] = []

        def pullback(*grads: Tensor) -> list[Tensor]:
            gradients = self.backward(call, tensors, outputs, grads)
            reached[:] = [
                g is not None and t is not None for g, t in zip(gradients, tangents, strict=True)
            ]
            return [g for g in gradients if g is not None]

        _, transpose = torch.func.vjp(pullback, *[torch.zeros_like(x) for x in outputs])
        return transpose([t for t, used in zip(tangents, reached, strict=True) if used])


def _known(call: _Call) -> Structure | str:
    assert call.output is not None  # forward has run
    return call.output


def _describe(results: Any) -> str:
    return f"{len(results)}" if isinstance(results, tuple) else f"a {type(results).__name__}"


def _dims_of(structure: Structure | str, dims: PyTree) -> list[Any]:
    """One batch dimension for each output; an int or None stands for all outputs below it."""
    if not isinstance(structure, Structure):
        return [dims]
    if dims is None or isinstance(dims, int):
        return [dims] * len(paths_of(structure))
    node = open_node(dims)
    assert node is not None
    children = dict(zip(node.names(), node.children, strict=True))
    return [
        dim
        for name, child in zip(structure.names(), structure.children, strict=True)
        for dim in _dims_of(child, children[name])
    ]


def primal(tensor: Tensor) -> Tensor:
    """The tensor without its tangent of the innermost level of forward mode."""
    return torch.autograd.forward_ad.unpack_dual(tensor).primal
