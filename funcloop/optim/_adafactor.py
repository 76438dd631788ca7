"""Adafactor (Shazeer & Stern 2018, arXiv:1804.04235): second moments by row and column."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from funcloop import tree
from funcloop._pytree import PyTree
from funcloop._types import OptState, Params, Transform
from funcloop.optim._block import clip_by_block_rms, scale_by_param_rms
from funcloop.optim._chain import chain
from funcloop.optim._decay import add_decayed_weights
from funcloop.optim._hyper import Hyper, as_schedule, check_range, is_zero, zero_count
from funcloop.optim._leaves import map_leaves, refuse_complex, zeros_like
from funcloop.optim._scale import scale, scale_by_learning_rate


class FactoredState(NamedTuple):
    """State of `scale_by_factored_rms`; all at least float32.

    Attributes:
        step: Updates so far, int64, 0-d.
        row_var: Of a leaf (..., m, n) the mean squares over n, (..., m, 1); of a vector or scalar
            the mean squares themselves.
        col_var: Of a leaf (..., m, n) the mean squares over m, (..., 1, n); else empty, (0,).
    """

    step: Tensor
    row_var: PyTree
    col_var: PyTree


def scale_by_factored_rms(beta2_decay: float = -0.8, eps: float | None = None) -> Transform:
    """`g / sqrt(v)` where the v of a matrix is the product of its row and column means.

    Args:
        beta2_decay: v is averaged with weight `t ** beta2_decay` on the newest square.
        eps: Smallest root that is divided by; None is the machine epsilon of the arithmetic.

    >>> import torch
    >>> tx, params = scale_by_factored_rms(), {"w": torch.zeros(2, 2)}
    >>> tx.update({"w": torch.tensor([[1.0, 2.0], [2.0, 4.0]])}, tx.init(params), params)[0]
    {'w': tensor([[1., 1.], [1., 1.]])}
    """
    check_range("-beta2_decay", -beta2_decay)

    def init(params: Params, /) -> OptState:
        refuse_complex(params, "adafactor")
        zeros = zeros_like(params)
        return FactoredState(
            zero_count(params),
            tree.map(lambda z: z.sum(-1, keepdim=True) if z.ndim > 1 else z, zeros),
            tree.map(lambda z: z.sum(-2, keepdim=True) if z.ndim > 1 else z.new_zeros(0), zeros),
        )

    def update(
        updates: PyTree, state: FactoredState, params: Params, /, **extra: Any
    ) -> tuple[PyTree, OptState]:
        step = state.step + 1
        newest = step.to(torch.float64) ** beta2_decay

        def formula(g: Tensor, row: Tensor, col: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
            floor = torch.finfo(g.dtype).eps if eps is None else eps
            return (_factored if g.ndim > 1 else _whole)(g, row, col, weight, floor)

        updates, row, col = map_leaves(
            formula, updates, factors=[state.row_var, state.col_var], scalars=[newest]
        )
        return updates, FactoredState(step, row, col)

    return Transform(init, update)


def _factored(g: Tensor, row: Tensor, col: Tensor, new: Tensor, eps: float) -> tuple[Tensor, ...]:
    square = g * g
    row = torch.lerp(row, square.mean(-1, keepdim=True), new)  # (..., m, 1)
    col = torch.lerp(col, square.mean(-2, keepdim=True), new)  # (..., 1, n)
    v = row * col / row.mean(-2, keepdim=True).clamp_min(eps)
    return g * v.clamp_min(eps * eps).rsqrt(), row, col


def _whole(g: Tensor, v: Tensor, col: Tensor, new: Tensor, eps: float) -> tuple[Tensor, ...]:
    v = torch.lerp(v, g * g, new)
    return g * v.clamp_min(eps * eps).rsqrt(), v, col


def adafactor(
    lr: Hyper = 1e-2,
    beta2_decay: float = -0.8,
    eps: tuple[float | None, float] = (None, 1e-3),
    d: float = 1.0,
    weight_decay: Hyper = 0.0,
    *,
    maximize: bool = False,
) -> Transform:
    """torch.optim.Adafactor, whose eps and learning rate differ from the paper's.

    Args:
        lr: Upper bound of the relative step, `min(lr, 1 / sqrt(t))`, and factor of the decay: a
            float, a 0-d tensor, or a schedule.
        beta2_decay: The second moment is averaged with weight `t ** beta2_decay` on the newest.
        eps: Smallest root divided by (None is the machine epsilon), and smallest size of a param
            that a step is relative to.
        d: The root mean square of a leaf's update above which it is clipped.
        weight_decay: Decoupled decay.
        maximize: Ascend.

    Raises:
        ArgumentError: a number is out of range.
        UnsupportedError: a param is complex.

    >>> import torch
    >>> tx, params = adafactor(0.1), {"w": torch.tensor([3.0, -4.0])}
    >>> tx.update({"w": torch.tensor([2.0, 2.0])}, tx.init(params), params)[0]
    {'w': tensor([-0.3536, -0.3536])}
    """
    check_range("lr", lr)
    check_range("d", d, 1.0)
    rate, decay = as_schedule(lr), as_schedule(weight_decay)

    def relative_step(count: Tensor, /) -> Tensor:
        return torch.minimum(rate(count).to(torch.float64), (count + 1).to(torch.float64) ** -0.5)

    def negative_decay(count: Tensor, /) -> Tensor:
        return -rate(count) * decay(count)

    return chain(
        *([scale(-1.0)] if maximize else []),
        scale_by_factored_rms(beta2_decay, eps[0]),
        clip_by_block_rms(d),
        scale_by_param_rms(eps[1]),
        scale_by_learning_rate(relative_step),
        *([] if is_zero(weight_decay) else [add_decayed_weights(negative_decay)]),
    )
