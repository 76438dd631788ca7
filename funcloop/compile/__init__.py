"""Pure functions as one compiled graph, with donated arguments updated in place."""

from funcloop.compile._donation import Donated
from funcloop.compile._jit import Jitted, jit

__all__ = ["Donated", "Jitted", "jit"]
