"""The toolkit catches every fault by name, and passes what is right."""

from __future__ import annotations

import pytest
import torch

from funcloop._errors import ArgumentError
from funcloop.testing import CheckFailed, check_function
from tests.testing.functions import RIGHT, WRONG, Product, X, Y


@pytest.mark.parametrize("name", WRONG)
def test_faults_are_caught_by_name(name: str):
    wrong = WRONG[name]
    with pytest.raises(CheckFailed) as caught:
        check_function(wrong.f, [wrong.args], surrogate=wrong.surrogate)
    assert set(wrong.named) <= set(caught.value.report.failed), str(caught.value)


@pytest.mark.parametrize("name", RIGHT)
def test_what_is_right_passes(name: str):
    f, args = RIGHT[name]
    assert check_function(f, [args]).failed == ()


def test_plain_functions_pass_but_for_what_torch_drops():
    assert check_function(Product.apply, [(X, Y)], skip={"jvp(jvp)": "a bug of torch"}).failed == ()
    with pytest.raises(CheckFailed) as caught:
        check_function(Product.apply, [(X, Y)])
    assert caught.value.report.failed == ("jvp(jvp)",)


def test_report_names_check_sample_and_place():
    with pytest.raises(CheckFailed, match=r"FAIL  gradcheck      sample 1: jvp by 0 gives"):
        check_function(torch.round, [(X[:0],), (X,)], surrogate=lambda x: x)


def test_skips_are_reported_with_their_reason():
    report = check_function(torch.sin, [(X,)], skip={"jit": "the reason"})
    assert "skip  jit            the reason" in str(report)


def test_unknown_skip_and_no_sample_are_refused():
    with pytest.raises(ArgumentError, match="skipped by its name"):
        check_function(torch.sin, [(X,)], skip={"vamp": "a slip"})
    with pytest.raises(ArgumentError, match="needs a sample"):
        check_function(torch.sin, [])
