"""The house rules that imports can show, read with `ast`: layers, private torch names, extras."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1] / "funcloop"
#: Files and private packages of the lowest layer, in the order in which they may import each other.
FOUNDATION = (
    *("_version", "_errors", "_atomic", "_compat", "_pytree", "_structure_json"),
    *("_types", "_sum", "_loss", "_purity", "_gradient"),
    *("_barrier", "_attach", "_remat"),
)
LAYERS = (
    ("tree", "random"),
    ("stateless", "ops"),
    ("optim", "schedules", "estimators", "precision", "persample", "curvature", "ensemble"),
    ("meta", "privacy"),
    ("step", "compile"),
    ("parallel", "checkpoint", "export"),
    ("loop", "debug", "testing"),
)
RANK = {name: rank for rank, names in enumerate(LAYERS, 1) for name in names}
#: Packages that may look at everything, and that nothing imports.
OBSERVERS = ("debug", "testing")
REQUIRED = {"torch", "numpy", "funcloop"}


def imports(tree: ast.Module, module: str) -> Iterator[tuple[str, bool]]:
    """Dotted names that a module imports, and whether at import time; `from` names are joined."""
    lazy = {id(n) for f in ast.walk(tree) if is_lazy(f) for n in ast.walk(f)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            package = module.split(".")[: -node.level] if node.level else []
            base = ".".join([*package, *([node.module] if node.module else [])])
            names = [f"{base}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            yield name, id(node) not in lazy


def is_lazy(node: ast.AST) -> bool:
    """Whether what stands inside runs later than at import, or never."""
    if isinstance(node, ast.If):
        return "TYPE_CHECKING" in ast.dump(node.test)
    return isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))


def allowed(owner: str, target: str) -> bool:
    """Whether a file of `owner` (a package, or a file of the foundation) may import `target`."""
    if owner == target or owner in OBSERVERS:
        return True
    if target in FOUNDATION:
        return owner not in FOUNDATION or FOUNDATION.index(target) < FOUNDATION.index(owner)
    if owner in FOUNDATION or target in OBSERVERS:
        return False
    return RANK[target] < RANK[owner]


def arrow_faults(source: str, module: str) -> list[str]:
    """Imports that run up, or between peers, from a module such as `funcloop.optim._adam`."""
    _, owner, *_ = [*module.split("."), ""]
    if not owner:  # the face re-exports everything
        return []
    faults = []
    for name, _ in imports(ast.parse(source), module):
        root, target, *_ = [*name.split("."), ""]
        if root != "funcloop":
            continue
        known = target in RANK or target in FOUNDATION
        if not (known and allowed(owner, target)) and owner not in OBSERVERS:
            faults.append(f"{module} imports {name}")
    return faults


def is_private(name: str) -> bool:
    if not name.startswith("torch.") or name.startswith("torch._foreach_"):
        return False
    hidden = any(part.startswith("_") and not part.startswith("__") for part in name.split("."))
    return hidden or name.startswith("torch.fx.experimental")


def private_faults(source: str, module: str) -> list[str]:
    """Private torch names, imported or reached through an attribute, outside `_compat`."""
    if module.startswith("funcloop._compat."):
        return []
    tree = ast.parse(source)
    names = {name for name, _ in imports(tree, module)}
    aliases = dict(bindings(tree))
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            names.add(dotted(node, aliases))
    return [f"{module} uses {name}" for name in sorted(names) if is_private(name)]


def bindings(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Local names and the dotted names that they were imported from."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                root = alias.name.split(".")[0]
                yield (alias.asname, alias.name) if alias.asname else (root, root)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            for alias in node.names:
                yield alias.asname or alias.name, f"{node.module}.{alias.name}"


def dotted(node: ast.expr, aliases: dict[str, str]) -> str:
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value, aliases)}.{node.attr}"
    return aliases.get(node.id, node.id) if isinstance(node, ast.Name) else ""


def extra_faults(source: str, module: str) -> list[str]:
    """Third-party packages beyond the required ones that are imported at import time."""
    at_import = {name for name, now in imports(ast.parse(source), module) if now}
    return [
        f"{module} imports {name} at module level"
        for name in sorted(at_import)
        if name.split(".")[0] not in REQUIRED | sys.stdlib_module_names
    ]


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT.parent).with_suffix("").parts
    return ".".join(parts)  # `__init__` is kept: relative imports then count levels alike


FILES = sorted(ROOT.rglob("*.py"))
RULES = (arrow_faults, private_faults, extra_faults)


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_house_rules(path: Path):
    source, module = path.read_text(), module_name(path)
    if module == "funcloop.__init__":
        module = "funcloop"
    assert [fault for rule in RULES for fault in rule(source, module)] == []


def test_every_package_has_a_layer():
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")}
    files = {path.stem for path in ROOT.glob("_*.py")} - {"__init__"}
    assert packages | files <= {*RANK, *FOUNDATION}


@pytest.mark.parametrize(
    ("module", "source", "fault"),
    [
        ("funcloop.tree._norm", "from funcloop.optim import adam", "imports funcloop.optim.adam"),
        ("funcloop.optim._adam", "from funcloop.schedules import cosine", "funcloop.schedules"),
        ("funcloop.optim._adam", "from funcloop import schedules", "funcloop.schedules"),
        ("funcloop.optim._adam", "from ..schedules import cosine", "funcloop.schedules"),
        ("funcloop.optim.__init__", "from ..schedules import cosine", "funcloop.schedules"),
        ("funcloop.optim._adam", "def f():\n    import funcloop.step", "funcloop.step"),
        ("funcloop.optim._adam", "import funcloop", "imports funcloop"),
        ("funcloop._pytree", "from funcloop._types import Aux", "funcloop._types"),
        ("funcloop._types", "from funcloop.tree import norm", "funcloop.tree"),
        ("funcloop.loop._fit", "from funcloop.debug import doctor", "funcloop.debug"),
        ("funcloop.step._step", "from funcloop.nowhere import x", "funcloop.nowhere"),
        ("funcloop.tree._norm", "import torch._dynamo", "uses torch._dynamo"),
        ("funcloop.tree._norm", "from torch.utils import _pytree", "torch.utils._pytree"),
        ("funcloop.tree._norm", "import torch\ntorch._C._x()", "torch._C"),
        ("funcloop.tree._norm", "import torch as t\nt._assert", "torch._assert"),
        ("funcloop.tree._norm", "import torch.utils as u\nu._pytree", "torch.utils._pytree"),
        ("funcloop.tree._norm", "from torch.fx.experimental import proxy_tensor", "experimental"),
        ("funcloop._compatible", "import torch._dynamo", "uses torch._dynamo"),
        ("funcloop._compat._tracing", "from funcloop._pytree import leaves", "funcloop._pytree"),
        ("funcloop.loop._fit", "import tqdm", "imports tqdm at module level"),
        ("funcloop.loop._plot", "from matplotlib import pyplot", "imports matplotlib.pyplot"),
        ("funcloop.loop._fit", "try:\n    import tqdm\nexcept ImportError: pass", "imports tqdm"),
        ("funcloop", "import sklearn.datasets", "imports sklearn.datasets"),
    ],
)
def test_each_fault_is_found(module: str, source: str, fault: str):
    faults = [found for rule in RULES for found in rule(source, module)]
    assert any(fault in found for found in faults), faults


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("funcloop.step._step", "from funcloop.optim import adam\nfrom funcloop._types import Aux"),
        ("funcloop.optim.__init__", "from ._adam import adam\nfrom funcloop.optim._sgd import sgd"),
        ("funcloop._loss", "from funcloop._types import Aux"),
        ("funcloop.debug._nan", "import funcloop\nfrom funcloop.loop import fit"),
        ("funcloop", "from funcloop import tree, loop"),
        ("funcloop.tree._norm", "import torch\ntorch._foreach_add, torch.__version__, x._private"),
        ("funcloop._compat._tracing", "import torch._dynamo"),
        ("funcloop._pytree", "from funcloop._compat import registered_node"),
        ("funcloop.loop._fit", "import json\ndef f():\n    import tqdm"),
        ("funcloop.loop._fit", "if TYPE_CHECKING:\n    from matplotlib.figure import Figure"),
    ],
)
def test_what_is_allowed_passes(module: str, source: str):
    assert [found for rule in RULES for found in rule(source, module)] == []
