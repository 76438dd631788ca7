"""Per-sample gradients at the price of ordinary ones: clipping, norms, statistics."""

from funcloop.persample import _rule_conv, _rule_embedding, _rule_linear  # noqa: F401  # they register
from funcloop.persample._clipped import Clipped, clipped
from funcloop.persample._counted import Counted
from funcloop.persample._engines import EngineName
from funcloop.persample._explain import Explanation, explain
from funcloop.persample._factor import Dense, Factor
from funcloop.persample._grads import grads, norms, weighted
from funcloop.persample._independence import check_independence
from funcloop.persample._influence import cosine_similarity, influence
from funcloop.persample._moments import Moments, moments
from funcloop.persample._noise_scale import NoiseScale, noise_scale
from funcloop.persample._outer import Outer
from funcloop.persample._outliers import Outliers, outliers
from funcloop.persample._rows import Rows
from funcloop.persample._use import Rule, Use, register_rule

__all__ = [
    "Clipped",
    "Counted",
    "Dense",
    "EngineName",
    "Explanation",
    "Factor",
    "Moments",
    "NoiseScale",
    "Outer",
    "Outliers",
    "Rows",
    "Rule",
    "Use",
    "check_independence",
    "clipped",
    "cosine_similarity",
    "explain",
    "grads",
    "influence",
    "moments",
    "noise_scale",
    "norms",
    "outliers",
    "register_rule",
    "weighted",
]
