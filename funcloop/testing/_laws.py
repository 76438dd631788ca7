"""The laws that pure functions obey, each written once."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from funcloop._errors import ArgumentError
from funcloop._pytree import flatten, paths_of, tree_map
from funcloop.compile import Jitted, jit
from funcloop.testing._trees import assert_trees_close, assert_trees_equal, snapshot


def assert_pure(f: Callable[..., Any], *args: Any) -> Any:
    """No argument changes, no generator moves, no result carries a graph.

    Returns:
        What `f(*args)` returns.

    Raises:
        AssertionError: one of these does not hold.

    >>> import torch
    >>> assert_pure(torch.neg, torch.ones(2))
    tensor([-1., -1.])
    >>> assert_pure(torch.Tensor.neg_, torch.ones(2))
    Traceback (most recent call last):
    AssertionError: an argument was changed: 0: 2 of 2 elements differ; ...
    """
    before, generators = snapshot(args), _generators()
    result = f(*args)
    try:
        assert_trees_equal(snapshot(args), before)
    except AssertionError as error:
        raise AssertionError(f"an argument was changed: {error}") from None
    for name, old, new in zip(("CPU", "CUDA"), generators, _generators(), strict=True):
        assert torch.equal(old, new), f"the global {name} generator was used"
    leaves, structure = flatten(result)
    for path, leaf in zip(paths_of(structure), leaves, strict=True):
        graph = isinstance(leaf, Tensor) and leaf.grad_fn is not None
        assert not graph, f"{path or 'the result'} carries a graph"
    return result


def _generators() -> tuple[Tensor, Tensor]:
    cuda = torch.cuda.get_rng_state() if torch.cuda.is_initialized() else torch.zeros(0)
    return torch.get_rng_state(), cuda


def assert_deterministic(f: Callable[..., Any], *args: Any) -> None:
    """The same arguments give the same bits, whatever the global generator's seed.

    Raises:
        AssertionError: they do not.

    >>> import torch
    >>> assert_deterministic(torch.neg, torch.ones(2))
    """
    with torch.random.fork_rng():
        torch.manual_seed(1)
        first = snapshot(f(*args))
        torch.manual_seed(2)
        assert_trees_equal(f(*args), first)


def assert_jit_equal(
    f: Callable[..., Any], *args: Any, backend: str = "aot_eager", rtol: float | None = None
) -> None:
    """The compiled function gives what the eager one gives, to rounding, with one graph.

    Args:
        f: A pure function.
        *args: What it takes.
        backend: Of `jit`; the default shows the same without code generation.
        rtol: As for `assert_trees_close`.

    Raises:
        AssertionError: a result differs, or the second call re-traced.

    >>> import torch
    >>> assert_jit_equal(torch.exp, torch.ones(2))
    """
    compiled = jit(f, backend=backend)
    want = f(*args)
    assert_trees_close(compiled(*args), want, rtol)
    assert_trees_close(compiled(*args), want, rtol)
    assert compiled.traces == 1, "the second call re-traced"


def assert_vmap_equal(
    f: Callable[..., Any], *members: tuple[Any, ...], rtol: float | None = None
) -> None:
    """`vmap(f)` over stacked arguments equals the loop over members.

    Args:
        f: A pure function.
        *members: One tuple of arguments for each member, of equal structure and shapes.
        rtol: As for `assert_trees_close`.

    Raises:
        AssertionError: a result differs.

    >>> import torch
    >>> one, two = torch.ones(3), torch.full((3,), 2.0)
    >>> assert_vmap_equal(torch.dot, (one, two), (two, two))
    """
    stacked = tree_map(lambda *xs: torch.stack(xs), *members)
    got = torch.func.vmap(f)(*stacked)
    want = tree_map(lambda *xs: torch.stack(xs), *[f(*args) for args in members])
    assert_trees_close(got, want, rtol)


def assert_max_traces(f: Callable[..., Any], n: int) -> Callable[..., Any]:
    """`f`, which fails once its graphs, or its runs in Python, are more than `n`.

    Wrapped around a jitted function it counts graphs. Inside `jit` it counts runs of the Python
    code, which are the traces.

    Args:
        f: A jitted or a plain function.
        n: How often it may be traced.

    Returns:
        The same function; the call that traces once too often raises AssertionError.

    >>> import torch
    >>> from funcloop.compile import Jitted, jit
    >>> double = jit(assert_max_traces(lambda x: 2 * x, 1), backend="aot_eager")
    >>> double(torch.ones(2)), double(torch.zeros(2))
    (tensor([2., 2.]), tensor([0., 0.]))
    >>> double(torch.ones(3))
    Traceback (most recent call last):
    AssertionError: <lambda> was traced 2 times; at most 1 is allowed. The last arguments
    differ in structure, shape, stride, dtype or device
    """
    if n < 1:
        raise ArgumentError("a function is traced at least once", f"n={n}", "allow one trace")
    name = getattr(f, "__name__", repr(f))
    runs = 0

    def check(traces: int) -> None:
        assert traces <= n, (
            f"{name} was traced {traces} times; at most {n} is allowed. The last arguments\n"
            "differ in structure, shape, stride, dtype or device"
        )

    @functools.wraps(f)
    def counted(*args: Any, **kwargs: Any) -> Any:
        nonlocal runs
        if not isinstance(f, Jitted):
            runs += 1
            check(runs)
        result = f(*args, **kwargs)
        if isinstance(f, Jitted):
            check(f.traces)
        return result

    return counted
