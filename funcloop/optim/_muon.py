"""Muon (Jordan et al. 2024): momentum made orthogonal by Newton-Schulz, for weight matrices."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from funcloop import tree
from funcloop._errors import ArgumentError, ShapeError
from funcloop._pytree import PyTree
from funcloop._types import OptState, Params, Transform
from funcloop.optim._chain import chain
from funcloop.optim._decay import add_decayed_weights
from funcloop.optim._hyper import Hyper, check_range, is_zero, value_at, zero_count
from funcloop.optim._leaves import map_leaves, refuse_complex, zeros_like
from funcloop.optim._scale import scale_by_learning_rate

_SIZES = {
    "original": lambda rows, columns: math.sqrt(max(1, rows / columns)),
    "match_rms_adamw": lambda rows, columns: 0.2 * math.sqrt(max(rows, columns)),
}


class MuonState(NamedTuple):
    """State of `scale_by_muon`.

    Attributes:
        step: Updates so far, int64, 0-d.
        momentum_buffer: Decayed mean of gradients, structure of the params, at least float32.
    """

    step: Tensor
    momentum_buffer: PyTree


def orthogonalize(
    matrix: Tensor,
    coefficients: tuple[float, float, float] = (3.4445, -4.7750, 2.0315),
    steps: int = 5,
    eps: float = 1e-7,
) -> Tensor:
    """An approximation of `U V^T` for `matrix = U S V^T`, by Newton-Schulz in bfloat16.

    Args:
        matrix: Shape (m, n).
        coefficients: Of the quintic iteration.
        steps: Number of iterations.
        eps: Smallest norm that is divided by.

    Returns:
        Shape (m, n), bfloat16; the singular values lie near one.

    >>> import torch
    >>> matrix = orthogonalize(torch.tensor([[3.0, 0.0], [0.0, 1.0]]))
    >>> singular = torch.linalg.svdvals(matrix.float())
    >>> bool(((singular > 0.5) & (singular < 1.5)).all())
    True
    """
    a, b, c = coefficients
    tall = matrix.shape[0] > matrix.shape[1]
    x = matrix.bfloat16()
    x = x.T if tall else x  # (short, long)
    x = x / x.norm().clamp(min=eps)
    for _ in range(steps):
        gram = x @ x.T  # (short, short)
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.T if tall else x


def scale_by_muon(
    momentum: Hyper = 0.95,
    nesterov: bool = True,
    ns_coefficients: tuple[float, float, float] = (3.4445, -4.7750, 2.0315),
    eps: float = 1e-7,
    ns_steps: int = 5,
    adjust_lr_fn: str | None = None,
) -> Transform:
    """The orthogonalized momentum of each weight matrix, as torch.optim.Muon; see `muon`.

    >>> import torch
    >>> tx, params = scale_by_muon(momentum=0.0), {"w": torch.zeros(2, 2)}
    >>> updates, _ = tx.update({"w": torch.diag(torch.tensor([3.0, 3.0]))}, tx.init(params), params)
    >>> bool((updates["w"].diag() > 0.5).all())  # both directions count alike
    True
    """
    check_range("momentum", momentum)
    size = _SIZES.get(adjust_lr_fn or "original")
    if size is None:
        raise ArgumentError(
            "adjust_lr_fn is a name", f"{adjust_lr_fn!r}", f"use None or one of {sorted(_SIZES)}"
        )

    def init(params: Params, /) -> OptState:
        _require_matrices(params)
        return MuonState(zero_count(params), zeros_like(params))

    def update(
        updates: PyTree, state: MuonState, params: Params, /, **extra: Any
    ) -> tuple[PyTree, OptState]:
        decay = value_at(momentum, state.step)

        def formula(g: Tensor, buffer: Tensor, old: Any, new: Any) -> tuple[Tensor, Tensor]:
            buffer = torch.lerp(buffer, g, new)
            ahead = torch.lerp(g, buffer, old) if nesterov else buffer
            matrix = orthogonalize(ahead, ns_coefficients, ns_steps, eps)
            return matrix.to(g.dtype) * size(*g.shape), buffer

        updates, buffer = map_leaves(
            formula, updates, state=[state.momentum_buffer], scalars=[decay, 1 - decay]
        )
        return updates, MuonState(state.step + 1, buffer)

    return Transform(init, update)


def _require_matrices(params: Params) -> None:
    refuse_complex(params, "muon")
    for path, leaf in tree.items(params):
        if leaf.ndim != 2:
            raise ShapeError(
                "muon is for weight matrices",
                f"{path} has shape {tuple(leaf.shape)}",
                "give the other leaves another optimizer: optim.partition({'matrix': muon(), "
                "'other': adamw()}, labels)",
            )


def muon(
    lr: Hyper = 1e-3,
    weight_decay: Hyper = 0.1,
    momentum: Hyper = 0.95,
    nesterov: bool = True,
    ns_coefficients: tuple[float, float, float] = (3.4445, -4.7750, 2.0315),
    eps: float = 1e-7,
    ns_steps: int = 5,
    adjust_lr_fn: str | None = None,
) -> Transform:
    """torch.optim.Muon, for trees of matrices only.

    Args:
        lr: Learning rate: a float, a 0-d tensor, or a schedule.
        weight_decay: Decoupled decay: the same.
        momentum: Decay of the mean of gradients: the same.
        nesterov: Look ahead.
        ns_coefficients: Of the quintic Newton-Schulz iteration.
        eps: Smallest norm divided by.
        ns_steps: Number of iterations.
        adjust_lr_fn: How the learning rate depends on the shape: "original" (the default) or
            "match_rms_adamw".

    Raises:
        ArgumentError: a number or name is out of range.
        ShapeError: a param is no matrix.
        UnsupportedError: a param is complex.

    >>> import torch
    >>> tx, params = muon(0.1), {"w": torch.zeros(2, 2)}
    >>> updates, _ = tx.update({"w": torch.eye(2)}, tx.init(params), params)
    >>> bool((updates["w"].diagonal() < -0.05).all())
    True
    """
    return chain(
        scale_by_muon(momentum, nesterov, ns_coefficients, eps, ns_steps, adjust_lr_fn),
        *([] if is_zero(weight_decay) else [add_decayed_weights(weight_decay)]),
        scale_by_learning_rate(lr),
    )
