"""What a step reports about a gradient comes right behind the update that consumes it."""

from __future__ import annotations

import torch
import torch.nn.functional as F

import funcloop as fl

COPY = torch.ops.aten.copy_.default
NORM = torch.ops.aten.linalg_vector_norm.default
P, X = torch.linspace(-1, 1, 30).view(5, 6), torch.linspace(-2, 3, 20).view(4, 5)


def order(f, *args) -> list[str]:
    """`write` and `sum` as they follow each other in the graph; what it computes is checked too."""
    want = f(*args)
    run = fl.jit(f, donate=0, backend="aot_eager")
    lowered = run.lower(*args)
    lowered.compile()
    got = run(fl.tree.map(torch.clone, args[0]), *args[1:])
    fl.tree.map(torch.testing.assert_close, got, want)
    names = []
    for node in lowered.traced.graph.graph.nodes:
        if node.target is COPY:
            names.append("write")
        elif node.op == "call_function" and node.target.name().startswith("aten::sum"):
            names.append("sum")
    return names


def gradients(params, x):
    """One for each param, none of which is pointwise."""
    return [x.T @ (x @ p) for p in params]


def test_norms_follow_the_updates_of_their_gradients():
    def step(params, x):
        grads = gradients(params, x)
        norms = [g.square().sum() for g in grads]
        return [p - 0.1 * g for p, g in zip(params, grads, strict=True)], torch.stack(norms).sqrt()

    assert order(step, [P, 2 * P], X) == ["write", "sum", "write", "sum"]


def test_both_moments_are_written_first():
    model = fl.stateless(torch.nn.Linear(5, 9))
    tx = fl.optim.adamw(0.1)
    step = fl.train_step(fl.value_and_grad(fl.supervised(model, F.mse_loss)), tx)
    state = fl.TrainState.create(*model.init(), tx, key=fl.random.key(0))
    lowered = fl.jit(step, donate=0, backend="aot_eager").lower(state, (X, torch.ones(4, 9)))
    lowered.compile()
    nodes = list(lowered.traced.graph.graph.nodes)
    writes = [i for i, n in enumerate(nodes) if n.target is COPY and n.meta["val"].shape == (9, 5)]
    norms = [i for i, n in enumerate(nodes) if n.target is NORM and n.args[0].meta["val"].ndim == 2]
    assert len(writes) == 3  # the param and two moments
    assert [max(writes) + 1] == norms


def test_a_norm_that_the_update_needs_comes_first():
    def clipped(params, x):
        (g,) = gradients(params, x)
        norm = g.square().sum().sqrt()
        return [params[0] - g / norm], norm

    assert order(clipped, [P], X) == ["sum", "write"]


def test_old_values_are_read_before_they_are_overwritten():
    """By the sum itself, by a view under it, and by what is done with the sum."""

    def direct(params, x):
        (g,) = gradients(params, x)
        return [params[0] - g], params[0].square().sum()

    def view(params, x):
        other = params[1].t()
        return [params[0] - other, 0.5 * params[1]], other.square().sum()

    def after(params, x):
        (g,) = gradients(params, x)
        return [params[0] - g], g.square().sum() * params[0]

    assert order(direct, [P], X) == ["sum", "write"]
    assert order(view, [P, P.t().contiguous()], X) == ["sum", "write", "write"]
    assert order(after, [P], X) == ["sum", "write"]


def test_the_result_is_the_same_through_inductor():
    def step(params, x):
        grads = gradients(params, x)
        norm = torch.stack([g.double().square().sum() for g in grads]).sum().sqrt()
        return [p - 0.1 * g for p, g in zip(params, grads, strict=True)], norm, params[0].sum()

    want = step([P, 2 * P], X)
    fl.tree.map(torch.testing.assert_close, fl.jit(step, donate=0)([P.clone(), 2 * P], X), want)
