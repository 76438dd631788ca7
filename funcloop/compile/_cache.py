"""Where compiled code is kept from one process to the next."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from funcloop._atomic import replaced
from funcloop._compat import inductor_default_cache
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


def remembered(question: Sequence[str], ask: Callable[[], str | bool]) -> str | bool:
    """The answer of this machine's C++ compiler, kept in the cache directory from its first yes.

    Args:
        question: What is asked.
        ask: Asks it. A path that it answers has to exist when it is remembered.
    """
    path = cache_directory() / f"compiler-{_compiler()}.json"
    key = hashlib.sha256(repr(question).encode()).hexdigest()[:16]
    known = _read(path)
    answer = known.get(key)
    if answer is True or (isinstance(answer, str) and os.path.exists(answer)):
        return answer
    answer = ask()
    if answer:
        with suppress(OSError):  # a directory that cannot be written to means asking again
            path.parent.mkdir(parents=True, exist_ok=True)
            with replaced(path) as temporary:
                temporary.write_text(json.dumps({**_read(path), key: answer}, indent=1))
    return answer


def _read(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_text()))
    except (OSError, ValueError, TypeError):  # none yet, or a damaged one
        return {}


@functools.cache
def _compiler() -> str:
    """A name for the compiler, the processor, and the headers of torch and the system."""
    compiler = shutil.which(os.environ.get("CXX", "g++"))
    facts = torch.__version__, sorted(torch.cpu.get_capabilities().items()), compiler
    files = [os.path.realpath(compiler or ""), "/usr/include"]
    built = [os.stat(file).st_mtime for file in files if os.path.exists(file)]
    return hashlib.sha256(repr((facts, built)).encode()).hexdigest()[:16]
