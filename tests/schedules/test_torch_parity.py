"""Full runs of torch.optim.lr_scheduler, and field case B11."""

import pytest
import torch
from torch.optim import lr_scheduler as torch_schedulers

from funcloop import optim, schedules
from funcloop._errors import ArgumentError
from tests.laws import assert_jit_equal
from tests.optim.trajectories import run

LR, STEPS = 0.7, 60


def torch_run(make, steps=STEPS):
    """The learning rate that each of `steps` updates uses."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(()))], lr=LR)
    scheduler, rates = make(optimizer), []
    for _ in range(steps):
        rates.append(float(optimizer.param_groups[0]["lr"]))
        optimizer.step()
        scheduler.step()
    return torch.tensor(rates, dtype=torch.float64)


TWINS = {
    "constant": (schedules.constant(LR), lambda o: torch_schedulers.LambdaLR(o, lambda _: 1.0)),
    "warm_constant": (
        schedules.piecewise(LR / 3, {5: 3.0}),
        lambda o: torch_schedulers.ConstantLR(o, 1 / 3, 5),
    ),
    "linear": (
        schedules.linear(LR * 0.25, LR * 0.9, 20),
        lambda o: torch_schedulers.LinearLR(o, 0.25, 0.9, 20),
    ),
    "polynomial": (
        schedules.polynomial(LR, 0.0, 1.7, 33),
        lambda o: torch_schedulers.PolynomialLR(o, 33, 1.7),
    ),
    "exponential": (
        schedules.exponential(LR, 0.9),
        lambda o: torch_schedulers.ExponentialLR(o, 0.9),
    ),
    "step": (schedules.step(LR, 7, 0.5), lambda o: torch_schedulers.StepLR(o, 7, 0.5)),
    "multistep": (
        schedules.multistep(LR, [3, 20, 20, 41], 0.3),
        lambda o: torch_schedulers.MultiStepLR(o, [3, 20, 20, 41], 0.3),
    ),
    "cosine": (
        schedules.cosine(LR, STEPS, 0.01),
        lambda o: torch_schedulers.CosineAnnealingLR(o, STEPS, 0.01),
    ),
    "cosine_restarts": (
        schedules.cosine_restarts(LR, 7, 1, 0.01),
        lambda o: torch_schedulers.CosineAnnealingWarmRestarts(o, 7, 1, 0.01),
    ),
    "cosine_restarts_longer": (
        schedules.cosine_restarts(LR, 3, 2, 0.01),
        lambda o: torch_schedulers.CosineAnnealingWarmRestarts(o, 3, 2, 0.01),
    ),
    **{
        f"onecycle_{shape}_{three}": (
            schedules.onecycle(2.0, STEPS, 0.23, shape, 10.0, 50.0, three),
            lambda o, shape=shape, three=three: torch_schedulers.OneCycleLR(
                o,
                2.0,
                STEPS + 1,
                pct_start=0.23,
                anneal_strategy=shape,
                div_factor=10.0,
                final_div_factor=50.0,
                three_phase=three,
                cycle_momentum=False,
            ),
        )
        for shape in ("cos", "linear")
        for three in (False, True)
    },
    "join": (
        schedules.join([schedules.linear(LR * 0.1, LR, 10), schedules.exponential(LR, 0.9)], [10]),
        lambda o: torch_schedulers.SequentialLR(
            o,
            [torch_schedulers.LinearLR(o, 0.1, 1.0, 10), torch_schedulers.ExponentialLR(o, 0.9)],
            [10],
        ),
    ),
    "wsd": (
        schedules.wsd(LR, 10, 20, 25, LR * 0.1, LR * 0.05),
        lambda o: torch_schedulers.SequentialLR(
            o,
            [
                torch_schedulers.LinearLR(o, 0.1, 1.0, 10),
                torch_schedulers.ConstantLR(o, 1.0, 1),
                torch_schedulers.LinearLR(o, 1.0, 0.05, 25),
            ],
            [10, 30],
        ),
    ),
    "warmup_cosine": (
        schedules.warmup_cosine(LR, 10, STEPS, LR * 0.1, 0.01),
        lambda o: torch_schedulers.SequentialLR(
            o,
            [
                torch_schedulers.LinearLR(o, 0.1, 1.0, 10),
                torch_schedulers.CosineAnnealingLR(o, STEPS - 10, 0.01),
            ],
            [10],
        ),
    ),
    "inverse_sqrt": (
        schedules.inverse_sqrt(LR, 9),
        lambda o: torch_schedulers.LambdaLR(o, lambda n: min(n / 9, (9 / max(n, 9)) ** 0.5)),
    ),
}


@pytest.mark.parametrize("name", TWINS)
def test_full_run_equals_torch(name):
    ours, theirs = TWINS[name]
    if name.startswith("onecycle"):  # torch refuses a step beyond the cycle
        ours = schedules.onecycle(
            2.0, STEPS + 1, 0.23, name.split("_")[1], 10.0, 50.0, name.endswith("True")
        )
    torch.testing.assert_close(ours(torch.arange(STEPS)), torch_run(theirs), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("name", TWINS)
def test_pure_traceable_and_the_same_for_one_count_and_many(name):
    schedule = TWINS[name][0]
    counts = torch.arange(0, 80, 13)
    together = schedule(counts)
    assert together.dtype is torch.float64
    one_by_one = torch.stack([schedule(count) for count in counts])
    torch.testing.assert_close(one_by_one, together, rtol=1e-14, atol=1e-16)
    torch.testing.assert_close(torch.func.vmap(schedule)(counts), together, rtol=1e-14, atol=1e-16)
    assert_jit_equal(schedule, counts)


@pytest.mark.parametrize(
    ("schedule", "end", "value"),
    [
        (schedules.linear(1.0, 0.25, 10), 10, 0.25),
        (schedules.polynomial(1.0, 0.25, 2.0, 10), 10, 0.25),
        (schedules.cosine(1.0, 10, 0.25), 10, 0.25),
        (schedules.warmup_cosine(1.0, 3, 10, end_value=0.25), 10, 0.25),
        (schedules.wsd(1.0, 2, 3, 5, end_value=0.25), 10, 0.25),
        (schedules.onecycle(1.0, 11, final_div_factor=4.0), 10, 0.01),
    ],
)
def test_b11_the_end_value_is_reached_where_it_says_and_stays(schedule, end, value):
    assert schedule(torch.tensor(end - 1)).item() != pytest.approx(value)
    for count in (end, end + 1, 10 * end):
        assert schedule(torch.tensor(count)).item() == pytest.approx(value, abs=1e-15)


def test_b11_cosine_by_count():
    want = torch.tensor([1.0, 0.8535534, 0.5, 0.1464466, 0.0], dtype=torch.float64)
    got = schedules.cosine(1.0, 4)(torch.arange(5))
    torch.testing.assert_close(got, want, rtol=1e-6, atol=1e-7)


def test_b11_the_first_update_sees_count_zero():
    schedule = schedules.linear(0.0, 1.0, 4)
    grads = [{"p": torch.tensor(1.0)}] * 5
    assert run(optim.sgd(schedule), {"p": torch.tensor(0.0)}, grads)["p"].item() == -2.5


def test_b11_a_schedule_counts_updates_not_micro_batches():
    tx = optim.accumulate(optim.sgd(schedules.exponential(1.0, 0.1)), every=4)
    grads = [{"p": torch.tensor(1.0)}] * 8
    end = run(tx, {"p": torch.tensor(0.0)}, grads)["p"]
    torch.testing.assert_close(end, torch.tensor(-1.1))


@pytest.mark.parametrize("power", [1, 3, 8, 13])
@pytest.mark.parametrize(("first", "factor"), [(1, 2), (3, 3), (10, 5)])
def test_restarts_are_exact_at_far_boundaries(power, first, factor):
    start = first * (factor**power - 1) // (factor - 1)
    schedule = schedules.cosine_restarts(1.0, first, factor)
    assert schedule(torch.tensor(start)).item() == 1.0
    assert schedule(torch.tensor(start - 1)).item() <= 0.5 or first * factor**power < 3


def test_tensors_may_be_hyperparameters():
    peak = torch.tensor(2.0, dtype=torch.float64)

    def value(peak):
        return schedules.warmup_cosine(peak, 2, 10)(torch.tensor(1))

    assert value(peak).item() == 1.0
    assert torch.func.grad(value)(peak).item() == 0.5


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: schedules.cosine(1.0, 0), "decay_steps"),
        (lambda: schedules.linear(1.0, 0.0, 0), "transition_steps"),
        (lambda: schedules.exponential(1.0, 0.5, 0), "transition_steps"),
        (lambda: schedules.warmup_cosine(1.0, 5, 5), "warmup_steps"),
        (lambda: schedules.cosine_restarts(1.0, 0), "first_steps"),
        (lambda: schedules.onecycle(1.0, 1), "total_steps"),
        (lambda: schedules.inverse_sqrt(1.0, 0), "warmup_steps"),
        (lambda: schedules.wsd(1.0, 1, 1, 0), "decay_steps"),
        (lambda: schedules.join([schedules.constant(1.0)] * 2, []), "boundaries"),
        (lambda: schedules.multistep(1.0, [-1]), "milestones"),
    ],
)
def test_what_makes_no_sense_is_refused(make, match):
    with pytest.raises(ArgumentError, match=match):
        make()
