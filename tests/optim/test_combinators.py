"""What each combinator and small transform promises beside the laws of test_laws.py."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from funcloop import optim, random, schedules, tree
from funcloop._errors import ArgumentError, ShapeError, StructureError, UnsupportedError
from tests.laws import assert_trees_close, assert_trees_equal
from tests.optim.trajectories import gradients, run, run_torch, start

NAN = float("nan")


# ---------------------------------------------------------------------- partition, masked, labels


def test_partition_is_the_parts_run_alone():
    params = start()
    grads = gradients(params, 4)
    tx = optim.partition(
        {"a": optim.adam(0.1), "s": optim.sgd(0.3, momentum=0.9)}, {"w": "a", "*": "s"}
    )
    got = run(tx, params, grads)
    a = run(optim.adam(0.1), {"w": params["w"]}, [{"w": g["w"]} for g in grads])
    rest = [{k: g[k] for k in ("b", "s")} for g in grads]
    s = run(optim.sgd(0.3, momentum=0.9), {k: params[k] for k in ("b", "s")}, rest)
    assert_trees_equal(got, {**a, **s})


@pytest.mark.parametrize(
    "labels",
    [
        {"net": {"conv.weight": "x", "conv.bias": "y"}, "head": ["x", "x"]},
        {"net": {"conv.weight": "x", "conv.bias": "y"}, "head": "x"},
        {"net/conv.bias": "y", "*": "x"},
        lambda params: tree.map_with_path(lambda path, _: "y" if "bias" in path else "x", params),
        lambda params: {"*.bias": "y", "*": "x"},
    ],
    ids=["tree", "prefix", "patterns", "function", "function of patterns"],
)
def test_every_way_to_write_labels(labels):
    params = {
        "net": {"conv.weight": torch.ones(2), "conv.bias": torch.ones(1)},
        "head": [torch.ones(1), torch.ones(())],
    }
    tx = optim.partition({"x": optim.scale(2.0), "y": optim.freeze()}, labels)
    updates, _ = tx.update(params, tx.init(params), params)
    want = {
        "net": {"conv.weight": torch.full((2,), 2.0), "conv.bias": None},
        "head": [torch.full((1,), 2.0), torch.tensor(2.0)],
    }
    assert_trees_equal(updates, want)


def test_labels_without_transform_and_leaves_without_label_are_named():
    params = {"w": torch.ones(1), "b": torch.ones(1)}
    with pytest.raises(StructureError, match="w has the label 'x'"):
        optim.partition({"y": optim.sgd()}, {"w": "x", "b": "y"}).init(params)
    with pytest.raises(StructureError, match=r"b matches none of \['w\*'\]"):
        optim.partition({"y": optim.sgd()}, {"w*": "y"}).init(params)


@pytest.mark.parametrize(
    "mask",
    [
        "w",
        ["w", "x*"],
        {"w": True, "b": False, "s": False},
        lambda p: tree.map(lambda x: x.ndim > 1, p),
    ],
    ids=["pattern", "patterns", "tree", "function"],
)
def test_every_way_to_write_a_mask(mask):
    params = start()
    zeros = tree.zeros_like(params)
    tx = optim.adamw(1.0, weight_decay=0.5, mask=mask)
    updates, _ = tx.update(zeros, tx.init(params), params)
    want = {"w": -0.5 * params["w"], "b": zeros["b"], "s": zeros["s"]}
    assert_trees_close(tree.add(zeros, updates), want)


def test_global_norm_inside_a_part_is_that_parts():
    params = {"a": torch.tensor([3.0, 4.0]), "b": torch.tensor(100.0)}
    tx = optim.partition(
        {"a": optim.clip_by_global_norm(1.0), "b": optim.scale(1.0)}, {"a": "a", "b": "b"}
    )
    updates, _ = tx.update(params, tx.init(params), params)
    torch.testing.assert_close(updates["a"], torch.tensor([0.6, 0.8]))


def test_freeze_carries_leaves_bit_equal_under_decay():
    params = {"w": torch.tensor([-0.0, 1.0])}
    tx = optim.chain(optim.freeze(), optim.add_decayed_weights(0.1), optim.sgd(1.0))
    got = run(tx, params, [{"w": torch.ones(2)}])
    assert got["w"] is params["w"]


# -------------------------------------------------------------------------------- extra, accumulate


def test_extra_reaches_inner_transforms_of_every_combinator():
    seen = []

    def update(updates, state, params, *, value):
        seen.append(value)
        return updates, state

    asking = optim.with_extra(type(optim.scale(1.0))(lambda p: (), update))
    wraps = [
        optim.chain,
        lambda tx: optim.named_chain(("a", tx)),
        lambda tx: optim.masked(tx, "*"),
        lambda tx: optim.partition({"a": tx}, {"*": "a"}),
        lambda tx: optim.accumulate(tx, every=1),
        optim.lookahead,
        optim.polyak_average,
        optim.apply_if_finite,
        optim.master_weights,
        optim.monitor,
        lambda tx: optim.schedule_free(tx, 0.1),
        lambda tx: optim.inject_hyperparams(lambda lr: tx)(0.1),
    ]
    params = start()
    for wrap in wraps:
        tx = wrap(asking)
        tx.update(params, tx.init(params), params, value=torch.tensor(3.0))
    assert [float(v) for v in seen] == [3.0] * len(wraps)


@settings(max_examples=25)
@given(st.lists(st.integers(0, 5), min_size=3, max_size=3), st.integers(0, 100))
def test_accumulate_is_the_exact_weighted_mean(weights, seed):
    params = start()
    grads = gradients(params, 3, seed)
    tx = optim.accumulate(optim.sgd(1.0), every=3)
    state, got = tx.init(params), params
    for g, w in zip(grads, weights, strict=True):
        if w == 0:
            g = tree.map(lambda x: torch.full_like(x, NAN), g)
        updates, state = tx.update(g, state, got, weight=torch.tensor(float(w)))
        got = optim.apply_updates(got, updates)
    total = max(sum(weights), 1)
    mean = tree.map(lambda *g: sum(w * x for w, x in zip(weights, g, strict=True)) / total, *grads)
    assert_trees_close(got, tree.sub(params, mean))
    assert state.step.item() == 0
    assert all(not leaf.any() for leaf in tree.leaves(state.grads))


def test_an_empty_window_is_no_update():
    params = start()
    tx = optim.accumulate(optim.adamw(0.1), every=1)
    begin = tx.init(params)
    updates, state = tx.update(params, begin, params, weight=torch.tensor(0.0))
    assert_trees_equal(optim.apply_updates(params, updates), params)
    assert_trees_equal(state.inner, begin.inner)


def test_accumulated_values_are_the_windows_mean():
    plateau = optim.reduce_on_plateau(0.5, patience=0)
    tx, params = optim.accumulate(plateau, every=2), {"w": torch.tensor(0.0)}
    state = tx.init(params)
    for value, weight in ((1.0, 3.0), (5.0, 1.0)):
        extra = {"value": torch.tensor(value), "weight": torch.tensor(weight)}
        _, state = tx.update(params, state, params, **extra)
    assert state.inner.best.item() == 2.0


def test_b12_long_sums_of_bf16_gradients():
    params = {"p": torch.zeros((), dtype=torch.bfloat16)}
    tx = optim.accumulate(optim.sgd(1.0), every=257)
    state = tx.init(params)
    for size in [256.0] + [1.0] * 256:
        grads = {"p": torch.tensor(size, dtype=torch.bfloat16)}
        updates, state = tx.update(grads, state, params)
    assert updates["p"].item() == pytest.approx(-512 / 257, rel=1e-6)


def test_b12_master_weights_move_where_bf16_does_not():
    params = {"p": torch.ones((), dtype=torch.bfloat16), "q": torch.ones(())}
    grads = [{"p": torch.ones(()), "q": torch.ones(())}] * 10
    plain = run(optim.sgd(1e-3), params, grads)
    assert plain["p"].item() == 1.0
    tx = optim.master_weights(optim.sgd(1e-3))
    state, got = tx.init(params), params
    for g in grads:
        updates, state = tx.update(g, state, got)
        got = optim.apply_updates(got, updates)
    assert got["p"].dtype is torch.bfloat16
    assert got["p"].item() == 0.98828125
    assert set(state.master) == {"p"}
    assert state.master["p"].item() == pytest.approx(0.99)
    assert torch.equal(got["q"], plain["q"])


# ------------------------------------------------------------------------------------- conditions


@pytest.mark.parametrize("bad", [NAN, float("inf")])
def test_b15_a_step_that_is_not_finite_is_skipped_altogether(bad):
    params = start()
    grads = gradients(params, 3)
    spoiled = {**grads[1], "b": grads[1]["b"] * bad}
    tx = optim.apply_if_finite(optim.chain(optim.clip_by_global_norm(1.0), optim.adamw(0.1)))
    state, got = tx.init(params), params
    for g in (grads[0], spoiled, grads[2]):
        updates, state = tx.update(g, state, got)
        got = optim.apply_updates(got, updates)
    assert_trees_equal(got, run(tx, params, [grads[0], grads[2]]))
    assert state.skipped.item() == 1
    assert state.inner[1][0][0].step.item() == 2


def test_a_skipped_step_leaves_every_bit():
    params = {"w": torch.tensor([-0.0, 0.0, 1.0])}
    for tx in (
        optim.apply_if(optim.sgd(0.1), lambda *_, **extra: torch.tensor(False)),
        optim.accumulate(optim.sgd(0.1), every=2),
    ):
        got = run(tx, params, [{"w": torch.ones(3)}])
        assert torch.equal(got["w"].view(torch.int32), params["w"].view(torch.int32))


def test_a_meta_gradient_through_a_skipped_step_is_finite():
    params = {"p": torch.tensor(1.0)}
    tx = optim.apply_if_finite(optim.adam(0.1))

    def after(g):
        return run(tx, params, [{"p": g}, {"p": g + float("inf")}])["p"]

    assert torch.func.grad(after)(torch.tensor(2.0)).isfinite()


def test_b15_adaptive_and_block_clipping_are_safe_at_zero_and_for_huge_values():
    zero, huge = torch.zeros(3, 2), torch.full((3, 2), 1e18)
    for tx in (
        optim.adaptive_grad_clip(0.1),
        optim.clip_by_block_rms(1.0),
        optim.clip_by_value(1.0),
    ):

        def clip(g, tx=tx):
            return tx.update(g, tx.init(zero), torch.ones(3, 2))[0]

        jacobian = torch.func.jacrev(clip)(zero).reshape(6, 6)
        torch.testing.assert_close(jacobian, torch.eye(6))
        assert clip(huge).isfinite().all()
        assert clip(huge).min() > 0


# -------------------------------------------------------------------------------------- averages


def test_polyak_average_with_a_schedule_is_the_plain_mean():
    params = start()
    grads = gradients(params, 5)
    tx = optim.polyak_average(optim.sgd(0.1), decay=lambda n: n.double() / (n + 1))
    state, got, seen = tx.init(params), params, []
    for g in grads:
        updates, state = tx.update(g, state, got)
        got = optim.apply_updates(got, updates)
        seen.append(got)
    mean = tree.map(lambda *x: sum(x) / len(x), *seen)
    assert_trees_close(optim.averaged_params(state, params), mean)


def test_asgd_average_equals_torchs():
    params = start()
    grads = gradients(params, 6)
    leaves = {k: torch.nn.Parameter(p.clone()) for k, p in params.items()}
    optimizer = torch.optim.ASGD(list(leaves.values()), lr=0.1, t0=2)
    tx = optim.asgd(0.1, t0=2)
    state, got = tx.init(params), params
    for g in grads:
        for k, p in leaves.items():
            p.grad = g[k]
        optimizer.step()
        updates, state = tx.update(g, state, got)
        got = optim.apply_updates(got, updates)
    want = {k: optimizer.state[p]["ax"] for k, p in leaves.items()}
    assert_trees_close(optim.asgd_average(state, params), want, rtol=1e-7)  # torch's mu is float32


# --------------------------------------------------------------------------- hyperparameters, noise


def test_injected_numbers_are_tensors_that_can_be_edited():
    params = start()
    (grads,) = gradients(params, 1)
    tx = optim.inject_hyperparams(optim.adamw)(lr=0.1, weight_decay=0.0)
    state = tx.init(params)
    assert set(state.hyperparams) == {"lr", "betas", "eps", "weight_decay"}
    assert all(x.shape == () for x in tree.leaves(state.hyperparams))
    edited = state._replace(hyperparams={**state.hyperparams, "lr": torch.tensor(0.5).double()})
    got, new = tx.update(grads, edited, params)
    plain = optim.adamw(0.5, weight_decay=0.0)
    assert_trees_close(got, plain.update(grads, plain.init(params), params)[0])
    assert new.hyperparams["lr"].item() == 0.5


def test_injected_schedules_are_written_to_the_state():
    params = {"w": torch.tensor(0.0)}
    tx = optim.inject_hyperparams(optim.sgd)(schedules.linear(1.0, 0.0, 4))
    state = tx.init(params)
    for want in (1.0, 0.75, 0.5):
        _, state = tx.update(params, state, params)
        assert state.hyperparams["lr"].item() == want
        assert optim.learning_rate(state).item() == want


def test_a_hundred_learning_rates_are_one_trace():
    from funcloop.compile import jit

    params = start()
    (grads,) = gradients(params, 1)
    tx = optim.inject_hyperparams(optim.adamw)(lr=0.1)
    state = tx.init(params)

    def step(state, params):
        updates, state = tx.update(grads, state, params)
        return state, optim.apply_updates(params, updates)

    compiled = jit(step, backend="eager")
    for i in range(100):
        state.hyperparams["lr"] = torch.tensor(0.1 / (i + 1), dtype=torch.float64)
        state, params = compiled(state, params)
    assert compiled.traces == 1


def test_learning_rate_is_found_wherever_it_is():
    params = start()
    sgd = optim.sgd(schedules.linear(1.0, 0.0, 4))
    for tx in (
        sgd,
        optim.chain(optim.clip_by_global_norm(1.0), sgd),
        optim.masked(sgd, "w"),
        optim.accumulate(sgd, every=1),
    ):
        state = tx.init(params)
        for _ in range(2):
            _, state = tx.update(params, state, params)
        assert optim.learning_rate(state).item() == 0.75
    assert optim.learning_rate(optim.scale(1.0).init(params)) is None


def test_noise_depends_on_key_step_and_path_alone():
    tx = optim.add_noise(random.key(0), eta=1.0, gamma=0.0)
    zeros = {"a": torch.zeros(1000), "b": torch.zeros(1000)}
    first, state = tx.update(zeros, tx.init(zeros), zeros)
    second, _ = tx.update(zeros, state, zeros)
    alone, _ = tx.update({"b": zeros["b"]}, tx.init(zeros), zeros)
    assert torch.equal(alone["b"], first["b"])
    draws = torch.stack([first["a"], first["b"], second["a"], second["b"]])
    assert (torch.corrcoef(draws) - torch.eye(4)).abs().max() < 0.15
    assert draws.std().item() == pytest.approx(1.0, abs=0.05)


# ------------------------------------------------------------------------------------ small ones


def test_zero_nans_counts():
    grads = {"w": torch.tensor([NAN, 1.0, NAN]), "b": torch.tensor(float("inf"))}
    tx = optim.zero_nans()
    updates, state = tx.update(grads, tx.init(grads), grads)
    assert updates["w"].tolist() == [0.0, 1.0, 0.0]
    assert updates["b"].isinf()
    assert state.found.item() == 2


@settings(max_examples=25)
@given(st.integers(1, 6), st.integers(0, 1000))
def test_projections_reach_the_nearest_point(n, seed):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(2, n, generator=g, dtype=torch.float64)
    u = torch.randn(2, n, generator=g, dtype=torch.float64) * 3

    def lands(tx):
        return x + tx.update(u, (), x)[0]

    target, positive = x + u, lands(optim.keep_non_negative())
    assert torch.equal(positive, target.clamp_min(0.0))
    assert (lands(optim.keep_in_ball(0.7)).norm(dim=-1) <= 0.7 + 1e-12).all()
    simplex = lands(optim.keep_on_simplex())
    torch.testing.assert_close(simplex.sum(-1), torch.ones(2, dtype=torch.float64))
    assert (simplex > -1e-12).all()
    # A projection makes an angle of at least 90 degrees with every point of the set.
    vertices = torch.eye(n, dtype=torch.float64)
    angle = ((target - simplex)[:, None] * (vertices - simplex[:, None])).sum(-1)
    assert (angle < 1e-10).all()


def test_monitor_reports_norms_and_ratios():
    params = {"w": torch.tensor([3.0, 4.0]), "zero": torch.zeros(2)}
    grads = {"w": torch.tensor([6.0, 8.0]), "zero": torch.zeros(2)}
    tx = optim.monitor(optim.sgd(0.1))
    _, state = tx.update(grads, tx.init(params), params)
    assert state.grad_norm.item() == pytest.approx(10.0)
    assert state.update_norm.item() == pytest.approx(1.0)
    assert state.param_norm.item() == pytest.approx(5.0)
    assert {k: round(v.item(), 6) for k, v in state.ratios.items()} == {"w": 0.2, "zero": 0.0}


@pytest.mark.parametrize("mode", ["min", "max"])
@pytest.mark.parametrize("threshold_mode", ["rel", "abs"])
@pytest.mark.parametrize("cooldown", [0, 2])
@pytest.mark.parametrize("seed", range(3))
def test_plateau_equals_torch_over_a_run(mode, threshold_mode, cooldown, seed):
    options = {"mode": mode, "factor": 0.5, "patience": 2, "threshold": 0.05, "cooldown": cooldown}
    options["threshold_mode"] = threshold_mode
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(()))], lr=1.0)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, min_lr=0.01, **options)
    tx, params = optim.reduce_on_plateau(min_scale=0.01, **options), {"w": torch.tensor(0.0)}
    state = tx.init(params)
    values = 1 + torch.rand(60, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    for value in values:
        optimizer.step()
        scheduler.step(value.item())
        _, state = tx.update(params, state, params, value=value)
        assert state.scale.item() == optimizer.param_groups[0]["lr"]


def test_plateau_averages_over_windows_and_asks_for_a_value():
    tx, params = optim.reduce_on_plateau(0.5, patience=0, every=2), {"w": torch.tensor(0.0)}
    state = tx.init(params)
    for value, scale in ((1.0, 1.0), (3.0, 1.0), (0.5, 1.0), (3.7, 0.5)):
        _, state = tx.update(params, state, params, value=torch.tensor(value))
        assert state.scale.item() == scale
    with pytest.raises(StructureError, match="update without value="):
        tx.update(params, state, params)


def test_muon_is_for_matrices():
    with pytest.raises(ShapeError, match=r"b has shape \(3,\).*optim.partition"):
        optim.muon().init({"w": torch.ones(2, 2), "b": torch.ones(3)})


def test_complex_params_are_refused_where_they_mean_nothing():
    params = {"z": torch.ones(2, 2, dtype=torch.complex64)}
    for tx in (optim.muon(), optim.adafactor(), optim.prodigy()):
        with pytest.raises(UnsupportedError, match=r"z is torch\.complex64"):
            tx.init(params)


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: optim.accumulate(optim.sgd(), every=0), "every"),
        (lambda: optim.lookahead(optim.sgd(), sync_period=0), "sync_period"),
        (lambda: optim.named_chain(("a", optim.sgd()), ("a", optim.sgd())), "different names"),
        (lambda: optim.reduce_on_plateau(mode="lowest"), "mode"),
        (lambda: optim.muon(adjust_lr_fn="none"), "adjust_lr_fn"),
        (lambda: optim.prodigy(betas=(0.9, -0.5)), r"betas\[1\]=-0.5"),
        (lambda: optim.schedule_free_adamw(betas=(0.9, 1.5)), r"betas\[1\]=1.5"),
        (lambda: optim.rprop(etas=(1.5, 0.5)), "etas"),
        (lambda: optim.schedule_free(optim.sgd(), 0.1, b1=0.0), "b1"),
        (lambda: optim.ema(1.0), "decay"),
        (lambda: optim.keep_in_ball(0.0), "max_norm"),
        (lambda: optim.clip_by_value(-1.0), "max_value"),
    ],
)
def test_what_makes_no_sense_is_refused(make, match):
    with pytest.raises(ArgumentError, match=match):
        make()


def test_low_precision_moments_are_float32_and_counts_int64():
    params = start(torch.bfloat16)
    state = optim.adam().init(params)[0]
    assert {leaf.dtype for leaf in tree.leaves((state.exp_avg, state.exp_avg_sq))} == {
        torch.float32
    }
    assert state.step.dtype is torch.int64


def test_betas_keep_their_value_on_bf16_params():
    params = start(torch.bfloat16)
    grads = gradients(params, 3)
    betas = (torch.tensor(0.9), torch.tensor(0.999, dtype=torch.float64))
    tensors = optim.adam(torch.tensor(0.1, dtype=torch.float64), betas=betas)
    assert_trees_close(run(tensors, params, grads), run(optim.adam(0.1), params, grads), rtol=1e-2)


def test_references_to_torch_are_to_the_same_clipping():
    params = start()
    (grads,) = gradients(params, 1)
    want = run_torch(_clipping(torch.optim.SGD), params, [grads])
    tx = optim.chain(optim.clip_by_global_norm(0.5, eps=1e-6), optim.sgd(0.1))
    assert_trees_close(run(tx, params, [grads]), want)


def _clipping(optimizer):
    class Clipping(optimizer):
        def step(self):
            torch.nn.utils.clip_grad_norm_(self.param_groups[0]["params"], 0.5)
            super().step()

    return lambda leaves: Clipping(leaves, lr=0.1)
