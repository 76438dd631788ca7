import gc

import pytest
import torch
from torch import nn

from funcloop import optim, random, tree
from funcloop._errors import ArgumentError, ShapeError, StructureError, UnsupportedError
from funcloop._types import Aux
from funcloop.estimators import supervised
from funcloop.meta import (
    MetaParams,
    anil,
    fomaml,
    maml,
    metasgd,
    per_step,
    per_step_buffers,
    reptile,
    unroll,
)
from funcloop.stateless import stateless
from tests.laws import (
    assert_deterministic,
    assert_jit_equal,
    assert_pure,
    assert_trees_close,
    assert_trees_equal,
    assert_vmap_equal,
)
from tests.meta import naive

F64 = torch.float64
KEY = random.key(0)
INNER = {
    "sgd": (optim.sgd(0.1), naive.sgd),
    "momentum": (optim.sgd(0.1, momentum=0.9), naive.momentum),
    "adam": (optim.adam(0.1, eps=1e-3), naive.adam),
}


@pytest.mark.parametrize("remat", [False, True])
@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("name", INNER)
def test_meta_gradient_equals_the_autograd_loop(name, order, remat):
    inner, rule = INNER[name]
    params, batch = naive.start(), naive.task_batch()
    want, loss = naive.meta_gradient(params, batch, rule, 3, order)
    grad_fn = maml(naive.loss_fn, inner, 3, order=order, remat=remat)
    estimate = assert_pure(grad_fn, params, {}, batch, KEY)
    assert_trees_close(estimate.grads, want, 1e-10)
    assert_trees_close(estimate.loss, loss, 1e-12)


@pytest.mark.parametrize("name", INNER)
def test_meta_gradient_equals_finite_differences(name):
    inner, rule = INNER[name]
    params, batch = naive.start(1), naive.task_batch(2)
    way = tree.map(lambda p: torch.cos(3 * p), params)

    def at(size):
        moved = {k: (params[k] + size * way[k]).requires_grad_() for k in params}
        return naive.meta_loss(moved, batch, rule, 3).detach()

    def slope_over(step):
        return (at(step) - at(-step)) / (2 * step)

    # Richardson's extrapolation: adam's eps makes the third derivative large.
    slope = (4 * slope_over(5e-6) - slope_over(1e-5)) / 3
    grads = maml(naive.loss_fn, inner, 3)(params, {}, batch, KEY).grads
    torch.testing.assert_close(tree.vdot(grads, way), slope, rtol=1e-6, atol=1e-9)


def test_anil_equals_the_loop_over_the_head_only():
    params, batch = naive.start(), naive.task_batch()
    for order in (1, 2):
        want, _ = naive.meta_gradient(params, batch, naive.sgd, 3, order, ("head.weight",))
        grad_fn = anil(naive.loss_fn, optim.sgd(0.1), 3, head="head", order=order)
        assert_trees_close(grad_fn(params, {}, batch, KEY).grads, want, 1e-10)
    with pytest.raises(StructureError, match="matches none"):
        anil(naive.loss_fn, optim.sgd(0.1), 3, head="nose")(params, {}, batch, KEY)


def scalar_loss(params, buffers, batch, key):
    """Support: target 0, loss w^2. Query: target 1, loss (w - 1)^2 / 2."""
    return torch.where(batch == 0, params**2, 0.5 * (params - batch) ** 2)


SCALAR_TASK = torch.zeros(1, 1, dtype=F64), torch.ones(1, 1, dtype=F64)


@pytest.mark.parametrize(
    ("steps", "order", "d_theta", "d_alpha", "d_each"),
    [
        (1, 2, 0.48, -2.4, [-2.4]),
        (1, 1, 0.6, -2.4, [-2.4]),
        (2, 2, 0.1792, -1.792, [-0.896, -0.896]),
        (2, 1, 0.28, -2.016, [-1.12, -0.896]),
    ],
)
def test_b25_order_and_learned_rates(steps, order, d_theta, d_alpha, d_each):
    theta, alpha = torch.tensor(2.0, dtype=F64), torch.tensor(0.1, dtype=F64)

    def grads(inner, params, **options):
        grad_fn = maml(scalar_loss, inner, steps, order=order, **options)
        return grad_fn(params, {}, SCALAR_TASK, KEY).grads

    for remat in (False, True):
        assert_trees_close(grads(optim.sgd(0.1), theta, remat=remat), theta * 0 + d_theta, 1e-12)
        got = grads(optim.sgd, MetaParams(theta, alpha), remat=remat)
        assert_trees_close(got, MetaParams(theta * 0 + d_theta, alpha * 0 + d_alpha), 1e-12)
        got = grads(
            lambda rates: optim.sgd(per_step(rates)),
            MetaParams(theta, alpha.repeat(steps)),
            remat=remat,
        )
        assert_trees_close(got.hyper, torch.tensor(d_each, dtype=F64), 1e-12)
    got = metasgd(scalar_loss, steps, order=order)(
        MetaParams.with_rates(theta, 0.1), {}, SCALAR_TASK, KEY
    )
    assert_trees_close(got.grads, MetaParams(theta * 0 + d_theta, alpha * 0 + d_alpha), 1e-12)


def test_b25_closed_form_after_five_steps():
    theta = torch.tensor(2.0, dtype=F64)
    last = 2 * 0.8**5
    second = maml(scalar_loss, optim.sgd(0.1), 5)(theta, {}, SCALAR_TASK, KEY)
    first = fomaml(scalar_loss, optim.sgd(0.1), 5)(theta, {}, SCALAR_TASK, KEY)
    torch.testing.assert_close(second.grads, torch.tensor((last - 1) * 0.8**5, dtype=F64))
    torch.testing.assert_close(first.grads, torch.tensor(last - 1, dtype=F64))


def test_reptile_equals_its_closed_form_weighted_over_tasks():
    theta = torch.tensor(2.0, dtype=F64)
    support, query = torch.zeros(3, 1, dtype=F64), torch.ones(3, 1, dtype=F64)
    weight = torch.tensor([1.0, 3.0, 0.0])
    grad_fn = reptile(lambda p, b, x, key: 0.5 * (p - x) ** 2, optim.sgd(0.1), 2)
    support[1] = 1.0
    support[2] = torch.nan
    estimate = assert_pure(grad_fn, theta, {}, (support, query, weight), KEY)
    ways = torch.tensor([2 - 2 * 0.81, 2 - (1 + 0.81)], dtype=F64)
    torch.testing.assert_close(estimate.grads, (ways[0] + 3 * ways[1]) / 4)
    torch.testing.assert_close(estimate.weight, torch.tensor(4.0, dtype=F64))
    fast = torch.tensor([2 * 0.81, 1 + 0.81], dtype=F64)
    torch.testing.assert_close(estimate.loss, (0.5 * (fast - 1) ** 2 * weight[:2]).sum() / 4)


BUILD = {
    "maml": lambda **o: maml(naive.loss_fn, optim.adam(0.05), 2, **o),
    "fomaml": lambda **o: fomaml(naive.loss_fn, optim.sgd(0.1), 2, **o),
    "anil": lambda **o: anil(naive.loss_fn, optim.sgd(0.1), 2, head="head", **o),
    "reptile": lambda **o: reptile(naive.loss_fn, optim.sgd(0.1), 2, **o),
}


@pytest.mark.parametrize("name", BUILD)
def test_chunks_change_nothing(name):
    params, batch = naive.start(), (*naive.task_batch(5), torch.tensor([1.0, 2, 0, 1, 0.5]))
    want = BUILD[name]()(params, {}, batch, KEY)
    for chunk in (1, 2, 7):
        assert_trees_close(BUILD[name](chunk=chunk)(params, {}, batch, KEY), want, 1e-12)


@pytest.mark.parametrize("name", BUILD)
def test_jit_gives_the_same(name):
    params, batch = naive.start(), naive.task_batch(2)
    assert_jit_equal(BUILD[name](), params, {}, batch, KEY, rtol=1e-10)


def test_jit_of_remat_and_chunks_gives_the_same():
    params, batch = naive.start(), naive.task_batch(2)
    grad_fn = maml(naive.loss_fn, optim.sgd(0.1), 2, remat=True, chunk=1)
    assert_jit_equal(grad_fn, params, {}, batch, KEY, rtol=1e-10)


def test_padding_changes_nothing():
    def weighted(params, buffers, batch, key):
        x, y, weight = batch
        return naive.loss_fn(params, buffers, (x, y), key), Aux(buffers, {}, weight)

    params, ((xs, ys), (xq, yq)) = naive.start(), naive.task_batch(2)
    pad = torch.full((2, 3, 2), 7.0, dtype=F64)
    grad_fn = maml(weighted, optim.sgd(0.1), 3)

    def padded(x, y):
        weight = torch.cat([torch.ones(2, x.shape[1]), torch.zeros(2, 3)], 1)
        return torch.cat([x, pad], 1), torch.cat([y, pad[..., :1]], 1), weight

    got = grad_fn(params, {}, (padded(xs, ys), padded(xq, yq)), KEY)
    want = maml(naive.loss_fn, optim.sgd(0.1), 3)(params, {}, ((xs, ys), (xq, yq)), KEY)
    assert_trees_close(got.grads, want.grads, 1e-12)
    assert_trees_close(got.loss, want.loss, 1e-12)


def test_tasks_of_different_shots_and_weights_equal_one_task_at_a_time():
    def weighted(params, buffers, batch, key):
        x, y, weight = batch
        return naive.loss_fn(params, buffers, (x, y), key), Aux(
            buffers, {"one": weight * 0 + 1}, weight
        )

    params, ((xs, ys), (xq, yq)) = naive.start(), naive.task_batch(3)
    shots = (torch.arange(4) < torch.tensor([[1], [2], [4]])).double()
    asked = (torch.arange(6) < torch.tensor([[3], [6], [0]])).double()
    weight = torch.tensor([1.0, 2.0, 5.0])  # the third task asks nothing, and cannot count
    grad_fn = maml(weighted, optim.sgd(0.1), 2)
    got = grad_fn(params, {}, ((xs, ys, shots), (xq, yq, asked), weight), KEY)
    singles = []
    for i, (k, q) in enumerate([(1, 3), (2, 6)]):
        part = (xs[i : i + 1, :k], ys[i : i + 1, :k]), (xq[i : i + 1, :q], yq[i : i + 1, :q])
        singles.append(naive.meta_gradient(params, part, naive.sgd, 2))
    want = tree.map(lambda a, b: (a + 2 * b) / 3, singles[0][0], singles[1][0])
    assert_trees_close(got.grads, want, 1e-10)
    torch.testing.assert_close(got.loss, (singles[0][1] + 2 * singles[1][1]) / 3)
    assert got.weight == 3
    assert got.metrics["one"] == 1


def test_adapt_is_the_same_code_path_and_grad_of_it_the_meta_gradient():
    params, ((xs, ys), (xq, yq)) = naive.start(), naive.task_batch(1)
    grad_fn = maml(naive.loss_fn, optim.adam(0.1), 3)

    def query(params):
        adapted = grad_fn.adapt(params, {}, (xs[0], ys[0]), KEY)
        return naive.loss_fn(adapted.params, {}, (xq[0], yq[0]), KEY).mean()

    want = grad_fn(params, {}, ((xs, ys), (xq, yq)), KEY).grads
    assert_trees_close(torch.func.grad(query)(params), want, 1e-10)
    adapted = assert_pure(grad_fn.adapt, params, {}, (xs[0], ys[0]), KEY)
    assert adapted.metrics["loss"].shape == (3,)
    assert adapted.metrics["loss"][0] == naive.loss_fn(params, {}, (xs[0], ys[0]), KEY).mean()


def test_keys_are_used_once_and_by_task():
    seen = []

    def loss_fn(params, buffers, batch, key):
        noise = random.normal(key, (2,), dtype=F64)
        return params * batch + noise, Aux(buffers, {"noise": noise})

    tasks = torch.ones(3, 2, dtype=F64), torch.ones(3, 2, dtype=F64)
    grad_fn = maml(loss_fn, optim.sgd(0.1), 2)
    assert_deterministic(grad_fn, torch.tensor(1.0, dtype=F64), {}, tasks, KEY)
    for key in random.split(KEY, 3):
        seen += [
            *grad_fn.adapt(torch.tensor(1.0, dtype=F64), {}, tasks[0][0], key).metrics["noise"]
        ]
    _, aux = grad_fn.loss_fn(torch.tensor(1.0, dtype=F64), {}, tasks, KEY)
    assert len({float(x) for x in [*seen, *aux.metrics["noise"]]}) == 9


class TestBatchNorm:
    """Field case B26 and its kind."""

    model = stateless(nn.BatchNorm1d(1))
    support = torch.tensor([[[1.0], [3.0]], [[5.0], [9.0]]])
    query = torch.tensor([[[2.0], [4.0]], [[6.0], [0.0]]])
    target = torch.zeros(2, 2, 1)

    def batch(self, order=(0, 1)):
        pick = list(order)
        return (self.support[pick], self.target), (self.query[pick], self.target)

    def grad_fn(self, build=maml, train=True, **options):
        loss_fn = supervised(self.model, nn.functional.mse_loss, train=train)
        return build(loss_fn, optim.sgd(0.1), 1, **options)

    @pytest.mark.parametrize("build", [maml, fomaml, reptile])
    def test_b26_each_task_starts_from_the_same_buffers(self, build):
        params, buffers = self.model.init()
        grad_fn = self.grad_fn(build)
        estimate = assert_pure(grad_fn, params, buffers, self.batch(), KEY)
        assert_trees_equal(estimate.buffers, buffers)
        swapped = grad_fn(params, buffers, self.batch((1, 0)), KEY)
        assert_trees_close(swapped.grads, estimate.grads)
        assert_trees_equal(grad_fn(params, buffers, self.batch(), KEY), estimate)
        keys = random.split(KEY, 2)
        looped = [
            grad_fn.adapt(params, buffers, (self.support[i], self.target[i]), keys[i])
            for i in (0, 1)
        ]
        together = torch.func.vmap(grad_fn.adapt, (None, 0, 0, 0))(
            params, tree.stack([buffers] * 2), (self.support, self.target), keys
        )
        assert_trees_close(together, tree.stack(looped))
        for adapted, mean, var in zip(looped, (0.2, 0.7), (1.1, 1.7), strict=True):
            assert adapted.buffers["running_mean"].item() == pytest.approx(mean)
            assert adapted.buffers["running_var"].item() == pytest.approx(var)
            assert adapted.buffers["num_batches_tracked"] == 1

    def test_b26_evaluation_leaves_no_trace(self):
        params, buffers = self.model.init()
        loss_fn = self.grad_fn().loss_fn
        first = assert_pure(loss_fn, params, buffers, self.batch(), KEY)
        assert_trees_equal(loss_fn(params, buffers, self.batch(), KEY), first)
        assert_trees_equal(first[1].buffers, buffers)

    def test_frozen(self):
        params, buffers = self.model.init()
        estimate = self.grad_fn(train=False, statistics="frozen")(
            params, buffers, self.batch(), KEY
        )
        assert_trees_equal(estimate.buffers, buffers)
        grad_fn = self.grad_fn(statistics="frozen")
        with pytest.raises(UnsupportedError, match="running statistics"):
            grad_fn(params, buffers, self.batch(), KEY)
        with pytest.raises(UnsupportedError, match="writes running_mean"):
            grad_fn.adapt(params, buffers, (self.support[0], self.target[0]), KEY)

    def test_frozen_remat(self):
        params, buffers = self.model.init()
        plain, again = (
            self.grad_fn(train=False, statistics="frozen", remat=remat)(
                params, buffers, self.batch(), KEY
            )
            for remat in (False, True)
        )
        assert_trees_close(again, plain)

    def test_query_in_evaluation_mode_reads_the_tasks_own_statistics(self):
        params, buffers = self.model.init()
        query = supervised(self.model, nn.functional.mse_loss, train=False)
        grad_fn = self.grad_fn(query_loss_fn=query)
        losses, _ = grad_fn.loss_fn(params, buffers, self.batch(), KEY)
        for i in (0, 1):
            adapted = grad_fn.adapt(
                params, buffers, (self.support[i], self.target[i]), random.split(KEY, 2)[i]
            )
            want = query(adapted.params, adapted.buffers, (self.query[i], self.target[i]), KEY)[0]
            torch.testing.assert_close(losses[i], want.mean())

    def test_per_step(self):
        params, one = self.model.init()
        buffers = per_step_buffers(one, 1)
        weight = torch.tensor([1.0, 3.0])
        for remat in (False, True):
            grad_fn = self.grad_fn(statistics="per_step", remat=remat)
            estimate = grad_fn(params, buffers, (*self.batch(), weight), KEY)
            mean = estimate.buffers["running_mean"].flatten()
            # Support means 2 and 7, query means 3 and 3; momentum 0.1; tasks weigh 1 and 3.
            torch.testing.assert_close(mean, torch.tensor([(0.2 + 3 * 0.7) / 4, 0.3]))
            assert estimate.buffers["num_batches_tracked"].tolist() == [1, 1]
        assert_jit_equal(grad_fn, params, buffers, self.batch(), KEY)
        assert_trees_close(
            self.grad_fn(statistics="per_step", chunk=1)(
                params, buffers, (*self.batch(), weight), KEY
            ),
            estimate,
        )
        with pytest.raises(ShapeError, match="per_step_buffers"):
            grad_fn(params, one, self.batch(), KEY)


def test_b24_meta_steps_do_not_chain_graphs():
    params = {k: nn.Parameter(p) for k, p in naive.start().items()}
    batch, tx = naive.task_batch(2), optim.adam(1e-3)
    grad_fn, opt_state, counts = maml(naive.loss_fn, optim.sgd(0.1), 2), tx.init(params), []
    for i in range(1, 31):
        estimate = grad_fn(params, {}, batch, KEY)
        updates, opt_state = tx.update(
            tree.map(torch.Tensor.detach, estimate.grads), opt_state, params
        )
        params = tree.map(torch.Tensor.detach, optim.apply_updates(params, updates))
        assert all(x.grad_fn is None for x in tree.leaves(estimate))
        if i in (5, 30):
            gc.collect()
            counts.append(sum(issubclass(type(o), torch.Tensor) for o in gc.get_objects()))
    assert counts[1] <= counts[0]


def test_composes_with_grad_and_vmap():
    params, batch = naive.start(), naive.task_batch(2)
    grad_fn = maml(naive.loss_fn, optim.sgd(0.1), 2)
    assert_trees_close(
        torch.func.grad(lambda p: grad_fn(p, {}, batch, KEY).loss)(params),
        grad_fn(params, {}, batch, KEY).grads,
        1e-10,
    )
    members = [(params, random.key(0)), (naive.start(1), random.key(1))]
    assert_vmap_equal(lambda p, key: grad_fn(p, {}, batch, key), *members, rtol=1e-10)


@pytest.mark.parametrize("order", [1, 2])
def test_adam_in_the_inner_loop_gives_no_nan_where_gradients_vanish(order):
    params = naive.start() | {"idle": torch.ones(2, dtype=F64)}
    params["body.bias"] = params["body.bias"] - 1e6  # every unit saturated: zero gradients
    grads = maml(naive.loss_fn, optim.adam(0.1), 3, order=order)(
        params, {}, naive.task_batch(2), KEY
    ).grads
    assert all(g.isfinite().all() for g in grads.values())
    assert not grads["idle"].any()


def test_a_whole_training_step_can_be_unrolled_and_differentiated():
    from funcloop.estimators import value_and_grad
    from funcloop.step import TrainState, train_step

    tx = optim.adam(0.1, eps=1e-3)
    step = train_step(value_and_grad(naive.loss_fn), tx)
    (xs, ys), _ = naive.task_batch(1)
    state = TrainState.create(naive.start(), {}, tx, key=KEY)
    want = state
    for _ in range(4):
        want, _ = step(want, (xs[0], ys[0]))
    for remat in (False, True):
        got, metrics = unroll(step, 4, remat=remat)(state, (xs[0], ys[0]))
        assert_trees_close(got, want)
        assert metrics["loss"].shape == (4,)

    def last(x, remat):
        return unroll(step, 4, remat=remat)(state, (x, ys[0]))[1]["loss"][-1]

    got, want = (torch.func.grad(last)(xs[0], remat) for remat in (True, False))
    assert_trees_close(got, want, 1e-10)


def test_dtypes_are_kept():
    params = tree.cast(naive.start(), torch.float32)
    params["body.bias"] = params["body.bias"].to(torch.bfloat16)
    batch = tree.cast(naive.task_batch(2), torch.float32)

    def loss_fn(params, buffers, batch, key):
        return naive.loss_fn(tree.cast(params, torch.float32), buffers, batch, key)

    for build in (maml, fomaml, reptile):
        grads = build(loss_fn, optim.sgd(0.1), 2)(params, {}, batch, KEY).grads
        assert {k: g.dtype for k, g in grads.items()} == {k: p.dtype for k, p in params.items()}


def test_no_steps_is_the_plain_gradient():
    params, batch = naive.start(), naive.task_batch(2)
    want, _ = naive.meta_gradient(params, batch, naive.sgd, 0)
    assert_trees_close(maml(naive.loss_fn, optim.sgd(0.1), 0)(params, {}, batch, KEY).grads, want)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"steps": -1}, "steps=-1"),
        ({"order": 3}, "order=3"),
        ({"chunk": 0}, "chunk=0"),
        ({"statistics": "leaky"}, "'leaky'"),
    ],
)
def test_arguments_out_of_range_are_refused(options, message):
    with pytest.raises(ArgumentError, match=message):
        maml(naive.loss_fn, optim.sgd(0.1), **({"steps": 1} | options))


def test_batches_and_params_of_another_form_are_refused():
    params, batch = naive.start(), naive.task_batch(2)
    grad_fn = maml(naive.loss_fn, optim.sgd(0.1), 1)
    with pytest.raises(StructureError, match="a Tensor"):
        grad_fn(params, {}, batch[0][0], KEY)
    with pytest.raises(StructureError, match="leading task dimension"):
        grad_fn(params, {}, (batch[0], tree.map(lambda x: x[:1], batch[1])), KEY)
    with pytest.raises(StructureError, match="MetaParams"):
        maml(naive.loss_fn, optim.sgd, 1)(params, {}, batch, KEY)
    with pytest.raises(StructureError, match="MetaParams"):
        grad_fn(MetaParams(params, torch.tensor(0.1)), {}, batch, KEY)
