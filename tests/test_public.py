"""What a package shows is documented: one line, an example that runs, a type for every value."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from typing import Any, get_origin

import pytest

import funcloop

PACKAGES = sorted(
    m.name.removeprefix("funcloop.")
    for m in pkgutil.walk_packages(funcloop.__path__, "funcloop.")
    if m.ispkg
)


def public() -> Iterator[tuple[str, Any]]:
    for name in (name for name in PACKAGES if not name.startswith("_")):
        package = importlib.import_module(f"funcloop.{name}")
        for attribute in package.__all__:
            yield f"{name}.{attribute}", getattr(package, attribute)


FUNCTIONS = {name: value for name, value in public() if inspect.isfunction(value)}
#: On Python 3.10 an alias such as `Callable[..., Any]` passes for a class too.
CLASSES = {
    name: value for name, value in public() if inspect.isclass(value) and get_origin(value) is None
}


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_lists_its_names_and_holds_no_logic(package: str) -> None:
    module = importlib.import_module(f"funcloop.{package}")
    assert module.__doc__
    assert len(set(module.__all__)) == len(module.__all__)
    assert not [name for name, value in vars(module).items() if is_defined_in(value, module)]


def is_defined_in(value: Any, module: Any) -> bool:
    return callable(value) and getattr(value, "__module__", None) == module.__name__


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_is_documented_by_an_example_and_typed(name: str) -> None:
    function = FUNCTIONS[name]
    doc = inspect.getdoc(function) or ""
    assert doc.splitlines(), "no docstring"
    assert ">>>" in doc, "no example"
    signature = inspect.signature(function)
    untyped = [p.name for p in signature.parameters.values() if p.annotation is p.empty]
    assert not untyped
    assert signature.return_annotation is not signature.empty


@pytest.mark.parametrize("name", CLASSES)
def test_a_class_is_documented(name: str) -> None:
    assert inspect.getdoc(CLASSES[name])
