"""ImageFolder: lazy, in a fixed order, and a corrupt file neither stops nor shifts a run."""

from __future__ import annotations

import pickle
import sys
from multiprocessing.reduction import ForkingPickler
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader

from funcloop._errors import ArgumentError, MissingExtraError
from funcloop.loop import ImageFolder

images = pytest.importorskip("PIL.Image", reason="the data extra is not installed")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Two classes of three grey images, in a nested folder; grey level 10 times their number."""
    for number in range(6):
        path = tmp_path / ("cats" if number < 3 else "dogs/deep") / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        images.new("RGB", (12 + number, 9), (10 * number,) * 3).save(path)
    (tmp_path / "dogs" / "notes.txt").write_text("no image")
    return tmp_path


def spoil(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:40])


def levels(data: ImageFolder, **options: object) -> list[tuple[list[int], list[int], list[float]]]:
    loader = DataLoader(data, batch_size=2, **options)  # type: ignore[arg-type]
    return [
        ((x.mean((1, 2, 3)) * 25.5).round().int().tolist(), y.tolist(), w.tolist())
        for x, y, w in loader
    ]


def test_classes_order_and_batches(root: Path):
    data = ImageFolder(root, (6, 8))
    assert data.classes == ["cats", "dogs"]
    assert [path.name for path in data.paths] == [f"{n}.png" for n in range(6)]
    assert levels(data) == [
        ([0, 1], [0, 0], [1, 1]),
        ([2, 3], [0, 1], [1, 1]),
        ([4, 5], [1, 1], [1, 1]),
    ]
    image, target, weight = data[5]
    assert (image.shape, image.dtype) == ((3, 6, 8), torch.float32)
    assert (target.dtype, weight.dtype) == (torch.int64, torch.float32)
    assert torch.equal(image, torch.full_like(image, 50 / 255))


def test_it_is_a_sequence(root: Path):
    data = ImageFolder(root, 4)
    assert len([item for item in data]) == len(data) == 6  # noqa: C416  # a plain loop ends
    assert torch.equal(data[-1][0], data[5][0])
    with pytest.raises(IndexError):
        data[6]


def test_without_a_size_images_are_as_they_are(root: Path):
    data = ImageFolder(root)
    assert [tuple(data[i][0].shape) for i in (0, 5)] == [(3, 9, 12), (3, 9, 17)]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_corrupt_image_is_skipped_and_counted(root: Path, workers: int):
    spoil(root / "cats" / "1.png")
    (root / "dogs" / "deep" / "5.png").write_bytes(b"")
    data = ImageFolder(root, 8)
    assert data.corrupt == []  # lazy: nothing was looked at
    assert levels(data, num_workers=workers) == [
        ([0, 2], [0, 0], [1, 0]),  # the next one stands in, and weighs nothing
        ([2, 3], [0, 1], [1, 1]),
        ([4, 0], [1, 0], [1, 0]),
    ]
    assert [path.name for path in data.corrupt] == ["1.png", "5.png"]


def test_a_copy_in_another_process_counts_in_the_same_place(root: Path):
    spoil(root / "cats" / "0.png")
    data = ImageFolder(root, 8)
    copy = pickle.loads(ForkingPickler.dumps(data))  # how a spawned worker gets it
    assert copy[0][2] == 0
    assert len(data.corrupt) == 1


def test_a_file_that_has_gone_is_no_corrupt_image(root: Path):
    data = ImageFolder(root, 8)
    (root / "cats" / "1.png").unlink()
    with pytest.raises(FileNotFoundError, match=r"1\.png"):
        data[1]
    assert data.corrupt == []


def test_images_are_upright_and_cut_at_the_centre(tmp_path: Path):
    (tmp_path / "a").mkdir()
    wide = images.new("L", (30, 10), 0)
    wide.paste(255, (10, 0, 20, 10))  # white in the middle third
    exif = images.Exif()
    exif[0x0112] = 6  # to be turned by a quarter
    wide.save(tmp_path / "a" / "1.png")
    wide.save(tmp_path / "a" / "2.png", exif=exif)
    data = ImageFolder(tmp_path, 10, mode="L")
    assert data[0][0].shape == (1, 10, 10)
    assert (data[0][0] > 0.9).all()
    tall = ImageFolder(tmp_path, (30, 10), mode="L")[1][0][0]
    assert (tall[11:19] > 0.9).all()
    assert (tall[:9] < 0.1).all()


@pytest.mark.parametrize("mode", ["1", "L", "P", "RGBA", "CMYK", "I;16"])
def test_every_kind_of_image(tmp_path: Path, mode: str):
    (tmp_path / "a").mkdir()
    images.new(mode, (5, 5)).save(tmp_path / "a" / "x.tiff")
    data = ImageFolder(tmp_path, 4, transform=lambda pixels: pixels)
    assert data[0][0].dtype == torch.uint8
    assert data[0][0].shape == (3, 4, 4)
    assert data[0][2] == 1


def test_a_large_jpeg_is_decoded_small(tmp_path: Path):
    (tmp_path / "a").mkdir()
    images.linear_gradient("L").resize((800, 800)).convert("RGB").save(tmp_path / "a" / "x.jpg")
    column = ImageFolder(tmp_path, 8)[0][0][0, :, 4]
    torch.testing.assert_close(column, torch.linspace(1 / 16, 15 / 16, 8), atol=0.02, rtol=0)


def test_what_is_no_data_set_is_refused(root: Path, monkeypatch: pytest.MonkeyPatch):
    (root / "empty").mkdir()
    with pytest.raises(ArgumentError, match=r"no image in \['empty'\]"):
        ImageFolder(root, 8)
    with pytest.raises(ArgumentError, match="'rgb'"):
        ImageFolder(root, 8, mode="rgb")
    with pytest.raises(ArgumentError, match="no folder in"):
        ImageFolder(root / "empty", 8)
    (root / "empty").rmdir()
    data = ImageFolder(root, 8)
    for path in data.paths:
        spoil(path)
    with pytest.raises(ArgumentError, match=r"none of 6 files"):
        data[0]
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(MissingExtraError, match=r"funcloop\[data\]"):
        ImageFolder(root, 8)
