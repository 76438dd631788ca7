"""`metrics.jsonl`: one JSON object a line, each written at once, so that a kill loses no line."""

from __future__ import annotations

import json
import math
from pathlib import Path

from funcloop._atomic import replaced
from funcloop.loop._record import Record


class JsonLines:
    """A sink that appends records to a file.

    Args:
        path: The file. A run that starts at step 0 begins it anew; one that is taken up later keeps
            the records up to its step, so that the file always tells one run.
        step: The step that the run starts from.
    """

    def __init__(self, path: Path, step: int = 0) -> None:
        old = read_records(path) if step and path.exists() else []
        kept = [record for record in old if record["step"] <= step]
        with replaced(path) as fresh:
            fresh.write_bytes(b"".join(map(_line, kept)))
        self._file = path.open("ab", buffering=0)  # unbuffered: one write() a line

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
    whole, _, _ = Path(path).read_text().rpartition("\n")
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
