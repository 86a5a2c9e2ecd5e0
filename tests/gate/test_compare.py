"""Facts against facts: whatever grows is worse, whatever shrinks is better."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from tilewright.report.gate import Facts, compare, read, update
from tilewright.report.gate.compare import TITLES

OF_TARGET = ("registers", "spilled_bytes", "predicted_us")
COUNTS = tuple(name for name in TITLES if name not in OF_TARGET)
TARGET = {"compiler": "NVRTC 13.0", "model": "tilewright 1", "predicted_on": "A100", **dict.fromkeys(OF_TARGET, 100)}
FACTS = Facts("64 x 64 x 64, f32", dict.fromkeys(COUNTS, 100), {"sm_80": TARGET})


@pytest.mark.parametrize("what", COUNTS)
def test_one_more_is_worse_and_one_less_is_better(what: str) -> None:
    more, less = (replace(FACTS, counts={**FACTS.counts, what: 100 + by}) for by in (1, -1))
    worse, better = compare("x", FACTS, more), compare("x", FACTS, less)
    assert not worse.ok and [change.what for change in worse.worse] == [what]
    assert better.ok and [change.what for change in better.better] == [what]


@pytest.mark.parametrize("what", OF_TARGET)
def test_more_on_one_architecture_is_worse_there(what: str) -> None:
    more = replace(FACTS, targets={"sm_80": {**TARGET, what: 103}})
    (change,) = compare("x", FACTS, more).worse
    assert (change.what, change.arch) == (what, "sm_80")


def test_a_kernel_that_no_longer_compiles_is_worse() -> None:
    broken = replace(FACTS, targets={"sm_80": {"cannot": "sm_80 lacks wgmma"}})
    (change,) = compare("x", FACTS, broken).worse
    assert change.aside == "sm_80 lacks wgmma"
    assert compare("x", broken, FACTS).ok and compare("x", broken, broken).ok


def test_a_wrong_result_fails_whatever_the_snapshot_says() -> None:
    assert "The result is wrong: 3 elements" in compare("x", FACTS, replace(FACTS, wrong="3 elements")).fatal


def test_what_the_detectors_found_is_told() -> None:
    racy = replace(FACTS, counts={**FACTS.counts, "races": 101}, remarks=("race: lanes 0 and 1 write A_tile",))
    assert compare("x", FACTS, racy).notes == ("race: lanes 0 and 1 write A_tile",)


def test_a_count_that_an_older_snapshot_lacks_is_left_out() -> None:
    older = replace(FACTS, counts={name: 100 for name in COUNTS if name != "barriers"})
    assert compare("x", older, FACTS).ok


def test_many_writers_all_get_their_facts_in(tmp_path: Path) -> None:
    path = tmp_path / "gate.json"
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: update(path, {f"schedule {number}": FACTS}), range(24)))
    assert len(read(path)) == 24
    assert [one.name for one in tmp_path.iterdir()] == ["gate.json"]


def test_a_snapshot_is_sorted_and_the_same_each_time(tmp_path: Path) -> None:
    one, two = tmp_path / "one.json", tmp_path / "two.json"
    update(one, {"b": FACTS, "a": FACTS})
    update(two, {"a": FACTS})
    update(two, {"b": FACTS, "gone": FACTS})
    update(two, {}, forget=["gone"])
    assert one.read_text() == two.read_text() and one.read_text().index('"a"') < one.read_text().index('"b"')
