"""`import funcloop` is light: no extra comes with it."""

from __future__ import annotations

import subprocess
import sys

EXTRAS = {
    *("tqdm", "matplotlib", "safetensors", "tensorboard", "sklearn", "scipy", "PIL"),
    *("dp_accounting", "onnx", "onnxscript", "onnxruntime", "torchao", "pytest", "hypothesis"),
}


def newly_imported(statement: str) -> set[str]:
    """Top-level packages that a statement brings into a fresh interpreter after torch."""
    program = (
        f"import sys, torch; before = set(sys.modules); {statement}; "
        "print(*{m.split('.')[0] for m in set(sys.modules) - before})"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return set(result.stdout.split())


def test_import_brings_no_extra():
    assert newly_imported("import funcloop") & EXTRAS == set()


def test_an_extra_would_be_noticed():
    assert "safetensors" in newly_imported("import funcloop, safetensors")
