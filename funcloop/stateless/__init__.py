"""Modules as pure functions: `stateless(net)` and what it returns."""

from funcloop.stateless._stateless import Stateless, stateless

__all__ = ["Stateless", "stateless"]
