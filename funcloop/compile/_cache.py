"""Where compiled code is kept from one process to the next."""

from __future__ import annotations

import os
from pathlib import Path

from funcloop._compat import inductor_default_cache


def cache_directory() -> Path:
    """`$XDG_CACHE_HOME/funcloop`, or `~/.cache/funcloop` where that is not set."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "funcloop"


def keep_compiled_code() -> None:
    """Let Inductor keep its code there, unless TORCHINDUCTOR_CACHE_DIR names another place.

    torch's own choice, which its import may have written into that variable, is the folder for
    temporary files, and the next boot empties it.
    """
    if os.environ.get("TORCHINDUCTOR_CACHE_DIR") in (None, inductor_default_cache()):
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(cache_directory() / "inductor")
