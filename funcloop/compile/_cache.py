"""Where compiled code is kept from one process to the next."""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
from pathlib import Path

import torch

from funcloop._compat import builds_every_vector_isa, inductor_default_cache
from funcloop._version import VERSION


def cache_directory() -> Path:
    """`$XDG_CACHE_HOME/funcloop`, or `~/.cache/funcloop` where that is not set."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "funcloop"


def keep_compiled_code() -> None:
    """Let Inductor keep its code there, unless TORCHINDUCTOR_CACHE_DIR names another place.

    torch's own choice, which its import may have written into that variable, is the folder for
    temporary files, and the next boot empties it. Each version of funcloop has a folder of its own:
    Inductor's key is the graph, and not what funcloop's passes knew of it.
    """
    if os.environ.get("TORCHINDUCTOR_CACHE_DIR") in (None, inductor_default_cache()):
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(cache_directory() / f"inductor-{VERSION}")


@functools.cache
def vector_isas_are_known() -> bool:
    """Whether code can be built for every vector extension of this processor; remembered if so."""
    compiler = shutil.which(os.environ.get("CXX", "g++"))
    facts = torch.__version__, sorted(torch.cpu.get_capabilities().items()), compiler
    built = os.stat(os.path.realpath(compiler)).st_mtime if compiler else None
    name = hashlib.sha256(repr((facts, built)).encode()).hexdigest()[:16]
    mark = cache_directory() / f"vector-isas-{name}"
    if mark.exists():
        return True
    if not builds_every_vector_isa():
        return False
    mark.parent.mkdir(parents=True, exist_ok=True)
    mark.touch()
    return True
