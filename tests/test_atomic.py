"""A file is the old one or the new one, whatever happens while it is written."""

from __future__ import annotations

import os
import resource
import signal
from pathlib import Path

import pytest

from funcloop._atomic import replaced


def listing(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


def test_what_raises_leaves_the_old_file_alone(tmp_path: Path):
    path = tmp_path / "file"
    path.write_text("old")

    def interrupted() -> None:
        with replaced(path) as temporary:
            temporary.write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert path.read_text() == "old"
    assert listing(tmp_path) == ["file"]


def test_the_temporary_lies_in_the_same_folder_and_is_new(tmp_path: Path):
    with replaced(tmp_path / "a", ".pt2") as one, replaced(tmp_path / "a") as two:
        assert one.parent == two.parent == tmp_path
        assert one != two
        assert one.suffix == ".pt2"
        one.write_text("one")
        two.write_text("two")
    assert (tmp_path / "a").read_text() == "one"  # renamed last
    assert listing(tmp_path) == ["a"]


def test_a_link_goes_on_pointing(tmp_path: Path):
    (tmp_path / "real").mkdir()
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "real" / "file")
    with replaced(link) as temporary:
        temporary.write_text("new")
    assert link.is_symlink()
    assert (tmp_path / "real" / "file").read_text() == "new"


def test_what_a_killed_writer_left_is_removed_and_a_living_one_is_not(tmp_path: Path):
    ready, told = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            with replaced(tmp_path / "theirs") as temporary:
                temporary.write_text("half")
                os.write(told, b".")
                signal.pause()
        finally:
            os._exit(1)  # never back into pytest
    os.read(ready, 1)
    with replaced(tmp_path / "ours") as temporary:
        temporary.write_text("whole")
    assert len(listing(tmp_path)) == 2  # the child lives: its file stays
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    with replaced(tmp_path / "ours") as temporary:
        temporary.write_text("again")
    assert listing(tmp_path) == ["ours"]


def test_a_full_disk_leaves_the_old_file(tmp_path: Path):
    path = tmp_path / "file"
    path.write_text("old")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
        with pytest.raises(OSError, match="File too large"), replaced(path) as temporary:
            temporary.write_bytes(bytes(2000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, ignored)
    assert path.read_text() == "old"
    assert listing(tmp_path) == ["file"]


def test_a_folder_that_is_missing_is_not_made(tmp_path: Path):
    with pytest.raises(FileNotFoundError), replaced(tmp_path / "no" / "file"):
        pass
    assert listing(tmp_path) == []
