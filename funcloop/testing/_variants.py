"""One test, run eagerly, jitted and batched, on every device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from funcloop._errors import MissingExtraError
from funcloop._pytree import PyTree, tree_map
from funcloop.compile import jit


class Variant(NamedTuple):
    """A way to run a function: `variant(f)` runs so, and gives what `f` gives.

    Attributes:
        how: `"eager"`, `"jit"` or `"vmap"`.
        device: Where the test makes its tensors.

    >>> import torch
    >>> Variant("vmap", torch.device("cpu"))(torch.sum)(torch.ones(3))
    tensor(3.)
    """

    how: str
    device: torch.device

    def __call__(self, f: Callable[..., PyTree]) -> Callable[..., PyTree]:
        """`f`, run in this way."""
        if self.how == "jit":
            return jit(f, backend="aot_eager")
        return _as_one_member(f) if self.how == "vmap" else f

    def __str__(self) -> str:
        return f"{self.how}-{self.device}"


def _as_one_member(f: Callable[..., PyTree]) -> Callable[..., PyTree]:
    """`vmap(f)` over a batch of two equal members, of which the second is returned."""

    def run(*args: Any) -> PyTree:
        dims = tree_map(lambda x: 0 if isinstance(x, Tensor) else None, args)
        batch = tree_map(lambda x: torch.stack([x, x]) if isinstance(x, Tensor) else x, args)
        return tree_map(lambda x: x[1], torch.func.vmap(f, dims)(*batch))

    return run


def variants(test: Callable[..., Any]) -> Callable[..., Any]:
    """Parametrize a pytest test over `variant`: eager, jit and vmap, on the CPU and on CUDA.

    The test takes an argument `variant` (a `Variant`) and wraps what it tests in it:

        @variants
        def test_double(variant):
            x = torch.ones(3, device=variant.device)
            assert variant(double)(x).sum() == 6

    Raises:
        MissingExtraError: pytest is not installed.

    >>> @variants
    ... def test_double(variant):
    ...     return variant(lambda x: 2 * x)(torch.ones(3, device=variant.device))
    >>> [str(variant) for variant in test_double.pytestmark[0].args[1]][:3]
    ['eager-cpu', 'jit-cpu', 'vmap-cpu']
    """
    try:
        import pytest
    except ImportError:
        raise MissingExtraError(
            "variants parametrizes pytest tests",
            "pytest is not installed",
            "pip install funcloop[dev]",
        ) from None
    devices = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
    every = [Variant(how, torch.device(d)) for d in devices for how in ("eager", "jit", "vmap")]
    return pytest.mark.parametrize("variant", every, ids=str)(test)
