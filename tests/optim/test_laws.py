"""One table: every optimizer, every dtype, every way to run, every kind of tree."""

import pytest
import torch

from funcloop import optim, random, schedules, tree
from tests.laws import (
    assert_deterministic,
    assert_dtype_preserved,
    assert_jit_equal,
    assert_pure,
    assert_trees_close,
    assert_trees_equal,
    assert_vmap_equal,
)
from tests.optim.trajectories import gradients, run, start

#: A builder of each optimizer, from its learning rate, and a learning rate that converges.
OPTIMIZERS = {
    "sgd": (optim.sgd, 0.05),
    "sgd_momentum": (
        lambda lr: optim.sgd(lr, momentum=0.9, dampening=0.1, weight_decay=1e-4),
        0.01,
    ),
    "sgd_nesterov": (lambda lr: optim.sgd(lr, momentum=0.9, nesterov=True), 0.01),
    "adam": (optim.adam, 0.1),
    "amsgrad": (lambda lr: optim.adam(lr, amsgrad=True), 0.1),
    "adamw": (lambda lr: optim.adamw(lr, weight_decay=1e-4), 0.1),
    "nadam": (optim.nadam, 0.1),
    "radam": (optim.radam, 0.05),
    "adamax": (optim.adamax, 0.1),
    "rmsprop": (lambda lr: optim.rmsprop(lr, momentum=0.5), 0.01),
    "rmsprop_centered": (lambda lr: optim.rmsprop(lr, centered=True), 0.01),
    "adagrad": (optim.adagrad, 0.5),
    "adadelta": (lambda lr: optim.adadelta(lr, eps=1e-3), 1.0),
    "adafactor": (optim.adafactor, 0.05),
    "asgd": (optim.asgd, 0.05),
    "rprop": (optim.rprop, 0.01),
    "muon": (lambda lr: optim.muon(lr, weight_decay=0.0), 0.05),
    "lion": (lambda lr: optim.lion(lr, weight_decay=0.0), 0.01),
    "lamb": (optim.lamb, 0.02),
    "lars": (lambda lr: optim.lars(lr, trust_coefficient=1.0, momentum=0.5), 0.02),
    "adan": (optim.adan, 0.05),
    "prodigy": (optim.prodigy, 1.0),
    "schedule_free_sgd": (optim.schedule_free_sgd, 0.1),
    "schedule_free_adamw": (optim.schedule_free_adamw, 0.1),
}
#: Transforms and combinators around an optimizer, which the same laws hold for.
WRAPPED = {
    "clip_by_global_norm": lambda tx: optim.chain(optim.clip_by_global_norm(0.5), tx),
    "clip_by_value": lambda tx: optim.chain(optim.clip_by_value(0.1), tx),
    "clip_by_block_rms": lambda tx: optim.chain(optim.clip_by_block_rms(0.1), tx),
    "adaptive_grad_clip": lambda tx: optim.chain(optim.adaptive_grad_clip(0.1), tx),
    "centralize": lambda tx: optim.chain(optim.centralize(), tx),
    "normalize": lambda tx: optim.chain(optim.normalize(), tx),
    "zero_nans": lambda tx: optim.chain(optim.zero_nans(), tx),
    "add_noise": lambda tx: optim.chain(optim.add_noise(random.key(3), 0.1), tx),
    "scale_by_schedule": lambda tx: optim.chain(
        tx, optim.scale_by_schedule(schedules.linear(1.0, 0.1, 5))
    ),
    "ema": lambda tx: optim.chain(optim.ema(0.9), tx),
    "masked": lambda tx: optim.masked(tx, "w"),
    "named_chain": lambda tx: optim.named_chain(("a", optim.scale(2.0)), ("b", tx)),
    "partition": lambda tx: optim.partition(
        {"a": tx, "b": optim.sgd(0.1), "c": optim.freeze()}, {"w": "a", "b": "b", "*": "c"}
    ),
    "inject_hyperparams": lambda tx: optim.chain(
        tx, optim.inject_hyperparams(optim.adamw)(schedules.linear(0.1, 0.0, 4), (0.8, 0.9))
    ),
    "accumulate": lambda tx: optim.accumulate(tx, every=2),
    "lookahead": lambda tx: optim.lookahead(tx, sync_period=2),
    "polyak_average": lambda tx: optim.polyak_average(tx, decay=0.9),
    "apply_if": lambda tx: optim.apply_if(tx, lambda step, *_, **extra: step % 2 == 0),
    "apply_if_finite": optim.apply_if_finite,
    "master_weights": optim.master_weights,
    "monitor": optim.monitor,
    "keep_non_negative": lambda tx: optim.chain(tx, optim.keep_non_negative()),
    "keep_in_ball": lambda tx: optim.chain(tx, optim.keep_in_ball()),
    "keep_on_simplex": lambda tx: optim.chain(tx, optim.keep_on_simplex()),
    "reduce_on_plateau": lambda tx: optim.chain(tx, optim.reduce_on_plateau(0.5, patience=0)),
}
TABLE = {name: make(lr) for name, (make, lr) in OPTIMIZERS.items()} | {
    name: wrap(optim.adam(0.1)) for name, wrap in WRAPPED.items()
}
DTYPES = [torch.float64, torch.float32, torch.bfloat16]
VALUE = torch.tensor(1.0)


def tree_for(name, dtype=torch.float64, device="cpu"):
    params = start(dtype, device)
    return {"w": params["w"]} if name == "muon" else params


def two_steps(tx):
    """`(params, grads, grads) -> (params, state)`."""

    def steps(params, *grads):
        state = tx.init(params)
        for g in grads:
            updates, state = tx.update(g, state, params, value=VALUE)
            params = optim.apply_updates(params, updates)
        return params, state

    return steps


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", TABLE)
def test_pure_deterministic_and_of_the_params_dtype(name, dtype, device):
    params = tree_for(name, dtype, device)
    grads = gradients(params, 2)
    steps = two_steps(TABLE[name])
    assert_pure(steps, params, *grads)
    assert_deterministic(steps, params, *grads)
    assert_dtype_preserved(lambda p: steps(p, *grads)[0], params)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", TABLE)
def test_the_state_keeps_its_structure_dtypes_and_shapes(name, dtype, device):
    """So that the second step of a jitted run does not re-trace."""
    params, tx = tree_for(name, dtype, device), TABLE[name]
    (grads,) = gradients(params, 1)
    assert_dtype_preserved(lambda s: tx.update(grads, s, params, value=VALUE)[1], tx.init(params))


@pytest.mark.parametrize("name", TABLE)
def test_no_two_leaves_share_memory(name, device):
    """So that a step may write all of them in place."""
    params, tx = tree_for(name, torch.float32, device), TABLE[name]
    (grads,) = gradients(params, 1)
    state = tx.init(params)
    updates, new_state = tx.update(grads, state, params, value=VALUE)
    new_params = optim.apply_updates(params, updates)
    for leaves in (tree.leaves((params, state)), tree.leaves((new_params, new_state))):
        places = [leaf.data_ptr() for leaf in leaves if leaf.numel()]
        assert len(set(places)) == len(places)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", TABLE)
def test_traced_as_eager(name, dtype, device):
    params, tx = tree_for(name, dtype, device), TABLE[name]
    (grads,) = gradients(params, 1)

    def step(params, state, grads):
        updates, state = tx.update(grads, state, params, value=VALUE)
        return optim.apply_updates(params, updates), state

    assert_jit_equal(step, params, tx.init(params), grads, backend="eager")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", TABLE)
def test_vmapped_as_looped(name, dtype, device):
    members = []
    for seed in range(2):
        params = {k: v + seed for k, v in tree_for(name, dtype, device).items()}
        members.append((params, *gradients(params, 2, seed)))
    # Products of bfloat16 matrices are added up in another order when they are batched.
    assert_vmap_equal(two_steps(TABLE[name]), *members, rtol=2e-2 if name == "muon" else None)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_per_member_learning_rates(name):
    make, lr = OPTIMIZERS[name]
    params = tree_for(name)
    grads = gradients(params, 2)

    def member(lr):
        return run(make(lr), params, grads)

    rates = torch.tensor([lr, lr / 2], dtype=torch.float64)
    got = torch.func.vmap(member)(rates)
    want = tree.stack([member(float(rate)) for rate in rates])
    assert_trees_close(got, want, rtol=2e-2 if name == "muon" else 1e-10)


#: Builders whose every number may be a tensor, and numbers that are not zero.
NUMBERS = {
    "sgd": (optim.sgd, {"momentum": 0.9, "dampening": 0.2, "weight_decay": 0.1}),
    "adam": (optim.adam, {"weight_decay": 0.1}),
    "amsgrad": (optim.adam, {"weight_decay": 0.1, "amsgrad": True}),
    "adamw": (optim.adamw, {}),
    "nadam": (optim.nadam, {"weight_decay": 0.1}),
    "radam": (optim.radam, {"weight_decay": 0.1, "betas": (0.9, 0.7)}),
    "adamax": (optim.adamax, {"weight_decay": 0.1}),
    "rmsprop": (optim.rmsprop, {"weight_decay": 0.1, "momentum": 0.5, "centered": True}),
    "adagrad": (optim.adagrad, {"weight_decay": 0.1}),
    "adadelta": (optim.adadelta, {"weight_decay": 0.1}),
    "adafactor": (optim.adafactor, {"weight_decay": 0.1}),
    "asgd": (optim.asgd, {"weight_decay": 0.1, "t0": 1.0}),
    "rprop": (optim.rprop, {}),
    "lion": (optim.lion, {}),
    "lamb": (optim.lamb, {"weight_decay": 0.1}),
    "lars": (optim.lars, {"weight_decay": 0.1}),
    "adan": (optim.adan, {"weight_decay": 0.1}),
    "prodigy": (optim.prodigy, {"weight_decay": 0.1}),
    "schedule_free_sgd": (optim.schedule_free_sgd, {"weight_decay": 0.1}),
    "schedule_free_adamw": (optim.schedule_free_adamw, {"weight_decay": 0.1}),
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_as_tensors_give_what_floats_give(name, dtype):
    make, options = NUMBERS[name]
    params = start(dtype)
    grads = gradients(params, 4)
    tensors = run(optim.inject_hyperparams(make)(lr=0.1, **options), params, grads)
    # A last digit of a power, divided by a small 1 - beta ** t.
    rounding = 1e-10 if dtype is torch.float64 else None
    assert_trees_close(tensors, run(make(0.1, **options), params, grads), rounding)


@pytest.mark.parametrize("name", TABLE)
def test_an_empty_tree(name):
    tx = TABLE[name]
    updates, state = tx.update({}, tx.init({}), {}, value=VALUE)
    assert updates == {}
    tx.update({}, state, {}, value=VALUE)


@pytest.mark.parametrize("name", TABLE)
def test_a_leaf_without_gradient_is_carried_bit_equal(name):
    """Decay included; what the others do does not depend on it."""
    params = tree_for(name)
    params["frozen"] = torch.full_like(params["w"], -0.0)
    tx = TABLE[name]
    alone = {k: v for k, v in params.items() if k != "frozen"}
    grads = gradients(alone, 2)
    with_none = [{**g, "frozen": None} for g in grads]
    got = run(tx, params, with_none, value=VALUE)
    assert torch.equal(got["frozen"].view(torch.int64), params["frozen"].view(torch.int64))
    assert_trees_equal({k: got[k] for k in alone}, run(tx, alone, grads, value=VALUE))


@pytest.mark.parametrize("name", TABLE)
def test_trees_with_none_in_the_same_places(name):
    params = tree_for(name)
    grads = gradients(params, 2)
    got = run(
        TABLE[name], {**params, "none": None}, [{**g, "none": None} for g in grads], value=VALUE
    )
    assert got.pop("none") is None
    assert_trees_equal(got, run(TABLE[name], params, grads, value=VALUE))


@pytest.mark.parametrize("name", TABLE)
def test_b08_another_order_of_keys_is_the_same_run(name):
    params = tree_for(name)
    grads = gradients(params, 2)
    turned = [dict(reversed(g.items())) for g in grads]
    assert_trees_equal(
        run(TABLE[name], params, turned, value=VALUE), run(TABLE[name], params, grads, value=VALUE)
    )


@pytest.mark.parametrize("name", TABLE)
def test_meta_gradients_are_right_and_finite_at_zero(name):
    """The derivative of two updates by the first gradient: finite where the gradient is zero."""
    params = tree_for(name)
    first, second = gradients(params, 2)
    zero = tree.zeros_like(first)

    def loss(grads):
        end = run(TABLE[name], params, [grads, second], value=VALUE)
        return sum((leaf**2).sum() for leaf in end.values())

    for point in (first, zero):
        for leaf in torch.func.grad(loss)(point).values():
            assert leaf.isfinite().all()


LOW = [torch.bfloat16, torch.float16]
#: Their steps are rounded on the way, by design: Muon's Newton-Schulz runs in bfloat16.
NOT_FLOAT32 = ("muon",)


@pytest.mark.parametrize("dtype", LOW, ids=str)
@pytest.mark.parametrize("size", [0.0, 1e-4, 1.0, 1e4])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_b10_low_precision_is_the_float32_result_rounded(name, size, dtype):
    make, lr = OPTIMIZERS[name]
    params = tree_for(name, dtype)
    grads = [tree.map(lambda g: g * size, g) for g in gradients(params, 1)]
    got = run(make(lr), params, grads)
    wide = [{k: v.float() for k, v in t.items()} for t in (params, *grads)]
    want = run(make(lr), wide[0], wide[1:])
    assert all(leaf.isfinite().all() for leaf in got.values())
    assert_trees_equal(got, {k: v.to(dtype) for k, v in want.items()})


def rosenbrock(p):
    x, y = p["w"].flatten()[0::2], p["w"].flatten()[1::2]
    return ((1 - x) ** 2 + 10 * (y - x**2) ** 2).sum()


def quadratic(p):
    return ((p["w"] - 0.5) ** 2).sum()


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("loss", [quadratic, rosenbrock], ids=lambda f: f.__name__)
def test_converges(name, loss):
    make, lr = OPTIMIZERS[name]
    steps = 100
    steep = loss is rosenbrock and ("sgd" in name)
    rate = lr * (0.1 if steep else 1.0)
    if name not in ("rprop", "prodigy", "adagrad", "schedule_free_sgd", "schedule_free_adamw"):
        rate = schedules.linear(2 * rate, 0.0, steps)
    tx = make(rate)
    params = {"w": torch.tensor([[-0.5, 0.5], [0.3, -0.2]], dtype=torch.float64)}
    state, begin, gradient = tx.init(params), loss(params), torch.func.grad(loss)
    for _ in range(steps):
        updates, state = tx.update(gradient(params), state, params)
        params = optim.apply_updates(params, updates)
    if "schedule_free" in name:
        params = optim.schedule_free_eval_params(state, params)
    assert loss(params) < begin * (0.5 if loss is rosenbrock else 0.05)
