"""Differences between counters and simulator: each has a rule with bounds, and the page comes from the records."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tilewright.bench import calibration, ncu
from tilewright.bench.calibration import compare
from tilewright.bench.calibration_records import EXACT, METRICS, Calibration, Comparison, read, recorded, write
from tilewright.bench.differences import by_rung, explanation, is_unexplained
from tilewright.device.catalog import H200
from tilewright.errors import LaunchError, TilewrightError
from tilewright.ladders import find_rung
from tilewright.ladders.rung import Rung
from tilewright.report.calibration import page

COUNTED = dict.fromkeys(METRICS, 100.0)


def rows(**measured: float | None) -> dict[str, Comparison]:
    """A rung of which the simulator says 100 of everything, and the hardware the same but for `measured`."""
    return {name: Comparison("worklog/6", 512, name, 100, {**COUNTED, **measured}[name]) for name in METRICS}


def test_every_recorded_difference_is_explained() -> None:
    for found in recorded():
        for rung in by_rung(found.rows).values():
            assert not [row for row in rung.values() if is_unexplained(row, rung)]


@pytest.mark.parametrize("count", EXACT)
def test_a_count_from_addresses_may_not_be_off_by_one(count: str) -> None:
    rung = rows(**{count: 101})
    assert is_unexplained(rung[count], rung)


def test_lost_arbitration_adds_wavefronts_and_never_takes_any() -> None:
    stores = "hardware_shared_store_wavefronts"
    more, fewer, far = rows(**{stores: 110}), rows(**{stores: 99}), rows(**{stores: 130})
    found = explanation(more[stores], more)
    assert found is not None and found.title == "lost arbitration"
    assert is_unexplained(fewer[stores], fewer) and is_unexplained(far[stores], far)


def test_the_compiler_adds_instructions_and_takes_none() -> None:
    more, fewer = rows(all_instructions=150), rows(all_instructions=90)
    assert not is_unexplained(more["all_instructions"], more)
    assert is_unexplained(fewer["all_instructions"], fewer)


def test_a_counter_that_could_not_be_read_is_no_difference_unless_it_must_be_equal() -> None:
    rung = rows(tensor_pipe_instructions=None, global_load_sectors=None)
    assert not is_unexplained(rung["tensor_pipe_instructions"], rung)
    assert is_unexplained(rung["global_load_sectors"], rung)


def test_the_page_shows_both_numbers_and_what_is_not_explained() -> None:
    rung = rows(global_load_sectors=101, hardware_shared_store_wavefronts=110)
    found = Calibration("NVIDIA X", "2026-01-02T00:00:00Z", "tilewright calibrate", 512, tuple(rung.values()))
    text = page([found])
    assert "## NVIDIA X, 512 x 512 x 512" in text
    assert "| 100 / 101 **?** |" in text and "| 100 / 110 (b) |" in text
    assert "1 differences are not explained yet." in text
    assert "* **? not explained yet**: worklog/6, global_load_sectors" in text


def test_the_newest_record_of_a_rung_counts() -> None:
    old = Calibration("X", "2026-01-01T00:00:00Z", "a", 512, tuple(rows(global_load_sectors=7).values()))
    new = replace(old, date="2026-01-02T00:00:00Z", rows=tuple(rows().values()))
    assert "100 / 7" in page([old]) and "100 / 7" not in page([old, new])


def test_a_record_comes_back_as_it_was_written(tmp_path: Path) -> None:
    found = Calibration("X", "2026-01-01T00:00:00Z", "a", 512, tuple(rows().values()), failed={"te/0": "no"})
    write(tmp_path / "c.json", found)
    assert read(tmp_path / "c.json") == found


@pytest.mark.parametrize(
    ("text", "says"),
    [("[", "is no calibration"), ('{"format": 9, "rows": []}', "is of a newer format: 9"), ("{}", "is no calibration")],
)
def test_a_bad_record_is_refused(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "c.json"
    path.write_text(text)
    with pytest.raises(TilewrightError, match=says):
        read(path)


def test_counters_of_both_pages_are_laid_beside_the_simulated_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []

    def recorded_by_ncu(command: list[str], metrics: list[str], report: Path) -> Path:
        asked.append(metrics)
        return report

    launched = ncu.LaunchCounters(0, "gemm", {METRICS["global_load_sectors"]: 5.0})
    line = ncu.InstructionCounters("LDS R0, [R1]", {"memory_l1_wavefronts_shared": 7.0})
    monkeypatch.setattr(ncu, "existing_metrics", lambda wanted, chip: [m for m in wanted if "pipe_tensor" not in m])
    monkeypatch.setattr(ncu, "record", recorded_by_ncu)
    monkeypatch.setattr(ncu, "read_counters", lambda report: [launched])
    monkeypatch.setattr(ncu, "read_source", lambda report: [ncu.LaunchSource("gemm", (line, line))])
    found = {row.count: row for row in compare(find_rung("worklog/6"), 64, {"global_load_sectors": 5})}
    assert METRICS["tensor_pipe_instructions"] not in asked[0] and "memory_l1_wavefronts_shared" in asked[0]
    assert found["global_load_sectors"].is_equal
    assert found["shared_wavefronts"].measured == 14.0
    assert found["tensor_pipe_instructions"].measured is None


def test_the_recorded_files_name_a_metric_for_each_count() -> None:
    folder = Path(__file__).parents[2] / "benchmarks" / "results"
    for path in folder.glob("calibration_*.json"):
        for row in json.loads(path.read_text())["rows"]:
            assert row["metric"] == METRICS[row["count"]]


@pytest.mark.gpu
@pytest.mark.skipif(not ncu.available(), reason="Nsight Compute is not installed")
def test_rungs_are_counted_on_the_gpu_at_hand() -> None:
    found = calibration.calibrate([find_rung("worklog/6"), find_rung("ampere/3")], 256)
    assert not found.failed
    for rung in by_rung(found.rows).values():
        assert not [row for row in rung.values() if row.count in EXACT and is_unexplained(row, rung)]


def test_rungs_are_simulated_while_others_are_counted_and_a_failure_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    class Gpu:
        name, driver_version, compute_capability = "NVIDIA H200", "580", (9, 0)

    def compared(rung: Rung, size: int, ours: dict[str, float], *, chip: str) -> list[Comparison]:
        assert chip == "gh100"
        if rung.name == "worklog/2":
            raise LaunchError("Nsight Compute failed with exit status 1.")
        return [Comparison(rung.name, size, name, value, value) for name, value in ours.items()]

    monkeypatch.setattr(calibration, "open_gpu", Gpu)
    monkeypatch.setattr(calibration, "probe", lambda gpu: H200)
    monkeypatch.setattr(calibration, "compare", compared)
    monkeypatch.setattr(ncu, "metric_listing", lambda chip: "")
    found = calibration.calibrate([find_rung("worklog/2"), find_rung("worklog/6")], 128)
    counts = by_rung(found.rows)["worklog/6"]
    assert found.failed == {"worklog/2": "Nsight Compute failed with exit status 1."}
    assert (
        counts["shared_wavefronts"].simulated == calibration.simulated(find_rung("worklog/6"), 128)["shared_wavefronts"]
    )
    assert counts["achieved_occupancy_percent"].simulated == 12.5  # one block of 8 warps on an SM of 64
    assert 0 < (counts["l2_hit_rate_percent"].simulated or 0) < 100
    assert "worklog/6" in page([found]) and "Not counted: worklog/2" in page([found])
