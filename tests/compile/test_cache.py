"""What was compiled once is kept: for the next jitted function, and for the next process."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

import funcloop as fl
from funcloop._errors import ArgumentError
from funcloop.compile._cache import cache_directory, remembered

PROGRAM = """
import os, torch, funcloop as fl
def loss_fn(params, buffers, x, key):  # the decomposition of pooling needs more than it imports
    return torch.nn.functional.max_pool2d(x * params["w"], 2).sin().sum((1, 2, 3))
f = fl.jit(fl.value_and_grad(loss_fn))
print(f({"w": torch.tensor(3.0)}, {}, torch.ones(2, 1, 4, 4), fl.random.key(0)).grads)
from torch._dynamo.utils import counters
print(counters["inductor"]["fxgraph_cache_hit"], os.environ["TORCHINDUCTOR_CACHE_DIR"])
"""


def run(folder: str) -> tuple[str, int, str]:
    """Gradient, cache hits, and the folder of the cache, in a process of its own."""
    environment = {k: v for k, v in os.environ.items() if k != "TORCHINDUCTOR_CACHE_DIR"}
    program = [sys.executable, "-W", "ignore", "-c", PROGRAM]
    environment["XDG_CACHE_HOME"] = folder
    done = subprocess.run(program, env=environment, capture_output=True, text=True, check=True)
    gradient, rest = done.stdout.strip().split("\n")
    hits, where = rest.split()
    return gradient, int(hits), where


def test_a_second_process_compiles_nothing(tmp_path):
    first, hits, where = run(str(tmp_path))
    assert hits == 0
    assert where == str(tmp_path / "funcloop" / f"inductor-{fl.__version__}")
    assert run(str(tmp_path)) == (first, 1, where)


def test_the_users_own_folder_wins(monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert str(cache_directory()) == os.path.join("/somewhere", "funcloop")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_directory().name == "funcloop"


def test_the_compiler_is_asked_once(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    header, asked = tmp_path / "header.h", []

    def answer(value):
        asked.append(value)
        return value

    header.touch()
    for _ in range(2):
        assert remembered(["builds", "avx"], lambda: answer(True))
        assert remembered(["header"], lambda: answer(str(header))) == str(header)
        assert not remembered(["builds", "amx"], lambda: answer(False))  # it may learn
    assert asked == [True, str(header), False, False]
    header.unlink()
    assert remembered(["header"], lambda: answer("made again")) == "made again"
    for damaged in ("{", "1"):
        for file in (tmp_path / "funcloop").iterdir():
            file.write_text(damaged)
        assert remembered(["builds", "avx"], lambda: answer(True))
    assert asked[4:] == ["made again", True, True]


def test_nothing_is_remembered_where_nothing_can_be_written(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    (tmp_path / "file").touch()
    assert remembered(["builds", "avx"], lambda: True)


def test_options_are_inductors_settings():
    f = fl.jit(lambda x: x + 1, options={"max_autotune": False, "cpp.threads": 1})
    assert f(torch.ones(2)).tolist() == [2, 2]


@pytest.mark.parametrize(
    ("backend", "options"), [("inductor", {"fastest": 1}), ("aot_eager", {"cpp.threads": 1})]
)
def test_an_unknown_option_is_refused(backend, options):
    with pytest.raises(ArgumentError, match=next(iter(options))):
        fl.jit(lambda x: x + 1, backend=backend, options=options)(torch.ones(2))
