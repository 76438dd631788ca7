"""Every example and every Python block of the README runs, at a small size."""

from __future__ import annotations

import functools
import re
import runpy
import sys
from pathlib import Path

import pytest

import funcloop as fl
from funcloop.loop._meter import MEASURED

ROOT = Path(__file__).parents[1]
EXAMPLES = {path.name for path in (ROOT / "examples").glob("*.py")}


def run(name: str, *arguments: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [name, *arguments])
    runpy.run_path(str(ROOT / "examples" / name), run_name="__main__")


@pytest.fixture
def _no_code_generation(monkeypatch: pytest.MonkeyPatch):
    """Traces and runs the same graphs, without the seconds that a C++ compiler takes."""
    monkeypatch.setattr(fl, "jit", functools.partial(fl.jit, backend="aot_eager"))


@pytest.mark.usefixtures("_no_code_generation")
def test_step(monkeypatch: pytest.MonkeyPatch, capsys):
    run("step.py", monkeypatch=monkeypatch)
    eager, jitted = map(float, re.findall(r"loss ([\d.]+)", capsys.readouterr().out))
    assert jitted < eager / 2


def test_digits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    out = tmp_path / "run"
    run("digits.py", "--steps", "60", "--no-jit", "--out", str(out), monkeypatch=monkeypatch)
    (accuracy,) = re.findall(r"test accuracy: ([\d.]+)", capsys.readouterr().out)
    assert float(accuracy) > 0.9
    assert (out / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert len((out / "metrics.jsonl").read_text().splitlines()) > 6
    records = fl.loop.read_records(out / "metrics.jsonl")
    (out / "checkpoints" / "step-000000060.safetensors").unlink()  # as if killed before the end
    arguments = ("--steps", "60", "--no-jit", "--out", str(out), "--resume")
    run("digits.py", *arguments, monkeypatch=monkeypatch)
    assert f"test accuracy: {accuracy}  (60 steps" in capsys.readouterr().out
    for before, after in zip(records, fl.loop.read_records(out / "metrics.jsonl"), strict=True):
        assert before | dict.fromkeys(MEASURED, 0) == after | dict.fromkeys(MEASURED, 0)


def test_digits_in_bfloat16_and_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    arguments = ("--steps", "10", "--no-jit", "--precision", "bf16", "--accumulate", "4")
    run("digits.py", *arguments, "--out", str(tmp_path), monkeypatch=monkeypatch)
    (accuracy,) = re.findall(r"test accuracy: ([\d.]+)", capsys.readouterr().out)
    assert float(accuracy) > 0.5


def test_char_gpt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    arguments = ("--steps", "3", "--width", "16", "--sample", "20", "--no-jit")
    run("char_gpt.py", *arguments, "--out", str(tmp_path), monkeypatch=monkeypatch)
    printed = capsys.readouterr().out
    (bits, one, two) = map(float, re.findall(r"(?:character:|characters|pairs) (\d\.\d+)", printed))
    assert two < one < bits < 8
    assert len(re.findall(r"^def .{20}", printed, re.DOTALL | re.MULTILINE)) == 1
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_transfer(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    run("transfer.py", "--steps", "30", monkeypatch=monkeypatch)
    printed = capsys.readouterr().out
    nothing, head, thawed = map(
        float, re.findall(r"(?:nothing|features|thawed): ([\d.]+)", printed)
    )
    assert min(head, thawed) > max(nothing, 0.6)
    assert "kept 2: head.weight, head.bias" in printed


def test_maml_sine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    out = tmp_path / "run"
    run("maml_sine.py", "--steps", "3", "--no-jit", "--out", str(out), monkeypatch=monkeypatch)
    assert re.search(r"ours / baseline: [\d.]+", capsys.readouterr().out)
    assert (out / "adaptation.png").read_bytes().startswith(b"\x89PNG")


def test_maml_digits(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    run("maml_digits.py", "--steps", "2", "--no-jit", monkeypatch=monkeypatch)
    found = re.findall(r"meta-learned ([\d.]+)", capsys.readouterr().out)
    assert len(found) == 3
    assert min(map(float, found)) > 0.5  # a third is chance


def test_bilevel(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    run("bilevel.py", "--steps", "2", monkeypatch=monkeypatch)
    found = re.findall(r"told apart ([\d.]+)", capsys.readouterr().out)
    assert float(found[-1]) > 0.9


def test_dp_digits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    pytest.importorskip("dp_accounting", reason="the extra `privacy` is not installed")
    out = tmp_path / "run"
    run("dp_digits.py", "--steps", "80", "--no-jit", "--out", str(out), monkeypatch=monkeypatch)
    printed = capsys.readouterr().out
    private, plain = map(float, re.findall(r"test accuracy ([\d.]+)", printed))
    (epsilon,) = map(float, re.findall(r"epsilon ([\d.]+)", printed))
    assert private >= 0.9
    assert plain > private
    assert epsilon <= 8
    assert '"train/epsilon"' in (out / "private" / "metrics.jsonl").read_text()
    assert (out / "dp_digits.png").read_bytes().startswith(b"\x89PNG")


def test_influence(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    run("influence.py", monkeypatch=monkeypatch)
    recalls = re.findall(r"by self-influence: ([\d.]+)", capsys.readouterr().out)
    assert float(recalls[0]) >= 0.6


@pytest.mark.usefixtures("_no_code_generation")
def test_qat_digits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    arguments = ("--epochs", "2", "--bits", "4", "--out", str(tmp_path))
    run("qat_digits.py", *arguments, monkeypatch=monkeypatch)
    table = capsys.readouterr().out
    (full,) = re.findall(r"float32 +([\d.]+)%", table)
    (rounded, learned) = re.findall(r"      4 +([\d.]+)% +([\d.]+)%", table)[0]
    assert float(full) > 50
    assert float(learned) > max(50, float(rounded) - 5)
    assert (tmp_path / "accuracy.png").read_bytes().startswith(b"\x89PNG")


def test_saved_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd):
    run("saved_step.py", "--out", str(tmp_path), monkeypatch=monkeypatch)
    printed = capfd.readouterr().out  # that of the second process too
    assert [int(step) for step in re.findall(r"step (\d+):", printed)] == [200, 400]
    first, second = map(float, re.findall(r"loss ([\d.]+)", printed))
    assert second < first
    assert "Inductor was imported: False" in printed


def test_every_example_has_a_test():
    tests = {f"{name.removeprefix('test_')}.py" for name in globals() if name.startswith("test_")}
    assert tests >= EXAMPLES


def test_step_is_short():
    assert len((ROOT / "examples" / "step.py").read_text().splitlines()) < 40


@pytest.mark.usefixtures("_no_code_generation")
def test_readme_blocks_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert blocks
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {}
    for block in blocks:  # in order, in one namespace: a reader goes on from block to block
        exec(compile(block, "README.md", "exec"), namespace)
