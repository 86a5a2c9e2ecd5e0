"""The wavefront rule against what an H200 counted, pattern by pattern (recorded by benchmarks/probes)."""

import json
from pathlib import Path

import numpy as np
import pytest

from tilewright.layout.banks import copy_wavefronts, matrix_wavefronts, sectors, wavefronts

RECORDED = Path(__file__).parents[2] / "benchmarks" / "results" / "shared_memory_h200.json"


def unpacked(text: str) -> list[int | None]:
    """The offset of each lane: of "64+16x8" eight from 64 on, 16 bytes apart; of "64x8" all at 64; None for "-x8"."""
    found: list[int | None] = []
    for run in text.split():
        start, _, count = run.partition("x")
        first, _, step = start.partition("+")
        found += [None if first == "-" else int(first) + lane * int(step or 0) for lane in range(int(count or 1))]
    return found


def every_access(pattern: dict) -> list[dict]:
    """A record for each access of a recorded pattern. The source page is told where it differs from the counter."""
    offsets = {name: unpacked(pattern[name]) for name in ("offsets", "source_offsets") if name in pattern}
    told = pattern.get("source_page", {})
    return [
        {"pattern": pattern["pattern"], "access": access, "wavefronts": counted, **offsets}
        | {"source_page": told.get(access, counted)}
        for access, counted in pattern["wavefronts"].items()
    ]


EVERY = [one for pattern in json.loads(RECORDED.read_text())["records"] for one in every_access(pattern)]
RECORDS = [r for r in EVERY if r["wavefronts"] is not None]
COPIES = [r for r in EVERY if r["access"].startswith("copy_")]  # some only as the source page has them
WIDTHS = {"16": 2, "32": 4, "64": 8, "128": 16}


def of(prefix: str) -> list[dict]:
    return [r for r in RECORDS if r["access"].startswith(prefix)]


def lanes(record: dict) -> tuple[np.ndarray, np.ndarray]:
    offsets = record["offsets"]
    addresses = np.array([[0 if o is None else o for o in offsets]])
    return addresses, np.array([[o is not None for o in offsets]])


def name(record: dict) -> str:
    return f"{record['access']}-{record['pattern']}"


@pytest.mark.parametrize("record", of("shared_"), ids=name)
def test_wavefronts_are_those_the_hardware_counted(record: dict) -> None:
    addresses, active = lanes(record)
    width = WIDTHS[record["access"].rsplit("_", 1)[-1]]
    store = "store" in record["access"]
    assert int(wavefronts(addresses, width, active, store=store)[0]) == round(record["wavefronts"])


@pytest.mark.parametrize("record", of("load_matrix") + of("store_matrix"), ids=name)
def test_matrix_accesses_take_the_wavefronts_the_hardware_counted(record: dict) -> None:
    count = int(record["access"].split("_x")[1].split("_")[0])
    rows = np.array([[0 if offset is None else offset for offset in record["offsets"]]])
    assert int(matrix_wavefronts(rows, count)[0]) == round(record["wavefronts"])


@pytest.mark.parametrize("record", of("global_"), ids=name)
def test_sectors_are_those_the_hardware_counted(record: dict) -> None:
    addresses, active = lanes(record)
    width = WIDTHS[record["access"].rsplit("_", 1)[-1]]
    assert int(sectors(addresses, width, active)[0]) == round(record["wavefronts"])


@pytest.mark.parametrize("record", [r for r in COPIES if r["access"].endswith("_ca")], ids=name)
def test_copies_through_l1_take_the_wavefronts_that_were_counted(record: dict) -> None:
    addresses, active = lanes(record)
    width = WIDTHS[record["access"].split("_")[1]]
    sources = np.array([record.get("source_offsets") or np.arange(32) * width])
    found = int(copy_wavefronts(addresses, sources, width, active)[0])
    assert found == record["source_page"]
    assert record["wavefronts"] is None or found == round(record["wavefronts"])


def test_enough_patterns_were_recorded() -> None:
    assert len(of("shared_load_128")) >= 80
    assert len(of("shared_store_128")) >= 80
    assert len(COPIES) >= 100
