"""`import funcloop` is light: neither an extra nor a compiler comes with it."""

from __future__ import annotations

import subprocess
import sys

EXTRAS = {
    *("tqdm", "matplotlib", "safetensors", "tensorboard", "sklearn", "scipy", "PIL"),
    *("dp_accounting", "onnx", "onnxscript", "onnxruntime", "torchao", "pytest", "hypothesis"),
}


#: What tracing and compiling take a second to import, where they are first used.
COMPILERS = {"torch._dynamo", "torch._inductor", "torch._subclasses.fake_tensor", "sympy"}


def newly_imported(statement: str) -> set[str]:
    """Modules, and their top-level packages, that a statement brings in after torch."""
    program = (
        f"import sys, torch; before = set(sys.modules); {statement}; "
        "print(*(set(sys.modules) - before))"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    modules = set(result.stdout.split())
    return modules | {name.split(".")[0] for name in modules}


def test_import_brings_no_extra_and_no_compiler():
    assert newly_imported("import funcloop") & (EXTRAS | COMPILERS) == set()


def test_an_extra_would_be_noticed():
    assert "safetensors" in newly_imported("import funcloop, safetensors")


def test_a_compiler_would_be_noticed():
    assert newly_imported("import funcloop, torch._inductor.config") >= {"torch._inductor"}
