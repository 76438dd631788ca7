"""Hypothesis strategies: tensors of every shape, dtype, layout and value; trees; modules; specs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from funcloop._errors import ArgumentError, MissingExtraError
from funcloop._pytree import PyTree
from funcloop.ops import QuantSpec

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

FLOATING = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
LAYOUTS = ("contiguous", "transposed", "strided", "expanded")
VALUES = ("normal", "ties", "bounds", "subnormal", "huge", "zero", "nonfinite")
#: What `tensors` draws unless it is asked for NaN and infinities.
FINITE_VALUES = tuple(kind for kind in VALUES if kind != "nonfinite")


def _hypothesis() -> ModuleType:
    try:
        import hypothesis.strategies
    except ImportError:
        raise MissingExtraError(
            "these strategies are for hypothesis",
            "hypothesis is not installed",
            "pip install funcloop[dev]",
        ) from None
    return hypothesis.strategies


def shapes(
    min_dims: int = 0, max_dims: int = 3, min_side: int = 0, max_side: int = 4
) -> SearchStrategy[tuple[int, ...]]:
    """Shapes, 0-d and empty ones among them.

    >>> from hypothesis import find
    >>> find(shapes(), lambda shape: len(shape) == 2)
    (0, 0)
    """
    st = _hypothesis()
    side = st.integers(min_side, max_side)
    return st.lists(side, min_size=min_dims, max_size=max_dims).map(tuple)


def tensors(
    shape: tuple[int, ...] | SearchStrategy[tuple[int, ...]] | None = None,
    dtypes: Sequence[torch.dtype] = FLOATING,
    layouts: Sequence[str] = LAYOUTS,
    values: Sequence[str] = FINITE_VALUES,
    device: torch.device | str = "cpu",
) -> SearchStrategy[Tensor]:
    """Floating tensors.

    Args:
        shape: A shape or a strategy of shapes; by default `shapes()`.
        dtypes: To draw from.
        layouts: To draw from: `contiguous`; `transposed`, with the dimensions' order in memory
            reversed; `strided`, every second element of a larger one; `expanded`, stride zero along
            the first dimension, whose entries are then equal.
        values: To draw from, each element by itself: `normal`; `ties`, halves of odd numbers;
            `bounds`, small powers of two and one less, of either sign; `subnormal`; `huge`, near
            the largest number of the dtype; `zero`, of either sign; `nonfinite`, NaN and
            infinities.
        device: Where the tensor lies.

    >>> from hypothesis import find
    >>> ties = tensors((2,), [torch.float32], ["contiguous"], ["ties"])
    >>> find(ties, lambda x: bool((x > 1).all()))
    tensor([1.5000, 1.5000])

    Raises:
        ArgumentError: a layout or a kind of value has another name.
    """
    st = _hypothesis()
    for given, known in ((layouts, LAYOUTS), (values, VALUES)):
        if not set(given) <= set(known):
            raise ArgumentError(
                "layouts and values go by name", f"{tuple(given)}", f"use some of {known}"
            )
    drawn_shapes = st.just(shape) if isinstance(shape, tuple) else shape or shapes()

    def draw(draw: Callable[[Any], Any]) -> Tensor:
        dtype = draw(st.sampled_from(list(dtypes)))
        layout, size = draw(st.sampled_from(list(layouts))), draw(drawn_shapes)
        numbers = st.one_of([_numbers(kind, dtype) for kind in values])
        count = math.prod(size)
        flat = draw(st.lists(numbers, min_size=count, max_size=count))
        x = torch.tensor(flat, dtype=torch.float64).to(dtype).reshape(size).to(device)
        return _laid_out(x, layout)

    return st.composite(draw)()


def _numbers(kind: str, dtype: torch.dtype) -> SearchStrategy[float]:
    st = _hypothesis()
    info = torch.finfo(dtype)
    if kind == "normal":
        return st.floats(-8, 8, width=16)
    if kind == "ties":
        return st.integers(-16, 16).map(lambda n: n + 0.5)
    if kind == "bounds":
        powers = st.integers(1, 8)
        ends = st.one_of(powers.map(lambda n: 2.0**n), powers.map(lambda n: 2.0**n - 1))
        return st.tuples(ends, st.sampled_from([1.0, -1.0])).map(math.prod)
    if kind == "subnormal":
        smallest = info.tiny * info.eps
        return st.integers(-8, 8).map(lambda n: n * smallest)
    if kind == "huge":
        return st.sampled_from([info.max, -info.max, info.max / 2, -info.max / 2])
    if kind == "zero":
        return st.sampled_from([0.0, -0.0])
    return st.sampled_from([math.nan, math.inf, -math.inf])


def _laid_out(x: Tensor, layout: str) -> Tensor:
    if layout == "transposed":
        order = list(reversed(range(x.ndim)))
        return x.permute(order).contiguous().permute(order)
    if layout == "strided":
        return torch.stack([x, x], -1)[..., 0]
    if layout == "expanded" and x.ndim and x.shape[0]:
        return x[:1].expand(x.shape)
    return x


def trees(leaves: SearchStrategy[Any] | None = None, max_leaves: int = 5) -> SearchStrategy[PyTree]:
    """Nested dicts, lists and tuples, empty ones among them, with these leaves (`tensors()`).

    >>> from hypothesis import find
    >>> find(trees(), lambda tree: tree == {})
    {}
    """
    st = _hypothesis()
    names = st.text("abc", min_size=1, max_size=2)
    return st.recursive(
        tensors() if leaves is None else leaves,
        lambda inner: st.one_of(
            st.dictionaries(names, inner, max_size=3),
            st.lists(inner, max_size=3),
            st.tuples(inner, inner),
        ),
        max_leaves=max_leaves,
    )


def modules(features: int = 4) -> SearchStrategy[nn.Module]:
    """Small networks `(B, features) -> (B, features)`: linear, norms, activations, dropout, skips.

    Parameters are drawn from a seed of hypothesis; the global generator is left as it was.

    >>> from hypothesis import find
    >>> net = find(modules(3), lambda net: len(net) == 2)
    >>> net(torch.ones(5, 3)).shape
    torch.Size([5, 3])
    """
    st = _hypothesis()
    parts: list[Callable[[], nn.Module]] = [
        lambda: nn.Linear(features, features),
        lambda: nn.Linear(features, features, bias=False),
        lambda: nn.LayerNorm(features),
        lambda: nn.BatchNorm1d(features),
        lambda: nn.Dropout(0.5),
        nn.ReLU,
        nn.Tanh,
        lambda: _Skip(nn.Linear(features, features)),
    ]

    def build(seed: int, chosen: list[Callable[[], nn.Module]]) -> nn.Module:
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            return nn.Sequential(*[part() for part in chosen])

    chosen = st.lists(st.sampled_from(parts), min_size=1, max_size=4)
    return st.builds(build, st.integers(0, 2**31), chosen)


class _Skip(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        """`x + inner(x)`."""
        return x + self.inner(x)


def quant_specs(
    axes: Sequence[int | None] = (None,), group_sizes: Sequence[int | None] = (None,)
) -> SearchStrategy[QuantSpec]:
    """Quantization schemes of 2 to 8 bits, signed or not, symmetric or not, narrow or not.

    Args:
        axes: Channel dimensions to draw from; None is one scale in all.
        group_sizes: Group sizes to draw from; None is no groups.

    >>> from hypothesis import find
    >>> find(quant_specs(), lambda spec: spec.bits == 4 and not spec.signed)
    QuantSpec(bits=4, signed=False, symmetric=False, narrow=False, axis=None, group_size=None)
    """
    st = _hypothesis()

    def build(signed: bool, narrow: bool, **rest: Any) -> QuantSpec:
        return QuantSpec(signed=signed, narrow=narrow and signed, **rest)

    return st.builds(
        build,
        bits=st.integers(2, 8),
        signed=st.booleans(),
        symmetric=st.booleans(),
        narrow=st.booleans(),
        axis=st.sampled_from(list(axes)),
        group_size=st.sampled_from(list(group_sizes)),
    )
