"""Modules as pure functions: `stateless(net)` and what it returns."""

from funcloop.stateless._explain import explain
from funcloop.stateless._guard import Guard
from funcloop.stateless._stateless import Stateless, stateless

__all__ = ["Guard", "Stateless", "explain", "stateless"]
