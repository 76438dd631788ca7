"""Identities with another backward: the gradient scaled, reversed, clipped or stopped."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from funcloop import tree
from funcloop._errors import UnsupportedError
from funcloop._pytree import PyTree, tree_map
from funcloop.ops._function import function


def _scaled(grad: PyTree, _: PyTree, x: PyTree, factor: Tensor | float) -> tuple[PyTree, None]:
    return tree_map(lambda g: (g * factor).to(g.dtype), grad), None


def _clipped(grad: PyTree, _: PyTree, x: PyTree, max_norm: Tensor | float) -> tuple[PyTree, None]:
    norm = tree.norm(grad)
    # a zero gradient has no direction; any finite factor leaves it zero
    factor = torch.clamp(max_norm / torch.where(norm == 0, 1, norm), max=1)
    return tree_map(lambda g: (g * factor).to(g.dtype), grad), None


def _no_forward_mode(*_: Any) -> PyTree:
    raise UnsupportedError(
        "clipping a gradient is no derivative of any function",
        "clip_grad in forward mode, where there is no gradient to clip",
        "take it out of what jvp, jacfwd or hessian see",
    )


_scale = function(lambda x, factor: x, _scaled)
_clip = function(lambda x, max_norm: x, _clipped, jvp=_no_forward_mode)


def scale_grad(x: PyTree, factor: Tensor | float) -> PyTree:
    """`x`, whose gradient is multiplied by `factor` on its way back.

    Args:
        x: Any pytree of floating tensors.
        factor: A number or a tensor that broadcasts to each leaf; it gets no gradient itself.

    Returns:
        The same values, structure, dtypes.

    >>> import torch
    >>> torch.func.grad(lambda x: 5 * scale_grad(x, 0.1))(torch.tensor(1.0))
    tensor(0.5000)
    """
    return _scale(x, factor)


def reverse_grad(x: PyTree, factor: Tensor | float = 1.0) -> PyTree:
    """`x`, whose gradient is multiplied by `-factor`: what follows works against what precedes.

    Source: Ganin and Lempitsky (2015), arXiv 1409.7495.

    Args:
        x: Any pytree of floating tensors.
        factor: A number or a tensor that broadcasts to each leaf.

    >>> import torch
    >>> torch.func.grad(lambda x: 5 * reverse_grad(x))(torch.tensor(1.0))
    tensor(-5.)
    """
    return _scale(x, -factor)


def clip_grad(x: PyTree, max_norm: Tensor | float) -> PyTree:
    """`x`, whose gradient is scaled down to a global L2 norm of `max_norm` on its way back.

    Under `vmap` each member is clipped for itself. A NaN or infinite gradient stays visible as NaN.
    In forward mode there is no gradient to clip, and `jvp` is refused.

    Args:
        x: Any pytree of floating tensors; the norm is taken over all of it.
        max_norm: The largest norm that passes, at least zero.

    Raises:
        UnsupportedError: under forward mode.

    >>> import torch
    >>> x = torch.tensor([1.0, 1.0])
    >>> torch.func.grad(lambda x: (clip_grad(x, 1.0) * torch.tensor([3.0, 4.0])).sum())(x)
    tensor([0.6000, 0.8000])
    """
    return _clip(x, max_norm)


def stop_gradient(x: PyTree) -> PyTree:
    """`x` as a constant: no gradient and no tangent passes, at any level of transforms.

    >>> import torch
    >>> torch.func.grad(lambda x: x * stop_gradient(x))(torch.tensor(3.0))
    tensor(3.)
    """
    return tree_map(lambda leaf: leaf.detach() if isinstance(leaf, Tensor) else leaf, x)
