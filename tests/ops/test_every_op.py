"""Every op through the whole list of checks."""

from __future__ import annotations

import pytest

from funcloop.testing import check_function
from tests.ops.table import OPS


@pytest.mark.parametrize("name", OPS)
def test_check_function(name: str):
    op = OPS[name]
    for args in op.samples:
        surrogate = None if op.surrogate is None else op.surrogate(*args)
        check_function(op.f, [args], surrogate=surrogate, skip=op.skip)
