"""`metrics.jsonl`: one JSON object a line, each written at once, so that a kill loses no line."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from pathlib import Path

from funcloop._atomic import replaced
from funcloop.loop._record import Record


class JsonLines:
    """A sink that appends records to a file.

    Args:
        path: The file.
        kept: The records that it begins with: those of the run up to where it is taken up, so that
            the file always tells one run.
    """

    def __init__(self, path: Path, kept: Iterable[Record] = ()) -> None:
        begin = lines(kept)
        if begin:
            with replaced(path) as fresh:
                fresh.write_bytes(begin)
        # Unbuffered: one write() a line.
        self._file = path.open("ab" if begin else "wb", buffering=0)

    def write(self, record: Record) -> None:
        """Append one line."""
        self._file.write(_line(record))

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def read_records(path: str | Path) -> list[Record]:
    """The records of a `metrics.jsonl`; a last line that was cut off is left out.

    Args:
        path: The file that `fit` wrote.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp(), "metrics.jsonl")
    >>> _ = path.write_text('{"step": 1, "train/loss": "NaN"}' + chr(10) + '{"step": 2, "tr')
    >>> read_records(path)
    [{'step': 1, 'train/loss': nan}]
    """
    return parse(Path(path).read_bytes())


def lines(records: Iterable[Record]) -> bytes:
    """Records as lines of JSON."""
    return b"".join(map(_line, records))


def parse(text: bytes) -> list[Record]:
    """The records of these lines; a last one that was cut off is left out."""
    whole, _, _ = text.rpartition(b"\n")
    return [
        {name: value if isinstance(value, int) else float(value) for name, value in line.items()}
        for line in map(json.loads, whole.splitlines())
    ]


def _line(record: Record) -> bytes:
    return json.dumps({k: _number(v) for k, v in record.items()}, allow_nan=False).encode() + b"\n"


def _number(value: float) -> float | str:
    """JSON has no NaN or infinity: as strings, every language's number parser reads them back."""
    if math.isnan(value):
        return "NaN"
    return value if math.isfinite(value) else ("Infinity" if value > 0 else "-Infinity")
