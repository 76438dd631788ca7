"""The laws that every public function obeys: those that `funcloop.testing` gives to users."""

from __future__ import annotations

from funcloop.testing import (
    ROUNDING,
    assert_deterministic,
    assert_dtype_preserved,
    assert_jit_equal,
    assert_module_unchanged,
    assert_pure,
    assert_trees_close,
    assert_trees_equal,
    assert_vmap_equal,
    module_state,
    snapshot,
)

__all__ = [
    "ROUNDING",
    "assert_deterministic",
    "assert_dtype_preserved",
    "assert_jit_equal",
    "assert_module_unchanged",
    "assert_pure",
    "assert_trees_close",
    "assert_trees_equal",
    "assert_vmap_equal",
    "module_state",
    "snapshot",
]
