"""One function on flat lists of tensors: forward, backward, jvp, and what is checked of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from funcloop._compat import batch_levels
from funcloop._errors import ShapeError, StructureError
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


class Call:
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


class Rule:
    """Forward, backward and jvp of one function on flat lists of tensors."""

    def __init__(
        self, name: str, forward: Callable[..., PyTree], backward: Backward, jvp: Jvp | None
    ) -> None:
        self.name = name
        self._forward, self._backward, self._jvp = forward, backward, jvp

    def forward(self, call: Call, *tensors: Tensor) -> tuple[Tensor, ...]:
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
        own = [x.view_as(x) if id(x) in given else x for x in outputs]
        return tuple([_batched_like(x, tensors) for x in own])

    def backward(
        self, call: Call, tensors: Sequence[Tensor], outputs: Sequence[Tensor], grads: Any
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
        if grad is None or not _differentiable(tensor):
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
        self, call: Call, tensors: Sequence[Tensor], outputs: Sequence[Tensor], tangents: Any
    ) -> list[Tensor | None]:
        """One tangent for each output that can have one."""
        if self._jvp is None:
            results = self._transposed(call, tensors, outputs, tangents)
        else:
            output = unflatten(_known(call), outputs)
            result = self._jvp(call.aligned(tangents), output, *call.inputs(tensors))
            results = flatten_like(_known(call), result, f"tangent of {self.name}")
        return [
            result.to(output.dtype).expand_as(output) if _differentiable(output) else None
            for result, output in zip(results, outputs, strict=True)
        ]

    def _transposed(
        self, call: Call, tensors: Sequence[Tensor], outputs: Sequence[Tensor], tangents: Any
    ) -> Sequence[Tensor]:
        """The transpose of the linear map `grad -> gradients`, applied to the tangents."""
        places = [i for i, output in enumerate(outputs) if _differentiable(output)]
        zeros = [torch.zeros_like(output) for output in outputs]

        def weighted(chosen: list[Tensor]) -> Tensor:
            grads = list(zeros)
            for place, grad in zip(places, chosen, strict=True):
                grads[place] = grad
            gradients = self.backward(call, tensors, outputs, grads)
            pairs = [(g, t) for g, t in zip(gradients, tangents, strict=True) if g is not None]
            used = [(t, g) for g, t in pairs if t is not None]
            return inner_product([t for t, _ in used], [g for _, g in used])

        results = list(zeros)
        transposed = torch.func.grad(weighted)([zeros[i] for i in places])
        for place, result in zip(places, transposed, strict=True):
            results[place] = result
        return results


def inner_product(a: Sequence[Tensor], b: Sequence[Tensor]) -> Tensor:
    """The sum of all products, 0-d; the gradient by `b` is `a` and the other way round, exactly."""
    if not b:
        return torch.zeros(())
    return torch.stack([(x.to(y.dtype) * y).sum() for x, y in zip(a, b, strict=True)]).sum()


def _batched_like(output: Tensor, tensors: Sequence[Tensor]) -> Tensor:
    """The output, batched wherever an input is, also where its value does not depend on that input.

    Otherwise vmap's generated rule would add up the gradients of all members before backward sees
    them, which is wrong where the derivative depends on the input all the same.
    """
    levels = batch_levels(output)
    for tensor in tensors:
        if not batch_levels(tensor) <= levels:
            output = torch.where(tensor.new_zeros((), dtype=torch.bool), output, output)
            levels |= batch_levels(tensor)
    return output


def _known(call: Call) -> Structure | str:
    assert call.output is not None  # forward has run
    return call.output


def _differentiable(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def _describe(results: Any) -> str:
    return f"{len(results)}" if isinstance(results, tuple) else f"a {type(results).__name__}"


def dims_of(structure: Structure | str, dims: PyTree) -> list[Any]:
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
        for dim in dims_of(child, children[name])
    ]
