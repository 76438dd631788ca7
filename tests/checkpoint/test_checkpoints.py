"""A folder of checkpoints: the last ones, the best one, nothing else."""

from __future__ import annotations

import math
import os
from pathlib import Path

import pytest
import torch

from funcloop._errors import ArgumentError, StructureError
from funcloop.checkpoint import Checkpoints, restore
from tests.laws import assert_trees_equal


def tree(step: int) -> dict[str, torch.Tensor]:
    return {"w": torch.tensor(float(step))}


def filled(kept: Checkpoints, *scores: float | None) -> Checkpoints:
    for number, score in enumerate(scores, 1):
        metrics = {} if score is None else {"val/accuracy": score, "val/loss": -score}
        kept.save(tree(number), number, metrics)
    return kept


def test_the_last_ones_are_kept(tmp_path: Path):
    kept = Checkpoints(tmp_path / "made" / "here", keep_last=3)
    assert (kept.steps(), kept.latest()) == ([], None)
    path = filled(kept, None, None, None, None, None).latest()
    assert kept.steps() == [3, 4, 5]
    assert path is not None
    assert_trees_equal(restore(path), tree(5))
    assert_trees_equal(kept.restore(tree(0)), tree(5))
    assert sorted(os.listdir(kept.folder)) == [f"step-00000000{n}.safetensors" for n in (3, 4, 5)]


@pytest.mark.parametrize("name", ["val/accuracy", "-val/loss"])
def test_the_best_one_is_kept(tmp_path: Path, name: str):
    kept = filled(Checkpoints(tmp_path, 1, name), 0.5, 0.8, math.nan, 0.8, None, 0.7)
    assert kept.steps() == [2, 6]  # of equals the earlier
    assert_trees_equal(kept.restore(tree(0), best=True), tree(2))
    again = Checkpoints(tmp_path, 1, name)  # another process
    again.save(tree(7), 7, {"val/accuracy": math.inf, "val/loss": -math.inf})
    assert again.steps() == [7]
    again.save(tree(8), 8, {"val/accuracy": -math.inf, "val/loss": math.inf})
    assert again.steps() == [7, 8]


def test_before_anything_was_measured_there_is_no_best(tmp_path: Path):
    kept = filled(Checkpoints(tmp_path, keep_best="val/accuracy"), None, math.nan)
    assert kept.best() is None
    with pytest.raises(ArgumentError, match=r"restored after it was saved: none in"):
        kept.restore(best=True)
    with pytest.raises(ArgumentError, match="keep_best is None"):
        Checkpoints(tmp_path).best()


def test_a_part_and_a_device(tmp_path: Path):
    kept = Checkpoints(tmp_path)
    kept.save({"state": tree(1), "more": 2}, 1)
    assert_trees_equal(kept.restore(tree(0), at="state"), tree(1))
    assert kept.restore(at="state", map_location="meta")["w"].is_meta


def test_the_same_step_replaces_and_an_earlier_one_is_refused(tmp_path: Path):
    kept = Checkpoints(tmp_path)
    kept.save(tree(1), 5)
    kept.save(tree(2), 5)
    assert_trees_equal(kept.restore(), tree(2))
    with pytest.raises(ArgumentError, match=r"of one run, in order: step 4 after step 5.*clear"):
        kept.save(tree(3), 4)
    kept.save(tree(3), 6)
    kept.clear(after=5)
    assert kept.steps() == [5]
    kept.clear()
    assert os.listdir(tmp_path) == []


def test_other_files_are_left_alone(tmp_path: Path):
    for name in ("notes.txt", "step-x.safetensors", "step-best.safetensors"):
        (tmp_path / name).write_text("mine")
    kept = filled(Checkpoints(tmp_path, 1), None, None)
    kept.clear()
    assert sorted(os.listdir(tmp_path)) == [
        "notes.txt",
        "step-best.safetensors",
        "step-x.safetensors",
    ]


def test_wrong_arguments(tmp_path: Path):
    with pytest.raises(ArgumentError, match="keep_last 0"):
        Checkpoints(tmp_path, keep_last=0)
    kept = Checkpoints(tmp_path, keep_best="val/f1")
    with pytest.raises(StructureError, match=r"keep_best 'val/f1', measured are \['val/loss'\]"):
        kept.save(tree(1), 1, {"val/loss": 0.5})
    assert kept.steps() == []
