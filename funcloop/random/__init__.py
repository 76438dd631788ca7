"""Randomness as a value: Philox keys, samplers, and `route`, which takes a module's from a key."""

from funcloop.random._bernoulli import bernoulli
from funcloop.random._bits import bits
from funcloop.random._categorical import categorical
from funcloop.random._cauchy import cauchy
from funcloop.random._choice import choice
from funcloop.random._dropout import dropout
from funcloop.random._exponential import exponential, gumbel
from funcloop.random._geometric import geometric
from funcloop.random._key import fold_in, key, split
from funcloop.random._normal import normal
from funcloop.random._permutation import permutation
from funcloop.random._randint import randint
from funcloop.random._route import route
from funcloop.random._truncated_normal import truncated_normal
from funcloop.random._uniform import uniform

__all__ = [
    "bernoulli",
    "bits",
    "categorical",
    "cauchy",
    "choice",
    "dropout",
    "exponential",
    "fold_in",
    "geometric",
    "gumbel",
    "key",
    "normal",
    "permutation",
    "randint",
    "route",
    "split",
    "truncated_normal",
    "uniform",
]
