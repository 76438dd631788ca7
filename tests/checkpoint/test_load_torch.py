"""Weights of other tools: names without wrappers, nothing lost in silence, nothing run."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch import Tensor, nn

from funcloop._errors import ArgumentError, CheckpointError, StructureError
from funcloop.checkpoint import load_torch
from funcloop.checkpoint._prefixes import WRAPPERS, without_wrappers
from funcloop.stateless import stateless
from tests.cases import MLP, ConvNet, Tied
from tests.laws import assert_trees_equal

TARGET = ("module.fc.weight", "head.weight")  # this model has a real child "module"
FILES = [
    ("_orig_mod.module.fc.weight", "_orig_mod.head.weight"),
    ("module._orig_mod.module.fc.weight", "module._orig_mod.head.weight"),
    ("_orig_mod.module.module.fc.weight", "_orig_mod.module.head.weight"),
    ("module.module.fc.weight", "module.head.weight"),
    ("module.fc.weight", "head.weight"),
    ("module._orig_mod.fc.weight", "head.weight"),
    ("module.fc.module.weight", "head._orig_mod.weight"),
]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "weights.pt"


@pytest.mark.parametrize("names", FILES, ids="+".join)
def test_b29_prefixes_of_wrappers(path: Path, names: tuple[str, ...]):
    values = [torch.tensor([1.0]), torch.tensor([2.0])]
    torch.save(dict(zip(names, values, strict=True)), path)
    got = load_torch(path, dict.fromkeys(TARGET, torch.zeros(1)) | {TARGET[0]: torch.zeros(1)})
    assert_trees_equal(got.params, dict(zip(TARGET, values, strict=True)))
    assert got.loaded == dict(zip(TARGET, names, strict=True))
    assert (got.kept, got.dropped, got.tied) == ([], [], [])


@pytest.mark.parametrize(
    "target",
    [
        ("fc.weight",),
        ("module.weight",),
        ("module.module.weight", "module.bias"),
        ("blocks.0.fc.weight", "blocks.1.fc.weight", "module.x"),
        ("blocks.module.0.w", "blocks.module.module.w"),
    ],
    ids="+".join,
)
def test_b29_any_nesting_of_wrappers_at_any_depth(target: tuple[str, ...]):
    """Put up to two wrappers in front of every module path, and find the names again."""
    places = sorted({".".join(n.split(".")[:d]) for n in target for d in range(n.count(".") + 1)})
    for place in places:
        for wrappers in itertools.chain(
            itertools.product(WRAPPERS), itertools.product(WRAPPERS, WRAPPERS)
        ):
            start = f"{place}." if place else ""
            names = [
                start + ".".join(wrappers) + "." + n[len(start) :] if n.startswith(start) else n
                for n in target
            ]
            assert without_wrappers(names, target) == dict(zip(names, target, strict=True))


def test_b29_names_that_only_contain_a_wrapper_are_left_alone():
    names = ["submodule.weight", "my_orig_mod.weight", "module_list.0.weight"]
    assert without_wrappers(names, names) == {n: n for n in names}
    assert without_wrappers([f"module.{n}" for n in names], names) == {
        f"module.{n}": n for n in names
    }


def test_b29_a_real_mismatch_is_listed(path: Path):
    torch.save({"module.a.weight": torch.ones(2), "module.b.weight": torch.ones(3)}, path)
    params = {"a.weight": torch.ones(4), "c.weight": torch.ones(3)}
    with pytest.raises(StructureError) as caught:
        load_torch(path, params)
    assert caught.value.value.splitlines() == [
        "3 differences",
        "  a.weight: float32 (2,) in the file, wanted float32 (4,)",
        "  c.weight: not in the file, wanted float32 (3,)",
        "  b.weight: float32 (3,) in the file, not wanted",
    ]


@pytest.mark.parametrize("build", [MLP, ConvNet, Tied])
@pytest.mark.parametrize("wrap", [lambda net: net, torch.compile, nn.DataParallel])
def test_a_module_of_ones_own(path: Path, build: type[nn.Module], wrap: object):
    torch.manual_seed(0)
    net = build()
    torch.save(wrap(net).state_dict(), path)  # type: ignore[operator]
    torch.manual_seed(1)
    got = load_torch(path, *stateless(build()).init())
    want = stateless(net).init()
    assert_trees_equal((got.params, got.buffers), want)
    assert got.tied == [n for n in wrap(net).state_dict() if n.endswith("head.weight")] * (  # type: ignore[operator]
        build is Tied
    )


def test_a_file_whose_tie_is_broken_is_refused(path: Path):
    file = Tied().state_dict()
    torch.save({**file, "head.weight": file["head.weight"] + 1}, path)
    params, _ = stateless(Tied()).init()
    with pytest.raises(StructureError, match=r"head.weight: .* in the file, not wanted"):
        load_torch(path, params)
    w = torch.zeros(11, 6)
    with pytest.raises(StructureError, match="one tensor in params, and differ in the file"):
        load_torch(path, {"embed.weight": w, "head.weight": w})
    torch.save(file, path)
    got = load_torch(path, {"embed.weight": w, "head.weight": w}).params
    assert got["embed.weight"] is got["head.weight"]


def test_a_new_head(path: Path):
    torch.save(
        {"body.weight": torch.ones(2), "head.weight": torch.ones(3), "fc2": torch.ones(1)}, path
    )
    params = {
        "body.weight": torch.zeros(2),
        "head.weight": torch.zeros(5),
        "head.bias": torch.zeros(5),
    }
    got = load_torch(path, params, keep="head", drop=["fc2"])
    assert_trees_equal(got.params, {**params, "body.weight": torch.ones(2)})
    assert got.loaded == {"body.weight": "body.weight"}
    assert (got.kept, got.dropped) == (["head.weight", "head.bias"], ["fc2", "head.weight"])
    assert str(got) == (
        "loaded 1 tensors (0 renamed)\nkept 2: head.weight, head.bias\ndropped 2: fc2, head.weight"
    )


def test_dropping_what_stands_beside_a_wrapper(path: Path):
    """An AveragedModel counts beside its module."""
    torch.save(torch.optim.swa_utils.AveragedModel(MLP()).state_dict(), path)
    params, _ = stateless(MLP()).init()
    with pytest.raises(StructureError, match="n_averaged"):
        load_torch(path, params)
    assert load_torch(path, params, drop="n_averaged").dropped == ["n_averaged"]


def test_a_pattern_that_matches_nothing_is_refused(path: Path):
    torch.save({"w": torch.ones(1)}, path)
    for option in ("keep", "drop"):
        with pytest.raises(ArgumentError, match=f"{option}= names something.*'haed' matches none"):
            load_torch(path, {"w": torch.ones(1)}, **{option: "haed"})  # type: ignore[arg-type]


def test_where_the_state_dict_is(path: Path):
    torch.save({"epoch": 3, "model": {"ema": {"w": torch.ones(1)}}}, path)
    params = {"w": torch.zeros(1)}
    with pytest.raises(StructureError, match=r"has the keys \['epoch', 'model'\].*entry="):
        load_torch(path, params)
    with pytest.raises(StructureError, match=r"has the keys \['ema'\]"):
        load_torch(path, params, entry="model/sma")
    assert load_torch(path, params, entry="model/ema").params["w"].tolist() == [1.0]
    torch.save({"state_dict": {"net.w": torch.ones(1), "loss.w": torch.zeros(2)}}, path)
    got = load_torch(path, params, entry="state_dict/net")
    assert got.params["w"].tolist() == [1.0]


def test_nothing_in_a_file_is_run(path: Path):
    class Evil:
        def __reduce__(self):
            return print, ("run!",)

    for content in ({"w": Evil()}, nn.Linear(1, 1)):
        torch.save(content, path)
        with pytest.raises(CheckpointError, match=r"nothing that runs.*GLOBAL.*state_dict"):
            load_torch(path, {"w": torch.ones(1)})
    for rubbish in (b"", b"rubbish"):
        path.write_bytes(rubbish)
        with pytest.raises(CheckpointError):
            load_torch(path, {"w": torch.ones(1)})
    with pytest.raises(FileNotFoundError):
        load_torch(path.with_name("none"), {})


def test_what_is_no_tensor_is_named(path: Path):
    torch.save({"w": torch.ones(1), "extra": 3}, path)
    params = {"w": torch.zeros(1)}
    with pytest.raises(CheckpointError, match=r"extra is a int.*drop='extra'"):
        load_torch(path, params)
    assert load_torch(path, params, drop="extra").params["w"].tolist() == [1.0]


def test_buffers_are_not_lost_in_silence(path: Path):
    torch.save(ConvNet().state_dict(), path)
    params, buffers = stateless(ConvNet()).init()
    with pytest.raises(StructureError, match=r"(?s)norm.running_mean.*give buffers too"):
        load_torch(path, params)
    with pytest.raises(StructureError, match=r"float32 \(4,\) in the file, wanted bfloat16"):
        load_torch(path, {k: v.bfloat16() for k, v in params.items()}, buffers)


def test_safetensors_files_and_nested_params(tmp_path: Path):
    path = tmp_path / "model.safetensors"
    safetensors.torch.save_file({"module.a.w": torch.ones(1), "module.b.w": torch.ones(2)}, path)
    got = load_torch(path, {"a": {"w": torch.zeros(1)}, "b": {"w": torch.zeros(2)}}).params
    assert_trees_equal(got, {"a": {"w": torch.ones(1)}, "b": {"w": torch.ones(2)}})


def test_values_are_copies_on_the_devices_of_the_params(path: Path, device: torch.device):
    file = {"w": torch.arange(4.0).view(2, 2).t(), "n": torch.ones(2)}
    torch.save(file, path)
    params: dict[str, Tensor] = {
        "w": nn.Parameter(torch.zeros(2, 2, device=device)),
        "n": torch.empty(2, device="meta"),
    }
    got = load_torch(path, params).params
    assert got["w"].device == params["w"].device
    assert got["w"].requires_grad
    assert got["w"].is_leaf
    assert got["n"].device.type == "cpu"
    assert torch.equal(got["w"].cpu(), file["w"])
    assert got["w"].is_contiguous()
    assert load_torch(path, params, map_location="meta").params["w"].is_meta
