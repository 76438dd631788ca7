"""Meta-learning, implicit differentiation and evolution gradients, as pure functions."""

from funcloop._remat import remat
from funcloop.meta._adapt import Adapted
from funcloop.meta._anil import anil
from funcloop.meta._bilevel import bilevel
from funcloop.meta._cg import cg
from funcloop.meta._es import es_grad
from funcloop.meta._gmres import gmres
from funcloop.meta._imaml import imaml
from funcloop.meta._learned import MetaParams, per_step
from funcloop.meta._lu import lu
from funcloop.meta._maml import fomaml, maml
from funcloop.meta._metasgd import metasgd
from funcloop.meta._neumann import neumann
from funcloop.meta._normal_cg import normal_cg
from funcloop.meta._protonet import Prototypes, protonet
from funcloop.meta._reptile import reptile
from funcloop.meta._root import custom_fixed_point, custom_root
from funcloop.meta._solver import SolveInfo, Solver
from funcloop.meta._statistics import per_step_buffers
from funcloop.meta._tasks import MetaGradFn
from funcloop.meta._unroll import scan, unroll

__all__ = [
    "Adapted",
    "MetaGradFn",
    "MetaParams",
    "Prototypes",
    "SolveInfo",
    "Solver",
    "anil",
    "bilevel",
    "cg",
    "custom_fixed_point",
    "custom_root",
    "es_grad",
    "fomaml",
    "gmres",
    "imaml",
    "lu",
    "maml",
    "metasgd",
    "neumann",
    "normal_cg",
    "per_step",
    "per_step_buffers",
    "protonet",
    "remat",
    "reptile",
    "scan",
    "unroll",
]
