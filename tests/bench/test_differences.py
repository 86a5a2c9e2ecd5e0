"""Differences between counters and simulator: each has a rule with bounds, and the page comes from the records."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import ncu
import pytest
from calibration import counting
from calibration.counting import compare
from calibration.differences import ACCESSES, by_rung, explanation, is_unexplained
from calibration.records import EXACT, METRICS, Calibration, Comparison, read, write
from pages.calibration import page, recorded, recount

from tilewright.device.catalog import H200
from tilewright.errors import LaunchError, TilewrightError
from tilewright.ladders import find_rung
from tilewright.ladders.rung import Rung
from tilewright.toolchain import build

COUNTED = dict.fromkeys(METRICS, 100.0) | {"async_copy_requests": 0.0}


def rows(**measured: float | None) -> dict[str, Comparison]:
    """A rung without cp.async: the simulator says 100 of all else, and the hardware the same but for `measured`."""
    return {name: Comparison("worklog/6", 512, name, COUNTED[name], {**COUNTED, **measured}[name]) for name in METRICS}


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


def test_four_stores_may_become_one_of_as_many_wavefronts() -> None:
    merged = rows(shared_store_requests=25)
    assert explanation(merged["shared_store_requests"], merged) is not None
    other_factor = rows(shared_store_requests=30)
    assert is_unexplained(other_factor["shared_store_requests"], other_factor)
    other_wavefronts = rows(shared_store_requests=25, shared_wavefronts=99)
    assert is_unexplained(other_wavefronts["shared_store_requests"], other_wavefronts)


def test_the_load_store_pipe_ran_at_least_the_accesses_and_little_else() -> None:
    accesses = dict.fromkeys(ACCESSES, 0.0) | {"global_load_requests": 90.0}
    skipped, lost, more, far = (rows(**accesses, lsu_pipe_instructions=count) for count in (92, 89, 104, 105))
    assert not is_unexplained(skipped["lsu_pipe_instructions"], skipped)
    assert not is_unexplained(more["lsu_pipe_instructions"], more)
    assert is_unexplained(lost["lsu_pipe_instructions"], lost)
    assert is_unexplained(far["lsu_pipe_instructions"], far)


def test_constants_in_the_tensor_pipe_are_few_and_only_ever_more() -> None:
    few, many, fewer = (rows(tensor_pipe_instructions=count) for count in (110, 111, 99))
    assert not is_unexplained(few["tensor_pipe_instructions"], few)
    assert is_unexplained(many["tensor_pipe_instructions"], many)
    assert is_unexplained(fewer["tensor_pipe_instructions"], fewer)


def test_a_copy_is_counted_as_a_load_of_global_memory_too() -> None:
    accesses = dict.fromkeys(ACCESSES, 0.0) | {"global_load_requests": 90.0, "async_copy_requests": 40.0}
    fits, lost = (rows(**accesses, lsu_pipe_instructions=count) for count in (50, 49))
    assert not is_unexplained(fits["lsu_pipe_instructions"], fits)
    assert is_unexplained(lost["lsu_pipe_instructions"], lost)


def test_accesses_that_are_switched_off_are_a_multiple_of_those_that_run() -> None:
    ran = {"all_instructions": 1000.0, "global_load_requests": 20.0, "shared_store_requests": 20.0}
    multiple, other = (rows(**ran, lsu_pipe_instructions=count) for count in (220, 221))
    assert not is_unexplained(multiple["lsu_pipe_instructions"], multiple)
    assert is_unexplained(other["lsu_pipe_instructions"], other)


def test_copies_that_are_switched_off_are_the_same_number_by_both_counts() -> None:
    two, three, no_part, no_copies = (
        rows(shared_wavefronts=count, shared_wavefronts_ideal=108, async_copy_requests=copies)
        for count, copies in ((164, 40), (196, 40), (164, 41), (164, 0))
    )
    for count in ("shared_wavefronts", "shared_wavefronts_ideal"):
        found = explanation(two[count], two)
        assert found is not None and found.title == "copies past L1 that are switched off"
    for rung in (three, no_part, no_copies):
        assert is_unexplained(rung["shared_wavefronts"], rung)


def test_copies_past_l1_count_more_where_they_read_and_never_less() -> None:
    most, more, fewer, worse = (
        rows(shared_wavefronts=count, shared_wavefronts_ideal=ideal, async_copy_requests=2)
        for count, ideal in ((156, 100), (157, 100), (99, 100), (156, 101))
    )
    assert not is_unexplained(most["shared_wavefronts"], most)
    for rung in (more, fewer, worse):
        assert is_unexplained(rung["shared_wavefronts"], rung)


def test_what_the_fma_pipe_runs_beside_ffma_is_two_fifths_of_all_at_most() -> None:
    most, more = (rows(all_instructions=500, fma_pipe_instructions=count) for count in (300, 301))
    assert not is_unexplained(most["fma_pipe_instructions"], most)
    assert is_unexplained(more["fma_pipe_instructions"], more)


def test_an_sm_that_two_blocks_fill_is_half_full_at_least() -> None:
    half, less = (rows(achieved_occupancy_percent=count) for count in (50, 49))
    assert not is_unexplained(half["achieved_occupancy_percent"], half)
    assert is_unexplained(less["achieved_occupancy_percent"], less)


def test_warps_end_early_only_where_tma_loads() -> None:
    rung = rows(achieved_occupancy_percent=45)  # and not 100
    row = rung["achieved_occupancy_percent"]
    assert is_unexplained(row, rung)
    loads = replace(rung["global_load_requests"], simulated=0, measured=0)
    assert not is_unexplained(row, rung | {"global_load_requests": loads})


def test_a_counter_that_could_not_be_read_is_no_difference_unless_it_must_be_equal() -> None:
    rung = rows(tensor_pipe_instructions=None, global_load_sectors=None)
    assert not is_unexplained(rung["tensor_pipe_instructions"], rung)
    assert is_unexplained(rung["global_load_sectors"], rung)


def test_the_page_shows_both_numbers_and_what_is_not_explained() -> None:
    rung = rows(global_load_sectors=101, hardware_shared_store_wavefronts=110)
    found = Calibration("NVIDIA X", "2026-01-02T00:00:00Z", "benchmarks/calibrate.py", 512, tuple(rung.values()))
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
    [
        ("[", "is not a calibration"),
        ("[" * 100_000, "is not a calibration: it is nested more than 100 deep"),
        ('{"format": 9, "rungs": {}}', "is of a newer format: 9"),
        ("{}", "is not a calibration"),
    ],
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

    launched = ncu.LaunchCounters("gemm", {METRICS["global_load_sectors"]: 5.0})
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
        rows = read(path).rows
        assert rows and {row.count for row in rows} <= set(METRICS)


@pytest.mark.gpu
@pytest.mark.skipif(not ncu.available(), reason="Nsight Compute is not installed")
def test_rungs_are_counted_on_the_gpu_at_hand() -> None:
    found = counting.calibrate([find_rung("worklog/6"), find_rung("ampere/3")], 256)
    assert not found.failed
    for rung in by_rung(found.rows).values():
        assert not [row for row in rung.values() if row.count in EXACT and is_unexplained(row, rung)]


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A GPU that is not there, on which worklog/2 fails; the rungs that were counted on it."""
    names: list[str] = []

    class Gpu:
        name, driver_version, compute_capability = "NVIDIA H200", "580", (9, 0)

    def compared(rung: Rung, size: int, ours: dict[str, float], *, chip: str) -> list[Comparison]:
        assert chip == "gh100"
        names.append(rung.name)
        if rung.name == "worklog/2":
            raise LaunchError("Nsight Compute failed with exit status 1.")
        return [Comparison(rung.name, size, name, value, value) for name, value in ours.items()]

    monkeypatch.setattr(counting, "open_gpu", Gpu)
    monkeypatch.setattr(counting, "probe", lambda gpu: H200)
    monkeypatch.setattr(counting, "compare", compared)
    monkeypatch.setattr(ncu, "metric_listing", lambda chip: "")
    return names


@pytest.mark.usefixtures("counted")
def test_rungs_are_simulated_while_others_are_counted_and_a_failure_is_told() -> None:
    found = counting.calibrate([find_rung("worklog/2"), find_rung("worklog/6")], 128)
    counts = by_rung(found.rows)["worklog/6"]
    assert found.failed == {"worklog/2": "Nsight Compute failed with exit status 1."}
    assert counts["shared_wavefronts"].simulated == counting.simulated(find_rung("worklog/6"), 128)["shared_wavefronts"]
    assert counts["achieved_occupancy_percent"].simulated == 12.5  # one block of 8 warps on an SM of 64
    assert 0 < (counts["l2_hit_rate_percent"].simulated or 0) < 100
    assert "worklog/6" in page([found]) and "Not counted: worklog/2" in page([found])


@pytest.mark.slow
def test_a_stopped_run_is_gone_on_with(counted: list[str], tmp_path: Path) -> None:
    path, first, second = tmp_path / "c.json", find_rung("swizzle/opt"), find_rung("worklog/6")

    def stop_after_one(so_far: Calibration) -> None:
        write(path, so_far)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        counting.calibrate([first, second], 64, keep=stop_after_one)
    assert counted == ["swizzle/opt"]
    found = counting.calibrate([first, second], 64, earlier=read(path))
    assert counted == ["swizzle/opt", "worklog/6"]
    assert set(by_rung(found.rows)) == {"swizzle/opt", "worklog/6"} == set(found.sources)


@pytest.mark.slow
def test_a_rung_whose_kernel_changed_is_counted_again(counted: list[str]) -> None:
    rung = find_rung("swizzle/opt")
    found = counting.calibrate([rung], 128)
    another = replace(found, sources={rung.name: "of another kernel"})
    assert counting.calibrate([rung], 128, earlier=another).rows == found.rows
    assert counted == [rung.name, rung.name]


@pytest.mark.slow
def test_a_rung_that_failed_is_tried_again(counted: list[str]) -> None:
    found = counting.calibrate([find_rung("worklog/2")], 128)
    again = counting.calibrate([find_rung("worklog/2")], 128, earlier=found)
    assert counted == ["worklog/2", "worklog/2"] and again.failed == found.failed


@pytest.mark.usefixtures("counted")
def test_counts_of_two_devices_do_not_share_a_record() -> None:
    earlier = Calibration("NVIDIA A100", "2026-01-01T00:00:00Z", "a", 128, ())
    with pytest.raises(TilewrightError, match="its device is NVIDIA A100, and here it is NVIDIA H200"):
        counting.calibrate([find_rung("swizzle/opt")], 128, earlier=earlier)


def test_a_recount_changes_what_is_simulated_and_nothing_that_was_measured() -> None:
    rung = find_rung("swizzle/opt")
    right = counting.simulated(rung, 128)
    digest = counting.source_digest(build(rung.gemm(128, 128, 128), rung))
    stale = tuple(Comparison(rung.name, 128, name, -1, 7) for name in METRICS)
    old = Calibration("X", "2026-01-01T00:00:00Z", "a", 128, stale, sources={rung.name: digest})
    found, left = recount(old)
    assert not left and all(row.measured == 7 for row in found.rows)
    assert [row.simulated for row in found.rows] == [right.get(name, -1) for name in METRICS]


@pytest.mark.parametrize("sources", [{}, {"swizzle/opt": "of another kernel"}])
def test_a_recount_leaves_what_another_kernel_was_counted_for(sources: dict[str, str]) -> None:
    stale = (Comparison("swizzle/opt", 128, "shared_wavefronts", -1, 7), Comparison("gone/1", 128, "ldmatrix", -1, 7))
    old = Calibration("X", "2026-01-01T00:00:00Z", "a", 128, stale, sources=sources)
    assert recount(old) == (old, ["swizzle/opt", "gone/1"])
