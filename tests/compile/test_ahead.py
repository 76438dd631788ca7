"""Ahead of time: lowered, compiled, saved by one process and continued by another."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from funcloop._errors import CompileError, StructureError
from funcloop.compile import jit, load_compiled
from tests.laws import assert_trees_equal


class Run(NamedTuple):
    w: torch.Tensor
    count: torch.Tensor


def step(run: Run, batch: dict[str, torch.Tensor], mode: str) -> tuple[Run, Any]:
    assert mode == "train"
    w = run.w - 0.5 * batch["x"].mean() * run.w
    return Run(w, run.count + 1), {"norm": w.abs().sum(), "mode": mode, "nothing": None}


def start() -> Run:
    return Run(torch.ones(4), torch.zeros((), dtype=torch.int64))


BATCH = {"x": torch.tensor([1.0, 0.0])}


def test_a_compiled_function_takes_its_own_kind_of_arguments() -> None:
    lowered = jit(step, donate=0, backend="aot_eager").lower(start(), BATCH, "train")
    assert "mean" in lowered.traced.graph.code
    compiled = lowered.compile()
    assert_trees_equal(compiled(start(), BATCH, "train"), step(start(), BATCH, "train"))
    with pytest.raises(StructureError, match=r"argument 1/x has shape \(3,\), was \(2,\)"):
        compiled(start(), {"x": torch.ones(3)}, "train")
    with pytest.raises(StructureError, match=r"argument 2 has value test, was train"):
        compiled(start(), BATCH, "test")


def test_the_arguments_that_it_takes() -> None:
    compiled = jit(step, backend="aot_eager").lower(start(), BATCH, "train").compile()
    state, batch, mode = compiled.arguments
    assert type(state) is Run
    assert (state.w.shape, state.w.dtype) == (start().w.shape, start().w.dtype)
    assert batch["x"].is_meta
    assert mode == "train"


CONTINUE = """
import sys, torch
import funcloop as fl
from tests.compile.test_ahead import BATCH, Run
compiled = fl.compile.load_compiled(sys.argv[1])
run, place = Run(**torch.load(sys.argv[2])), None
for _ in range(3):
    place = run.w.data_ptr()
    run, metrics = compiled(run, BATCH, "train")
    assert run.w.data_ptr() == place and metrics["mode"] == "train"
torch.save(run._asdict(), sys.argv[2])
assert "torch._dynamo" not in sys.modules, "loading imports no compiler"
"""


def test_saved_by_one_process_and_continued_by_another(tmp_path: Path) -> None:
    compiled = jit(step, donate=0).lower(start(), BATCH, "train").compile()
    package, state = tmp_path / "step.pt2", tmp_path / "state.pt"
    compiled.save(package)
    assert os.listdir(tmp_path) == ["step.pt2"], "nothing temporary is left"
    run, _ = compiled(start(), BATCH, "train")
    torch.save(run._asdict(), state)
    subprocess.run([sys.executable, "-c", CONTINUE, package, state], check=True)
    for _ in range(3):
        run, _ = compiled(run, BATCH, "train")
    assert_trees_equal(Run(**torch.load(state)), run)
    with pytest.raises(CompileError, match="copy that file"):
        load_compiled(package).save(tmp_path / "again.pt2")


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.pt2"
    wrong.write_bytes(b"no package")
    with pytest.raises(CompileError, match=r"wrong.pt2.*save it again"):
        load_compiled(wrong)
    lowered = jit(lambda x, d: x.to(d), backend="aot_eager").lower(BATCH["x"], torch.float64)
    compiled = lowered.compile()
    with pytest.raises(StructureError, match=r"torch\.float64.*close over it"):
        compiled.save(tmp_path / "constant.pt2")


def test_b30_a_package_is_saved_wholly_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled = jit(lambda x: x + 1, backend="aot_eager").lower(BATCH["x"]).compile()
    path = tmp_path / "step.pt2"
    path.write_text("old")

    def disk_full(path: str, *_: object) -> None:
        Path(path).write_text("half")
        raise OSError("no space left on device")

    monkeypatch.setattr("funcloop.compile._package.save_aot_package", disk_full)
    with pytest.raises(OSError, match="no space left"):
        compiled.save(path)
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["step.pt2"]


def test_containers_that_cannot_be_rebuilt_are_refused_by_the_save(tmp_path: Path) -> None:
    class Local(NamedTuple):
        x: Any

    lowered = jit(lambda pair: pair.x + 1, backend="aot_eager").lower(Local(BATCH["x"]))
    with pytest.raises(StructureError, match=r"imported as it was, from where it was: .*Local"):
        lowered.compile().save(tmp_path / "step.pt2")
    assert os.listdir(tmp_path) == []
