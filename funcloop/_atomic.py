"""Files that are written whole or not at all: the old or the new, after a kill at any moment."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

try:
    import fcntl
except ImportError:  # Windows, where an open file cannot be removed and so needs no lock
    fcntl = None

_PREFIX = ".funcloop-"


@contextmanager
def replaced(path: str | os.PathLike[str], suffix: str = "") -> Iterator[Path]:
    """A path to write to; it takes the place of `path` at the end, if nothing was raised.

    The temporary file lies in the same folder, since only there a rename is atomic, and is on disk
    before it is renamed. What killed processes left in the folder is removed first; the lock that
    a writer holds tells its file from theirs.

    Args:
        path: Where the file is to be. A link is followed.
        suffix: The ending of the temporary name, for writers that insist on one.

    Raises:
        OSError: the folder does not exist, or the disk is full; the old file is still there.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp(), "a.txt")
    >>> with replaced(path) as temporary:
    ...     _ = temporary.write_text("whole")
    >>> path.read_text(), len(os.listdir(path.parent))
    ('whole', 1)
    """
    target = Path(os.path.realpath(path))
    _remove_stale(target.parent)
    temporary, held = _open_locked(target, suffix)
    with held:
        try:
            yield temporary
            _sync(temporary)
            if fcntl is None:
                held.close()
            os.replace(temporary, target)
            _sync(target.parent)
        finally:
            held.close()
            temporary.unlink(missing_ok=True)


def _open_locked(target: Path, suffix: str) -> tuple[Path, BinaryIO]:
    """A new temporary file, locked before any other process can have taken it for stale."""
    while True:
        name = f"{_PREFIX}{secrets.token_hex(6)}-{target.name}{suffix}"
        temporary = target.with_name(name)
        held = temporary.open("xb")
        try:
            _lock(held.fileno())
        except BlockingIOError:  # it is being removed as stale
            held.close()
            continue
        except OSError:  # a file system without locks, where nothing stale is ever removed
            pass
        if temporary.exists():
            return temporary, held
        held.close()


def _remove_stale(folder: Path) -> None:
    for path in folder.glob(f"{_PREFIX}*"):
        with suppress(OSError):  # another process writes it, or has removed it
            handle = os.open(path, os.O_RDWR)
            try:
                _lock(handle)
                path.unlink()
            finally:
                os.close(handle)


def _lock(handle: int) -> None:
    if fcntl is not None:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _sync(path: Path) -> None:
    folder = path.is_dir()
    if folder and os.name != "posix":
        return  # a folder cannot be opened there
    handle = os.open(path, os.O_RDONLY if folder else os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
