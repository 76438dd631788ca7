"""metrics.jsonl: strict JSON, whole lines, one run."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path

from funcloop.loop._jsonl import JsonLines, read_records
from funcloop.loop._record import Record


def write(path: Path, *records: Record, kept: Sequence[Record] = ()) -> None:
    sink = JsonLines(path, kept)
    for record in records:
        sink.write(record)
    sink.close()


def test_round_trip_of_numbers_that_json_lacks(tmp_path: Path):
    path = tmp_path / "metrics.jsonl"
    write(path, {"step": 1, "a": math.nan, "b": math.inf, "c": -math.inf, "d": 0.1})
    (line,) = path.read_text().splitlines()
    strict = json.loads(line, parse_constant=lambda name: 1 / 0)
    assert strict == {"step": 1, "a": "NaN", "b": "Infinity", "c": "-Infinity", "d": 0.1}
    (record,) = read_records(path)
    assert math.isnan(record["a"])
    assert (record["b"], record["c"], record["d"]) == (math.inf, -math.inf, 0.1)
    assert isinstance(record["step"], int)


def test_a_line_is_on_disk_as_soon_as_it_is_written(tmp_path: Path):
    path = tmp_path / "metrics.jsonl"
    sink = JsonLines(path)
    sink.write({"step": 1})
    assert path.read_bytes() == b'{"step": 1}\n'
    sink.close()


def test_a_torn_last_line_is_left_out(tmp_path: Path):
    path = tmp_path / "metrics.jsonl"
    write(path, {"step": 1}, {"step": 2})
    path.write_bytes(path.read_bytes()[:-4])
    assert read_records(path) == [{"step": 1}]


def test_a_new_run_begins_the_file_anew(tmp_path: Path):
    path = tmp_path / "metrics.jsonl"
    write(path, {"step": 1})
    write(path, {"step": 2})
    assert read_records(path) == [{"step": 2}]


def test_a_run_taken_up_keeps_what_it_had(tmp_path: Path):
    path = tmp_path / "metrics.jsonl"
    write(path, {"step": 1}, {"step": 2}, {"step": 3})
    write(path, {"step": 3, "again": 1.0}, kept=read_records(path)[:2])
    assert read_records(path) == [{"step": 1}, {"step": 2}, {"step": 3, "again": 1.0}]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["metrics.jsonl"]
