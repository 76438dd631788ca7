"""What rematerialisation is for: how much a compiled graph holds at a time."""

import pytest
import torch
from torch._functorch.compile_utils import fx_graph_cse

from funcloop import _remat
from funcloop._compat import trace_flat
from funcloop.meta import unroll

ROWS, WIDTH = 1000, 4


def step(w, batch):
    """Activations are 250 times larger than the weights."""
    x, rate = batch
    return w - rate * torch.tanh(torch.sin(x @ w) @ w).square().mean(), {}


def peak(steps: int, remat: bool) -> int:
    """Most bytes alive at a time in the gradient's graph, in its order, after CSE."""

    def gradient(w, rate, x):
        run = unroll(step, steps, remat=remat)
        return torch.func.grad(lambda w, r: run(w, (x, r))[0].sum(), argnums=(0, 1))(w, rate)

    args = torch.ones(WIDTH, WIDTH), torch.tensor(0.1), torch.ones(ROWS, WIDTH)
    module, _ = trace_flat(gradient, args)
    module.graph.eliminate_dead_code()
    graph = fx_graph_cse(module.graph)
    graph.eliminate_dead_code()
    nodes = list(graph.nodes)
    last = {}  # for each storage the place where it is used last
    for place, node in enumerate(nodes):
        for used in [node, *node.all_input_nodes]:
            for storage in storages(used):
                last[storage] = place
    alive, most = set(), 0
    for place, node in enumerate(nodes):
        alive |= storages(node)
        most = max(most, sum(size for _, size in alive))
        alive = {s for s in alive if last[s] > place}
    return most


def storages(node: torch.fx.Node) -> set[tuple[int, int]]:
    """Identity and size of what a node's value lives in; views share it."""
    value = node.meta.get("val")
    tensors = value if isinstance(value, (list, tuple)) else [value]
    found = [t.untyped_storage() for t in tensors if isinstance(t, torch.Tensor)]
    return {(s._cdata, s.nbytes()) for s in found}


def test_peak_of_fifty_steps_is_near_that_of_one():
    fifty = peak(50, True)
    assert fifty <= 2 * peak(5, True)
    assert fifty <= 2 * peak(5, False)
    assert fifty <= 2.5 * peak(1, False)  # the barriers' copies of the batch are the half


def test_without_the_barrier_the_compiler_merges_the_recomputation(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(_remat, "barrier", lambda values, after: list(values))
    assert peak(9, True) > 0.8 * peak(9, False)
