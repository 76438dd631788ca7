"""Does a device compute what the CPU computes, and jit what eager mode does?"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import funcloop as fl
from bench import _workloads
from funcloop._pytree import tree_map
from funcloop.testing import assert_trees_close
from tests.ops.table import OPS

Check = tuple[str, Callable[[], None]]
#: Relative to one plus the size: sums of some hundred float32 terms in another order.
CLOSE = 1e-4
KEY_IN_CLOSURE = {"gumbel_softmax"}  # its sample call holds a key of the CPU


def checks(device: torch.device) -> Iterator[Check]:
    """Named checks; each raises where it does not hold."""
    yield "keys: the same bits as on the CPU", lambda: keys(device)
    for name in OPS:
        if name not in KEY_IN_CLOSURE:
            yield (
                f"ops.{name}: value and gradient as on the CPU",
                lambda name=name: op(name, device),
            )
    small = {"cnn": _workloads.cnn, "gpt": lambda: _workloads.gpt(1, 32, 16, 4)}
    for name, make in small.items():
        yield f"{name}: gradient, eager as on the CPU", lambda make=make: gradient(make, device)
        yield f"{name}: gradient, jitted as eager", lambda make=make: jitted(make, device)


def keys(device: torch.device) -> None:
    here, there = fl.random.key(3), fl.random.key(3).to(device)
    for draw in (fl.random.bits, fl.random.uniform):
        assert torch.equal(draw(here, (1001,)), draw(there, (1001,)).cpu()), draw.__name__
    assert torch.equal(fl.random.split(here, 5), fl.random.split(there, 5).cpu())
    assert torch.equal(fl.random.permutation(here, 100), fl.random.permutation(there, 100).cpu())
    assert_trees_close(
        fl.random.normal(there, (1001,)).cpu(), fl.random.normal(here, (1001,)), 1e-5
    )


def op(name: str, device: torch.device) -> None:
    run = OPS[name].f
    for args in OPS[name].samples:
        there = _to(args, device)
        outputs, pull = torch.func.vjp(run, *args)
        others, pull_there = torch.func.vjp(run, *there)
        assert_trees_close(_to(others, torch.device("cpu")), outputs, 1e-5)
        ones = tree_map(torch.ones_like, outputs)
        grads = _to(pull_there(_to(ones, device)), torch.device("cpu"))
        assert_trees_close(grads, pull(ones), 1e-5)


def gradient(make: Callable[[], _workloads.Workload], device: torch.device) -> None:
    want, got = (_gradient(make, where)() for where in (torch.device("cpu"), device))
    assert_trees_close(_to(got, torch.device("cpu")), want, CLOSE)


def jitted(make: Callable[[], _workloads.Workload], device: torch.device) -> None:
    want, got = (_gradient(make, device, jit)() for jit in (False, True))
    assert_trees_close(got, want, CLOSE)


def _gradient(
    make: Callable[[], _workloads.Workload], device: torch.device, jit: bool = False
) -> Callable[[], Any]:
    torch.manual_seed(0)
    work = make()
    model, (x, y) = fl.stateless(work.net.to(device)), work.batch
    estimate = fl.value_and_grad(fl.supervised(model, F.cross_entropy, metrics={}))
    run = fl.jit(estimate) if jit else estimate
    params, buffers = model.init()
    key = fl.random.key(0).to(device)
    return lambda: run(params, buffers, (x.to(device), y.to(device)), key).grads


def _to(tree: Any, device: torch.device) -> Any:
    return tree_map(lambda x: x.to(device) if isinstance(x, Tensor) else x, tree)
