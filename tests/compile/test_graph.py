"""What is done to a graph before it is compiled."""

from __future__ import annotations

import pytest
import torch

import funcloop as fl

STRIDED = torch.ops.aten.as_strided.default


def strided(f, *args) -> list[torch.fx.Node]:
    """The values of the prepared graph that have a memory of their own."""
    lowered = fl.jit(f, backend="aot_eager").lower(*args)
    lowered.compile()
    return [node for node in lowered.traced.graph.graph.nodes if node.target is STRIDED]


def test_scalars_that_a_loop_reads_are_computed_once(device):
    def update(x, count):
        correction = 1 - 0.9**count
        return x / correction, correction + 1

    (node,) = strided(update, torch.ones(100, device=device), torch.tensor(3.0, device=device))
    assert [user.name for user in node.users] == ["div"]


def test_nothing_else_is_touched():
    assert not strided(lambda x: x / x.sum(), torch.ones(100))  # a sum has its own memory
    assert not strided(lambda x, y: x * y, torch.ones(100), torch.tensor(2.0))  # so has an argument
    assert not strided(lambda x, y: x * (y + 1), torch.ones(8), torch.tensor(2.0))  # no loop
    assert not strided(lambda x: x - x.exp().log1p(), torch.ones(100))


@pytest.mark.parametrize(
    "tx",
    [
        fl.optim.adamw(fl.schedules.warmup_cosine(0.1, 2, 10)),
        fl.optim.chain(fl.optim.clip_by_global_norm(1.0), fl.optim.nadam()),
        fl.optim.prodigy(),
    ],
    ids=["adamw", "clipped nadam", "prodigy"],
)
def test_no_arithmetic_of_scalars_enters_a_loop_of_an_optimizer(tx):
    params = {"w": torch.linspace(-1, 1, 100)}

    def step(params, state, grads):
        updates, state = tx.update(grads, state, params)
        return fl.optim.apply_updates(params, updates), state

    lowered = fl.jit(step, backend="aot_eager").lower(params, tx.init(params), params)
    lowered.compile()
    for node in lowered.traced.graph.graph.nodes:
        if node.op == "call_function" and node.meta["val"].numel() == 100:
            for operand in node.all_input_nodes:
                steps = operand.all_input_nodes
                arithmetic = steps and not any(x.meta["val"].ndim for x in [operand, *steps])
                assert operand.target is STRIDED or not arithmetic, (node, operand)
