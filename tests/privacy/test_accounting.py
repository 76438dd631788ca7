"""Epsilon as dp-accounting gives it (field case B22), calibration, and the bound in a graph."""

from __future__ import annotations

import math

import pytest
import torch

from funcloop import privacy
from funcloop._errors import ArgumentError
from funcloop.compile import jit

ORDERS = [1 + k / 10 for k in range(1, 100)] + list(range(12, 64))
PROBES = {
    "i": {"noise_multiplier": 3.0, "sampling_probability": 0.2, "steps": 50, "delta": 1 / 48000},
    "ii": {
        "noise_multiplier": 1.0,
        "sampling_probability": 105 / 100_000,
        "steps": 1,
        "delta": 1e-5,
    },
    "ii loose": {
        "noise_multiplier": 1.0,
        "sampling_probability": 105 / 100_000,
        "steps": 1,
        "delta": 1e-3,
    },
    "iii": {"noise_multiplier": 4.0, "sampling_probability": 1.0, "steps": 16, "delta": 1e-5},
}


@pytest.mark.parametrize(
    ("probe", "rdp", "pld"),
    [
        ("i", 2.169042, 1.960811),
        ("ii", 0.609030, 0.009776),
        ("ii loose", 0.254786, 0.0),
        ("iii", 4.728507, 4.377178),
    ],
)
def test_b22_epsilon(probe, rdp, pld):
    pytest.importorskip("dp_accounting", reason="the extra `privacy` is not installed")
    assert math.isclose(privacy.epsilon(**PROBES[probe], method="rdp"), rdp, abs_tol=1e-6)
    assert math.isclose(privacy.epsilon(**PROBES[probe]), pld, abs_tol=1e-6)


def test_b22_orders_near_one():
    pytest.importorskip("dp_accounting", reason="the extra `privacy` is not installed")
    call = lambda orders: privacy.epsilon(**PROBES["ii"], method="rdp", orders=orders)  # noqa: E731
    assert math.isclose(call([1 + 1e-8, *ORDERS]), 0.609030, abs_tol=1e-6)
    assert call([1 + 1e-8]) == math.inf


def test_b22_sampling_probability_comes_from_the_data_set():
    assert privacy.sampling_probability(16, 100_000) == 0.00016
    with pytest.raises(ArgumentError):
        privacy.sampling_probability(17, 16)


def test_edges():
    pytest.importorskip("dp_accounting", reason="the extra `privacy` is not installed")
    assert privacy.epsilon(**{**PROBES["i"], "steps": 0}) == 0
    assert privacy.epsilon(**{**PROBES["i"], "noise_multiplier": 0.0}) == math.inf
    for wrong in (
        {"sampling_probability": 0.0},
        {"steps": -1},
        {"delta": 0.0},
        {"method": "clt"},
        {"noise_multiplier": -1.0},
    ):
        with pytest.raises(ArgumentError):
            privacy.epsilon(**{**PROBES["i"], **wrong})


def test_calibrated_noise_is_the_smallest_that_keeps_to_the_budget():
    pytest.importorskip("dp_accounting", reason="the extra `privacy` is not installed")
    run = {"sampling_probability": 0.05, "steps": 20, "delta": 1e-5, "method": "rdp"}
    noise = privacy.calibrate_noise(3.0, **run)
    assert privacy.epsilon(noise_multiplier=noise, **run) <= 3.0
    assert privacy.epsilon(noise_multiplier=noise - 2e-6, **run) > 3.0
    with pytest.raises(ArgumentError):
        privacy.calibrate_noise(0.0, **run)


def test_the_bound_in_a_graph_is_above_the_exact_curve_and_near_it():
    pytest.importorskip("dp_accounting", reason="the extra `privacy` is not installed")
    accountant = privacy.Accountant(1.0, 0.05, 1e-5, steps=150, method="rdp")
    bound = jit(accountant.bound, backend="aot_eager")
    for steps in (0, 1, 2, 50, 149, 150):
        exact, above = accountant.epsilon(steps), float(bound(torch.tensor(steps)))
        next_point = accountant.epsilon(min(150, steps + 5))  # 32 of them on 150 steps
        assert exact * (1 - 1e-6) <= above <= next_point * (1 + 1e-6)
    assert bound(torch.tensor(151)) == math.inf
    assert bound.traces == 1
    assert accountant.epsilon(torch.tensor(150)) == accountant.epsilon(150)


def test_a_missing_package_names_the_extra(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "dp_accounting", None)
    with pytest.raises(ImportError, match=r"funcloop\[privacy\]"):
        privacy.epsilon(**PROBES["i"])
