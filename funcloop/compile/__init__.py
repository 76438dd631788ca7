"""Pure functions as one compiled graph, with donated arguments updated in place."""

from funcloop.compile._compiled import Compiled, Lowered, load_compiled
from funcloop.compile._donation import Donated
from funcloop.compile._jit import Jitted, jit

__all__ = ["Compiled", "Donated", "Jitted", "Lowered", "jit", "load_compiled"]
