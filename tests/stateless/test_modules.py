"""Every module that torch ships: the pure call equals the stateful one, and changes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from funcloop._pytree import tree_map
from funcloop.random import key, route
from funcloop.stateless import stateless
from tests.laws import assert_trees_close, assert_trees_equal, snapshot

module_db = pytest.importorskip(
    "torch.testing._internal.common_modules", reason="needs expecttest, of the dev extra"
).module_db
#: Inputs tried for each module, spread over all those that torch has for it.
INPUTS = 16


def instances(
    info: Any, train: bool, device: torch.device
) -> Iterator[tuple[nn.Module, tuple[Any, ...], dict]]:
    """Modules with the arguments of one call, for those inputs that torch itself accepts."""
    torch.manual_seed(0)
    inputs = info.module_inputs_func(
        info, device=device, dtype=torch.float64, requires_grad=False, training=train
    )
    for given in inputs[:: max(1, len(inputs) // INPUTS)]:
        if given.forward_input is None:
            continue
        made, called = given.constructor_input, given.forward_input
        net = info.module_cls(*made.args, **made.kwargs).to(device, torch.float64).train(train)
        args, kwargs = snapshot((called.args, called.kwargs))
        if "Lazy" in info.name:  # a lazy module is finished by one dummy batch
            net(*args, **kwargs)
        yield net, args, kwargs


@pytest.mark.parametrize("train", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("info", module_db, ids=lambda info: info.name)
@pytest.mark.filterwarnings("ignore")
def test_pure_equals_stateful(info: Any, train: bool, device: torch.device):
    tried = 0
    with torch.random.fork_rng():
        for net, args, kwargs in instances(info, train, device):
            model = stateless(net)
            params, buffers = model.init()
            before = [(n, id(t), snapshot(t)) for n, t in net.state_dict(keep_vars=True).items()]
            given = snapshot((params, buffers, args, kwargs))
            state = torch.get_rng_state()
            output, after = model.apply(params, buffers, *args, key=key(0), train=train, **kwargs)
            assert torch.equal(torch.get_rng_state(), state)
            assert_trees_equal(tensors(given), tensors((params, buffers, args, kwargs)))
            for (name, which, value), (_, now) in zip(
                before, net.state_dict(keep_vars=True).items(), strict=True
            ):
                assert id(now) == which, name
                assert_trees_equal(snapshot(now), value)
            with route(key(0)):
                expected = net(*snapshot(args), **snapshot(kwargs))
            assert_trees_close(tensors(snapshot(output)), tensors(snapshot(expected)))
            assert_trees_equal(snapshot(after), snapshot(dict(net.named_buffers())))
            tried += 1
    assert tried


def tensors(tree: Any) -> Any:
    """The tree with None for what is no tensor: modules and functions have no equality."""
    return tree_map(lambda leaf: leaf if isinstance(leaf, Tensor) else None, tree)


def test_no_module_is_skipped():
    assert len(module_db) > 100
