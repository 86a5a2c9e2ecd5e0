"""The simulator counts what Nsight Compute counted on an H200, number for number."""

from functools import cache
from pathlib import Path

import pytest
from calibration.counting import simulated
from calibration.records import EXACT, read

from tilewright.ladders import find_rung

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
SIZE = 512


def measured(name: str) -> dict[str, dict[str, float | None]]:
    """What was measured, by rung and count."""
    record = read(RESULTS / name)
    assert record.size == SIZE
    found: dict[str, dict[str, float | None]] = {}
    for row in record.rows:
        found.setdefault(row.rung, {})[row.count] = row.measured
    return found


MEASURED = measured("calibration_h200_512.json")
OF_TENSOR_CORES = measured("calibration_tensor_cores_h200_512.json")
CUDA_CORES = measured("calibration_cuda_cores_h200_512.json")
HOPPER_AND_TE = measured("calibration_hopper_te_h200_512.json")


@cache
def counts_of(rung: str) -> dict[str, float]:
    return simulated(find_rung(rung), SIZE)


ALSO_EQUAL = ("fma_instructions", "shared_wavefronts_ideal")
"""Counts that need not be equal, and are."""


@pytest.mark.cross_section("rung", every=8)
@pytest.mark.parametrize("rung", MEASURED)
def test_simulated_counts_equal_the_recorded_ones(rung: str) -> None:
    ours = counts_of(rung)
    for count in (*EXACT, *ALSO_EQUAL):
        # A kernel that touches no shared memory has no such line on the source page.
        assert ours[count] == (MEASURED[rung][count] or 0), count
    # What hardware counts exceeds the rule only where arbitration was lost.
    by_rule, by_hardware = (one["hardware_shared_load_wavefronts"] or 0 for one in (ours, MEASURED[rung]))
    assert by_rule <= by_hardware <= 1.01 * by_rule


@pytest.mark.cross_section("rung", every=8, at=2)
@pytest.mark.parametrize("rung", HOPPER_AND_TE)
def test_every_count_from_addresses_is_the_recorded_one_on_hopper_and_te(rung: str) -> None:
    ours = counts_of(rung)
    for count in (*EXACT, *ALSO_EQUAL):
        merged = rung == "te/2" and count == "shared_store_requests"  # four stores became one, told in `differences`
        assert ours[count] == (HOPPER_AND_TE[rung][count] or 0) * (4 if merged else 1), count


PAST_L1 = ("swizzle/async_copy", "swizzle/block_order", *(f"swizzle/stages_{slots}" for slots in (2, 3, 4)))
"""Rungs of whose copies the source page counts more than what they write."""


@pytest.mark.cross_section("rung", every=16, at=2)
@pytest.mark.parametrize("rung", [name for name in CUDA_CORES if name != "swizzle/layers"])
def test_every_count_from_addresses_is_the_recorded_one_on_cuda_cores(rung: str) -> None:
    ours = counts_of(rung)
    for count in (*EXACT, *ALSO_EQUAL, "async_copy_requests", "ldmatrix_requests"):
        if rung not in PAST_L1 or not count.startswith("shared_wavefronts"):
            assert ours[count] == (CUDA_CORES[rung][count] or 0), count


def test_copies_through_l1_read_and_write_banks() -> None:
    # 32,768 copies of 4 bytes from 8 rows of A to 4 rows of its tile: 8 + 4 - 1 each; 8,192 of 16 bytes: 4 each.
    ours = counts_of("worklog/12")
    copies = ours["shared_wavefronts"] - ours["hardware_shared_load_wavefronts"]
    assert copies == 32_768 * 11 + 8_192 * 4
    assert ours["shared_wavefronts"] == CUDA_CORES["worklog/12"]["shared_wavefronts"]


@pytest.mark.cross_section("slots", every=3)
@pytest.mark.parametrize("slots", [2, 3, 4])
def test_the_source_page_counts_lines_of_source_and_target_of_copies_past_l1(slots: int) -> None:
    rows_of_a = [{(at // 64, (at // 64 * 96 + at % 64) // 128) for at in range(0, 8 * 64, 16)}] * 16
    rows_of_b = [{(at // 128, (row * 544 + at) // 128) for at in range(0, 512, 16)} for row in range(16)]
    as_stores = 16 * (8 + 4)
    blocks, steps = 16, SIZE // 16 + slots - 1
    more = sum(map(len, rows_of_a + rows_of_b)) - as_stores
    rung = f"swizzle/stages_{slots}"
    # The first step is counted as stores are.
    counted = counts_of(rung)["shared_wavefronts"] + blocks * (steps - 1) * more
    assert counted == CUDA_CORES[rung]["shared_wavefronts"]


def test_tiles_of_tf32_take_the_tensor_instructions_that_are_simulated() -> None:
    rung = "swizzle/wmma_tf32"
    assert counts_of(rung)["tensor_pipe_instructions"] == CUDA_CORES[rung]["tensor_pipe_instructions"]


@pytest.mark.cross_section("rung", every=3)
# ampere/6 was counted with other parameters than it has now; its wavefronts were equal too.
@pytest.mark.parametrize("rung", ["ampere/2", "ampere/3", "hierarchy/v07_vectorised"])
def test_ldmatrix_takes_the_wavefronts_that_are_simulated(rung: str) -> None:
    ours = counts_of(rung)
    for count in (*EXACT, *ALSO_EQUAL, "hardware_shared_load_wavefronts"):
        assert ours[count] == OF_TENSOR_CORES[rung][count], count


def test_asynchronous_copies_are_no_stores() -> None:
    ours, counted = counts_of("worklog/12"), CUDA_CORES["worklog/12"]
    for count in ("shared_store_requests", "hardware_shared_store_wavefronts"):
        assert ours[count] == counted[count] == 0
    assert ours["async_copy_requests"] > 0
