"""The simulator counts what Nsight Compute counted on an H200, number for number."""

import json
from functools import cache
from pathlib import Path

import pytest

from tilewright.bench.calibration import simulated
from tilewright.bench.calibration_records import EXACT
from tilewright.ladders import find_rung

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
SIZE = 512


def measured(name: str) -> dict[str, dict[str, float | None]]:
    """What was measured, by rung and count."""
    record = json.loads((RESULTS / name).read_text(encoding="utf-8"))
    assert record["size"] == SIZE
    found: dict[str, dict[str, float | None]] = {}
    for row in record["rows"]:
        found.setdefault(row["rung"], {})[row["count"]] = row["measured"]
    return found


MEASURED = measured("calibration_h200_512.json")
OF_TENSOR_CORES = measured("calibration_tensor_cores_h200_512.json")
HOPPER_AND_TE = measured("calibration_hopper_te_h200_512.json")


@cache
def counts_of(rung: str) -> dict[str, float]:
    return simulated(find_rung(rung), SIZE)


ALSO_EQUAL = ("fma_instructions", "shared_wavefronts_ideal")
"""Counts that need not be equal, and are."""


@pytest.mark.parametrize("rung", MEASURED)
def test_simulated_counts_equal_the_recorded_ones(rung: str) -> None:
    ours = counts_of(rung)
    for count in (*EXACT, *ALSO_EQUAL):
        # A kernel that touches no shared memory has no such line on the source page.
        assert ours[count] == (MEASURED[rung][count] or 0), count


@pytest.mark.parametrize("rung", HOPPER_AND_TE)
def test_every_count_from_addresses_is_the_recorded_one_on_hopper_and_te(rung: str) -> None:
    ours = counts_of(rung)
    for count in (*EXACT, *ALSO_EQUAL):
        merged = rung == "te/2" and count == "shared_store_requests"  # four stores became one, told in `differences`
        assert ours[count] == (HOPPER_AND_TE[rung][count] or 0) * (4 if merged else 1), count


# ampere/6 was counted with other parameters than it has now; its wavefronts were equal too.
@pytest.mark.parametrize("rung", ["ampere/2", "ampere/3", "hierarchy/v07_vectorised"])
def test_ldmatrix_takes_the_wavefronts_that_are_simulated(rung: str) -> None:
    ours = counts_of(rung)
    for count in (*EXACT, *ALSO_EQUAL, "hardware_shared_load_wavefronts"):
        assert ours[count] == OF_TENSOR_CORES[rung][count], count


def test_hardware_wavefronts_exceed_the_rule_only_by_lost_arbitration() -> None:
    for rung, counts in MEASURED.items():
        ours = counts_of(rung)["hardware_shared_load_wavefronts"]
        measured = counts["hardware_shared_load_wavefronts"] or 0
        assert ours <= measured <= 1.01 * ours, rung


def test_asynchronous_copies_are_no_stores() -> None:
    ours = counts_of("ampere/6")
    assert ours["shared_store_requests"] == OF_TENSOR_CORES["ampere/6"]["shared_store_requests"] == 0
    assert ours["async_copy_requests"] > 0
