"""Laws and checks for functions of one's own: purity, derivatives, batching, compilation."""

from funcloop.testing._check_function import CheckFailed, Finding, Report, check_function
from funcloop.testing._grads import check_grads
from funcloop.testing._laws import (
    assert_deterministic,
    assert_jit_equal,
    assert_max_traces,
    assert_pure,
    assert_vmap_equal,
)
from funcloop.testing._modules import assert_module_unchanged, module_state
from funcloop.testing._strategies import (
    LAYOUTS,
    VALUES,
    modules,
    quant_specs,
    shapes,
    tensors,
    trees,
)
from funcloop.testing._trees import (
    ROUNDING,
    assert_dtype_preserved,
    assert_trees_close,
    assert_trees_equal,
    snapshot,
)
from funcloop.testing._variants import Variant, variants

__all__ = [
    "LAYOUTS",
    "ROUNDING",
    "VALUES",
    "CheckFailed",
    "Finding",
    "Report",
    "Variant",
    "assert_deterministic",
    "assert_dtype_preserved",
    "assert_jit_equal",
    "assert_max_traces",
    "assert_module_unchanged",
    "assert_pure",
    "assert_trees_close",
    "assert_trees_equal",
    "assert_vmap_equal",
    "check_function",
    "check_grads",
    "module_state",
    "modules",
    "quant_specs",
    "shapes",
    "snapshot",
    "tensors",
    "trees",
    "variants",
]
