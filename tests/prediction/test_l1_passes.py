"""Clocks of L1 for scattered loads, held against what an H100 took."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tilewright.bench.records import recorded_folder
from tilewright.device.catalog import device
from tilewright.kernels.work import Access
from tilewright.ladders import find_rung
from tilewright.layout.banks import lines, wavefronts
from tilewright.model.demand import access_clocks
from tilewright.prediction.counting import work_of
from tilewright.prediction.l1_passes import clocks_of
from tilewright.toolchain import build

MEASURED = json.loads((recorded_folder() / "strided_lines_h100.json").read_text())["clocks_by_elements_apart"]


@pytest.mark.parametrize("apart", MEASURED, ids=str)
def test_rows_any_distance_apart_take_what_an_h100_takes(apart: str) -> None:
    """The mean over the 32 elements of a line, as it was measured."""
    rows = np.arange(32) * int(apart)
    addresses = 4 * (rows + np.arange(32)[:, None])
    found = clocks_of(lines(addresses, 4), wavefronts(addresses, 4, store=False)).mean()
    assert found == pytest.approx(MEASURED[apart], rel=0.15)


def test_requests_of_few_lines_take_a_clock_for_each() -> None:
    count = np.arange(1, 10)
    assert clocks_of(count, np.ones_like(count)).tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9 / 4 + 0.5]
    assert clocks_of(np.array([32, 32, 32]), np.array([32, 8, 1])).tolist() == [32, 12, 8.5]


def test_a_naive_rung_is_bound_by_the_banks_of_its_rows() -> None:
    """Rows of 1024 elements lie in one bank, of 1000 in four, of 1111 in all; b is read in one line."""
    rung, clocks = find_rung("worklog/1"), {}
    for size in (1024, 1000, 1111):
        work = work_of(build(rung.gemm(size, size, size), rung))
        clocks[size] = max((one.passes or one.lines) / one.requests for one in work.step.accesses)
    assert clocks[1024] == 32 and clocks[1000] == 12 and 8 < clocks[1111] < 10


def test_counted_passes_take_the_place_of_lines() -> None:
    loads = Access("A", "load", "global", 4, requests=10, lines=320, sectors=320)
    h200 = device("H200")
    assert access_clocks(loads, h200) == 320
    counted = Access("A", "load", "global", 4, requests=10, lines=320, sectors=320, passes=120)
    assert access_clocks(counted, h200) == 120
    assert access_clocks(counted + counted, h200) == 240
    assert access_clocks(Access("A", "load", "global", 4, requests=10, lines=320, sectors=320, passes=20), h200) == 80
