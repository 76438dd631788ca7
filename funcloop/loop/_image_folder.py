"""Images in folders as a data set: decoded when asked for, and what is corrupt weighs nothing."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor
from torch.utils.data import Dataset

from funcloop._errors import ArgumentError, import_extra

ENDINGS = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp"})
MODES = ("RGB", "RGBA", "L")


class ImageFolder(Dataset[tuple[Tensor, Tensor, Tensor]]):
    """The images under `root/class name/...`, for `torch.utils.data.DataLoader`.

    An item is `(image, class, weight)`, so a batch is what `supervised` takes. A file that cannot
    be decoded keeps its place in the order, and so never shifts a resumed run; the next image that
    can be decoded stands in for it with weight zero, so that no mean and no gradient contains it
    and batch statistics see no made-up data. It is counted in `corrupt`. A file that cannot be
    *read* (a disk that has gone) raises instead.

    Images are turned upright (EXIF) and, if there is a `size`, scaled until they cover it and cut
    out at the centre. Random augmentation belongs into the loss function, which has the key.

    Args:
        root: A folder with one folder for each class. Files with another ending than an image's are
            passed over.
        size: Height and width in pixels, one number for a square; None leaves images as large as
            they are, which makes batches only where all are alike.
        mode: pillow's: "RGB", "RGBA" or "L" (grey).
        transform: From uint8 (channels, height, width) to what the model takes; by default float32
            in [0, 1].

    Attributes:
        classes: Names of the classes, sorted; a target is a place in this list.
        paths: The file of each item, sorted within a class.
        targets: The class of each item, int64, shape (N,).

    Raises:
        ArgumentError: there is no class, a class has no image, none at all can be decoded, or the
            mode is unknown.
        MissingExtraError: pillow is not installed.

    >>> import tempfile
    >>> from PIL import Image
    >>> root = Path(tempfile.mkdtemp())
    >>> for name in ("cat", "dog"):
    ...     (root / name).mkdir()
    ...     Image.new("RGB", (40, 30), "white").save(root / name / "1.png")
    >>> _ = (root / "dog" / "2.jpg").write_bytes(b"not an image")
    >>> data = ImageFolder(root, 8)
    >>> loader = torch.utils.data.DataLoader(data, batch_size=3)
    >>> for image, target, weight in loader:
    ...     print(tuple(image.shape), target.tolist(), weight.tolist())
    (3, 3, 8, 8) [0, 1, 0] [1.0, 1.0, 0.0]
    >>> data.classes, [path.name for path in data.corrupt]
    (['cat', 'dog'], ['2.jpg'])
    """

    def __init__(
        self,
        root: str | Path,
        size: int | tuple[int, int] | None = None,
        *,
        mode: str = "RGB",
        transform: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        import_extra("PIL.Image", "data")  # missed here, not in a worker
        if mode not in MODES:
            raise ArgumentError("an image has a known mode", f"{mode!r}", f"take one of {MODES}")
        files = _files_by_class(Path(root))
        self.classes = list(files)
        self.paths = [path for paths in files.values() for path in paths]
        counts = torch.tensor([len(paths) for paths in files.values()])
        self.targets = torch.arange(len(files)).repeat_interleave(counts)
        self._size = (size, size) if isinstance(size, int) else size
        self._mode = mode
        self._transform = transform or _unit_interval
        # Workers are other processes: what they find is written where all of them can see it.
        self._corrupt = torch.zeros(len(self.paths), dtype=torch.bool).share_memory_()

    def __len__(self) -> int:
        """The number of image files."""
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor, Tensor]:
        """Image, class and weight of one file."""
        first = range(len(self))[index]  # an IndexError beyond the end, which ends a loop
        for offset in range(len(self)):
            place = (first + offset) % len(self)
            pixels = self._decode(self.paths[place])
            if pixels is not None:
                weight = torch.tensor(0.0 if offset else 1.0)
                return self._transform(pixels), self.targets[place], weight
            self._corrupt[place] = True
        raise ArgumentError(
            "a data set has an image that can be decoded",
            f"none of {len(self)} files, the first is {self.paths[0]}",
            "look at the files",
        )

    @property
    def corrupt(self) -> list[Path]:
        """The files that could not be decoded, as far as they were asked for, by any worker."""
        return [path for path, bad in zip(self.paths, self._corrupt, strict=True) if bad]

    def _decode(self, path: Path) -> Tensor | None:
        content = path.read_bytes()  # an error here is the disk's, below it is the image's
        try:
            return self._pixels(content)
        except MemoryError:
            raise
        except Exception:  # pillow's decoders raise anything from SyntaxError to struct.error
            return None

    def _pixels(self, content: bytes) -> Tensor:
        images, operations = import_extra("PIL.Image", "data"), import_extra("PIL.ImageOps", "data")
        with images.open(io.BytesIO(content)) as image:
            if self._size is not None:  # a large JPEG is decoded at a fraction
                image.draft(self._mode, (max(self._size), max(self._size)))
            pixels = operations.exif_transpose(image).convert(self._mode)
        if self._size is not None:
            height, width = self._size
            pixels = operations.fit(pixels, (width, height), images.Resampling.BILINEAR)
        flat = torch.frombuffer(bytearray(pixels.tobytes()), dtype=torch.uint8)
        return flat.view(pixels.height, pixels.width, -1).permute(2, 0, 1).contiguous()


def _unit_interval(pixels: Tensor) -> Tensor:
    return pixels.float() / 255


def _files_by_class(root: Path) -> dict[str, list[Path]]:
    folders = sorted(path for path in root.iterdir() if path.is_dir())
    files = {
        folder.name: sorted(p for p in folder.rglob("*") if p.suffix.lower() in ENDINGS)
        for folder in folders
    }
    empty = [name for name, paths in files.items() if not paths]
    if not files or empty:
        raise ArgumentError(
            "images lie in one folder for each class",
            f"no image in {empty}" if files else f"no folder in {root}",
            f"give files that end in one of {sorted(ENDINGS)}",
        )
    return files
