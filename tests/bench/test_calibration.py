"""The simulator counts what Nsight Compute counted on an H200, number for number."""

import json
from functools import cache
from pathlib import Path

import pytest

from tilewright.bench.calibration import EXACT, simulated
from tilewright.ladders import find_rung

RECORD = json.loads(
    (Path(__file__).parents[2] / "benchmarks" / "results" / "calibration_h200_512.json").read_text(encoding="utf-8")
)
MEASURED: dict[str, dict[str, float | None]] = {}
for row in RECORD["rows"]:
    MEASURED.setdefault(row["rung"], {})[row["count"]] = row["measured"]


@cache
def counts_of(rung: str) -> dict[str, float]:
    return simulated(find_rung(rung), RECORD["size"])


ALSO_EQUAL = ("fma_instructions", "shared_wavefronts_ideal")
"""Counts that need not be equal, and are."""


@pytest.mark.parametrize("rung", MEASURED)
def test_simulated_counts_equal_the_recorded_ones(rung: str) -> None:
    ours = counts_of(rung)
    for count in (*EXACT, *ALSO_EQUAL):
        # A kernel that touches no shared memory has no such line on the source page.
        assert ours[count] == (MEASURED[rung][count] or 0), count


def test_hardware_wavefronts_exceed_the_rule_only_by_lost_arbitration() -> None:
    for rung, counts in MEASURED.items():
        ours = counts_of(rung)["hardware_shared_load_wavefronts"]
        measured = counts["hardware_shared_load_wavefronts"] or 0
        assert ours <= measured <= 1.01 * ours, rung
