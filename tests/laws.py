"""The laws that every public function obeys, each written once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from funcloop._pytree import flatten, paths_of, tree_map, unflatten

#: Relative tolerance by dtype for results that differ only in the order of roundings.
ROUNDING = {
    torch.float64: 1e-12,
    torch.float32: 1e-5,
    torch.bfloat16: 2e-2,
    torch.float16: 2e-3,
}


def snapshot(tree: Any) -> Any:
    """A deep copy of every tensor of a tree."""
    return tree_map(lambda x: x.detach().clone() if isinstance(x, Tensor) else x, tree)


def assert_trees_equal(got: Any, want: Any) -> None:
    """Same structure, dtypes and bits."""
    got_leaves, got_structure = flatten(got)
    want_leaves, want_structure = flatten(want)
    assert got_structure == want_structure
    for path, a, b in zip(paths_of(got_structure), got_leaves, want_leaves, strict=True):
        if isinstance(b, Tensor):
            torch.testing.assert_close(
                a, b, rtol=0, atol=0, equal_nan=True, msg=lambda m, p=path: f"{p}: {m}"
            )
        else:
            assert a == b, path


def assert_trees_close(got: Any, want: Any, rtol: float | None = None) -> None:
    """Same structure and dtypes, and values to rounding of the dtype (or to `rtol`)."""
    got_leaves, got_structure = flatten(got)
    want_leaves, want_structure = flatten(want)
    assert got_structure == want_structure
    for path, a, b in zip(paths_of(got_structure), got_leaves, want_leaves, strict=True):
        if not isinstance(b, Tensor):
            assert a == b, path
            continue
        tolerance = ROUNDING.get(b.dtype, 0.0) if rtol is None else rtol
        torch.testing.assert_close(
            a,
            b,
            rtol=tolerance,
            atol=tolerance if b.is_floating_point() or b.is_complex() else 0,
            equal_nan=True,
            msg=lambda m, p=path: f"{p}: {m}",
        )


def assert_pure(f: Callable[..., Any], *args: Any) -> Any:
    """No argument changes, no generator moves, no result carries a graph; returns the result."""
    before, generator = snapshot(args), torch.get_rng_state()
    result = f(*args)
    assert_trees_equal(snapshot(args), before)
    assert torch.equal(torch.get_rng_state(), generator), "the global generator was used"
    for leaf in flatten(result)[0]:
        assert not isinstance(leaf, Tensor) or leaf.grad_fn is None, "a result carries a graph"
    return result


def assert_deterministic(f: Callable[..., Any], *args: Any) -> None:
    """The same arguments give the same bits, whatever the global generator's seed."""
    with torch.random.fork_rng():
        torch.manual_seed(1)
        first = snapshot(f(*args))
        torch.manual_seed(2)
        assert_trees_equal(f(*args), first)


def module_state(net: torch.nn.Module) -> list[tuple[Any, ...]]:
    """Which object stands in every dict of every module, and the bits of the tensors."""
    return [
        (
            path,
            kind,
            name,
            (id(value), [id(x) for x in value] if isinstance(value, (list, set)) else None),
            snapshot(value) if isinstance(value, Tensor) else None,
        )
        for path, module in net.named_modules()
        for kind in ("__dict__", "_parameters", "_buffers", "_modules")
        for name, value in getattr(module, kind).items()
    ]


def assert_module_unchanged(net: torch.nn.Module, before: list[tuple[Any, ...]]) -> None:
    """The module holds the identical objects, in their order, with identical bits."""
    now = module_state(net)
    assert [entry[:4] for entry in now] == [entry[:4] for entry in before]
    assert_trees_equal([entry[4] for entry in now], [entry[4] for entry in before])


def assert_jit_equal(
    f: Callable[..., Any], *args: Any, backend: str = "aot_eager", rtol: float | None = None
) -> None:
    """The compiled function gives what the eager one gives, to rounding, with one graph."""
    from funcloop.compile import jit

    compiled = jit(f, backend=backend)
    want = f(*args)
    assert_trees_close(compiled(*args), want, rtol)
    assert_trees_close(compiled(*args), want, rtol)
    assert compiled.traces == 1, "the second call re-traced"


def assert_vmap_equal(f: Callable[..., Any], *members: tuple[Any, ...], rtol: float | None = None):
    """`vmap(f)` over stacked arguments equals the loop over `members`, one args tuple each."""
    stacked = tree_map(lambda *xs: torch.stack(xs), *members)
    got = torch.func.vmap(f)(*stacked)
    want = tree_map(lambda *xs: torch.stack(xs), *[f(*args) for args in members])
    assert_trees_close(got, want, rtol)


def assert_dtype_preserved(f: Callable[[Any], Any], tree: Any) -> None:
    """The result has the structure of the argument, and each leaf its shape, dtype and device."""
    leaves, structure = flatten(tree)
    results, got_structure = flatten(f(unflatten(structure, leaves)))
    assert got_structure == structure
    for path, a, b in zip(paths_of(structure), results, leaves, strict=True):
        assert (a.shape, a.dtype, a.device) == (b.shape, b.dtype, b.device), path
