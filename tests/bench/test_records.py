"""What lies in benchmarks/results: few and small records, each of them read by something."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tilewright.bench.records import read, recorded_folder
from tilewright.errors import TilewrightError

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"
READERS = ("README.md", "docs", "src", "tests", "benchmarks/*.py", "benchmarks/*.md", "benchmarks/probes", "Makefile")
BY_PATTERN = ("sweep_*.jsonl", "calibration_*.json", "ladder_*.jsonl")
"""Records that `recorded()` and the tables of ladders find by their names."""


def texts() -> str:
    """Everything that may read or cite a record, or show it to a reader."""
    found = []
    for place in READERS:
        for path in ROOT.glob(place):
            files = [path] if path.is_file() else path.rglob("*")
            found += [
                one.read_text("utf-8") for one in files if one.suffix in (".py", ".md", ".cu", "") and one.is_file()
            ]
    return "\n".join(found)


def test_each_record_is_read_or_cited() -> None:
    everything = texts()
    records = [path for path in RESULTS.iterdir() if not any(path.match(pattern) for pattern in BY_PATTERN)]
    assert records and [path.name for path in records if path.name not in everything] == []


def test_the_records_are_less_than_a_megabyte() -> None:
    """A raw log is not a record: rows that a page, a test or a comment draws on are."""
    assert sum(path.stat().st_size for path in RESULTS.iterdir()) < 1_000_000


def test_a_pipe_in_place_of_records_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "ladder_worklog.jsonl")
    with pytest.raises(TilewrightError, match="is not an ordinary file"):
        read(tmp_path / "ladder_worklog.jsonl")


def test_all_shipped_records_are_read() -> None:
    assert all(read(path) for path in recorded_folder().glob("ladder_*.jsonl"))
