"""How far predictions are from what was measured: the promises of docs/predictions.md, from recorded data."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from validation import (
    BURSTS,
    OURS,
    Case,
    accuracy,
    by_ladder_and_gpu,
    case_of,
    cases,
    collect,
    measured_rows,
    plain,
    spearman,
    sustained_cases,
    unseen_inputs,
    unseen_rows,
)

from tilewright.device.catalog import device
from tilewright.model.power import DRAM_PJ, INSTRUCTION_PJ, L2_PJ, MMA_PJ
from tilewright.runtime.cubin_cache import CubinCache

ROOT = Path(__file__).parents[2]
ALL = cases()
COUNTED = [case for case in ALL if not case.measured.is_original]
RECORDED = {ladder: some for (ladder, _, source), some in by_ladder_and_gpu(COUNTED).items() if source == OURS}


def test_every_measured_row_has_inputs() -> None:
    assert {one.key for one in measured_rows()} == {case.measured.key for case in ALL}
    assert {case.measured.device for case in COUNTED} == {"H200", "RTX 3090", "RTX 4050 Laptop"}


def test_the_mean_error_is_below_a_tenth_and_nine_of_ten_rows_are_within_a_fifth() -> None:
    found = accuracy(COUNTED)
    assert found.mean_error <= 0.10 and found.within_20 >= 0.9 and found.within_interval >= 0.9
    assert abs(found.bias) <= 0.05


def test_the_clocks_of_data_sheets_are_near_enough() -> None:
    found = accuracy([case.unclocked for case in COUNTED])
    assert found.mean_error <= 0.10 and found.within_20 >= 0.9


def test_a_rung_is_in_one_half_and_both_halves_are_near_enough() -> None:
    halves = [[case for case in COUNTED if case.measured.held_out is held_out] for held_out in (False, True)]
    chosen, held_out = ({case.measured.rung for case in some} for some in halves)
    assert not chosen & held_out and {"worklog/4", "hopper/7"} <= chosen and {"worklog/3", "hopper/8"} <= held_out
    assert all(accuracy(some).mean_error <= 0.08 and accuracy(some).within_20 >= 0.96 for some in halves)


@pytest.mark.parametrize("ladder", RECORDED)
def test_no_ladder_is_off_by_more_than_a_tenth(ladder: str) -> None:
    found = accuracy(RECORDED[ladder])
    assert found.mean_error <= 0.10 and found.within_20 >= 0.95


def test_every_rung_of_hopper_is_within_a_sixth_at_the_clock_of_its_run() -> None:
    """The cards were at their power limit: rungs that draw less ran at a higher clock than the median of their run."""
    assert {case.measured.clock_mhz for case in RECORDED["hopper"]} == {1560, 1665}
    errors = sorted(abs(case.error) for case in RECORDED["hopper"])
    assert errors[-1] <= 0.16 and errors[-4] <= 0.07


def test_bursts_stand_in_no_order_with_rungs_that_ran_at_another_clock() -> None:
    bursts = [case for case in COUNTED if case.measured.source == BURSTS]
    assert accuracy(bursts).mean_error <= 0.05 and accuracy(bursts).spearman is None


def test_sustained_figures_are_nearer_with_the_power_limit_than_without() -> None:
    some = sustained_cases()
    limited, unlimited = (
        sum(abs(error) for error in of) / len(some)
        for of in ([one.error for one in some], [one.burst_error for one in some])
    )
    assert len(some) >= 30 and limited <= 0.05 < 0.10 < unlimited


def test_the_energies_are_those_that_the_records_of_power_give() -> None:
    ran = subprocess.run(
        [sys.executable, ROOT / "benchmarks" / "energies.py"], capture_output=True, text=True, check=True
    )
    found = [float(line.split()[0]) for line in ran.stdout.splitlines() if " pJ a " in line]
    assert found == pytest.approx([MMA_PJ, INSTRUCTION_PJ, L2_PJ, DRAM_PJ], rel=0.01)


@pytest.mark.parametrize("ladder", RECORDED)
def test_rungs_that_can_be_told_apart_are_in_order(ladder: str) -> None:
    found = accuracy(RECORDED[ladder])
    assert found.in_order is not None and found.in_order >= (0.92 if ladder == "worklog" else 0.93)
    # docs/model.md says which close rungs of `worklog`, `swizzle` and `hopper` are not.
    least = {"worklog": 0.91, "swizzle": 0.93, "hopper": 0.91}.get(ladder, 0.95)
    assert found.spearman is not None and found.spearman >= least


@pytest.mark.parametrize("device", ["RTX 3090", "RTX 4050 Laptop"])
def test_other_gpus_are_predicted_from_their_specification(device: str) -> None:
    some: list[Case] = [case for case in COUNTED if case.measured.device == device]
    found = accuracy(some)
    assert found.mean_error <= 0.22 and found.in_order is not None and found.in_order >= 0.89


def test_ranks_are_compared_and_ties_share_theirs() -> None:
    assert spearman([1, 2, 3, 4], [1, 3, 2, 4]) == pytest.approx(0.8)
    assert spearman([1, 2, 2, 3], [1, 2, 2, 3]) == 1.0


@pytest.mark.slow
def test_the_page_is_what_the_model_says() -> None:
    ran = subprocess.run(
        [sys.executable, ROOT / "benchmarks" / "predictions.py", "--check"], capture_output=True, text=True, check=False
    )
    assert (ran.returncode, ran.stderr) == (0, "")


def test_kernels_with_tensor_cores_are_predicted_at_their_own_clock_in_a_run_of_both() -> None:
    h200 = device("H200")
    tensor, scalar = (
        next(case for case in cases() if case.measured.rung == name and case.measured.device == "H200")
        for name in ("hierarchy/v07", "hierarchy/v06")
    )
    for case, mixed, clock_mhz in (
        (tensor, True, h200.tensor_clock_mhz),
        (tensor, False, h200.boost_clock_mhz),
        (scalar, True, h200.boost_clock_mhz),
    ):
        measured = replace(case.measured, clock_mhz=float(h200.boost_clock_mhz), mixed=mixed)
        assert replace(case, measured=measured).predicted.clock_hz == 1e6 * clock_mhz
    slow = replace(tensor, measured=replace(tensor.measured, clock_mhz=1500.0, mixed=True))
    assert slow.predicted.clock_hz == 1.5e9


def test_the_code_that_was_timed_is_recorded_with_each_figure() -> None:
    for record in ("rung_sizes_fresh_h200.json", "rung_sizes_h200.json"):
        rows, inputs = unseen_rows(record), unseen_inputs(record)
        assert inputs.keys() == {one.key for one in rows} and len(rows) == 236
        read = inputs[next(one.key for one in rows if one.rung == "worklog/6")]
        case = case_of(rows[0], {"work": plain(ALL[0].work), "dram_bytes": 1, **read})
        assert case.work.read is not None and case.work.read.issued > 512
        hopper = inputs[next(one.key for one in rows if one.rung == "hopper/best")]
        assert hopper["read"] is None and hopper["blocks_per_sm"] == 1
    assert not unseen_inputs("rung_sizes_h100.json")


@pytest.mark.slow
def test_figures_that_nobody_had_seen_are_within_seven_percent() -> None:
    rows, read = unseen_rows("rung_sizes_fresh_h200.json"), unseen_inputs("rung_sizes_fresh_h200.json")
    inputs = collect(rows, CubinCache())
    of = accuracy([case_of(one, {**inputs[one.key], **read[one.key]}) for one in rows])
    assert of.mean_error < 0.07 and of.within_20 > 0.97
