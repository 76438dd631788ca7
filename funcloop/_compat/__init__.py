"""The only package that touches torch-private names; each with its reason and the versions checked.

Checked on torch 2.13.0 (CPU). What only tracing and compiling need is imported where it is used:
Dynamo, sympy and the fake tensors take a second to import.
"""

from funcloop._compat._compilers import (
    UnknownOption,
    compile_graph,
    compile_inductor,
    compiler_asked_by,
    inductor_default_cache,
    inductor_operators,
    inductor_options,
    tensor_guard,
)
from funcloop._compat._containers import registered_node
from funcloop._compat._modules import compiled_original, plain_modules, runs_again
from funcloop._compat._operators import (
    OPERATORS,
    PACK,
    PAD,
    argument_defaults,
    has_onednn,
    is_seeded,
    onednn_linear,
    operator_name,
    written_by,
)
from funcloop._compat._packages import load_aot_package, save_aot_package
from funcloop._compat._tracing import (
    MutatedInput,
    OperatorCalled,
    accepted_sizes,
    locate_operator,
    looks_at_values,
    trace_flat,
    untraced,
)
from funcloop._compat._transforms import (
    backward_would_be_lost,
    differentiating,
    forward_levels,
    forward_mode,
    function_modes,
    in_forward_mode,
    lacks_rules,
    transform_depth,
    transforming,
    vmapping,
)
from funcloop._compat._wrappers import (
    batch_levels,
    inner_tensors,
    is_wrapper,
    storage_of,
    values_are_known,
    without_tangent,
    wrapper_chain,
)

__all__ = [
    "OPERATORS",
    "PACK",
    "PAD",
    "MutatedInput",
    "OperatorCalled",
    "UnknownOption",
    "accepted_sizes",
    "argument_defaults",
    "backward_would_be_lost",
    "batch_levels",
    "compile_graph",
    "compile_inductor",
    "compiled_original",
    "compiler_asked_by",
    "differentiating",
    "forward_levels",
    "forward_mode",
    "function_modes",
    "has_onednn",
    "in_forward_mode",
    "inductor_default_cache",
    "inductor_operators",
    "inductor_options",
    "inner_tensors",
    "is_seeded",
    "is_wrapper",
    "lacks_rules",
    "load_aot_package",
    "locate_operator",
    "looks_at_values",
    "onednn_linear",
    "operator_name",
    "plain_modules",
    "registered_node",
    "runs_again",
    "save_aot_package",
    "storage_of",
    "tensor_guard",
    "trace_flat",
    "transform_depth",
    "transforming",
    "untraced",
    "values_are_known",
    "vmapping",
    "without_tangent",
    "wrapper_chain",
    "written_by",
]
