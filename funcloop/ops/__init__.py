"""Functions with derivatives of their own, right under every transform."""

from funcloop.ops._function import function

__all__ = ["function"]
