"""Why a hardware counter says something else than the simulator: each kind of difference, as a rule with its reason.

A rule states where a difference is expected and how large it may be, so a difference that it does not cover is left
without an explanation, and is told as such.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tilewright.bench.calibration_records import EXACT, Comparison

OfRung = Mapping[str, Comparison]
"""All counts of one rung, by name."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One kind of difference. covers: whether it explains a row, given all rows of the rung."""

    title: str
    why: str
    covers: Callable[[Comparison, OfRung], bool]


_LOST_ARBITRATION = {"hardware_shared_load_wavefronts": 0.01, "hardware_shared_store_wavefronts": 0.15}
"""By how much more the hardware counted, at most, on the rungs that were measured."""


def _is_absent(row: Comparison, rung: OfRung) -> bool:
    return row.count in ("shared_wavefronts", "shared_wavefronts_ideal") and not row.simulated and row.measured is None


def _is_arbitration(row: Comparison, rung: OfRung) -> bool:
    most = _LOST_ARBITRATION.get(row.count)
    return most is not None and _between(row, 1.0, 1.0 + most)


def _multiplies_tiles(rung: OfRung) -> bool:
    """Whether the multiply-adds are those of matrix instructions, in a record that counted them in."""
    row = rung.get("fma_instructions")
    return row is not None and (row.simulated or 0) > (row.measured or 0)


def _is_of_matrices(row: Comparison, rung: OfRung) -> bool:
    counts = ("shared_load_requests", "fma_instructions")
    return row.count in counts and _multiplies_tiles(rung) and _between(row, 0.0, 1.0)


def _is_asynchronous_copy(row: Comparison, rung: OfRung) -> bool:
    counts = ("shared_store_requests", "hardware_shared_store_wavefronts")
    return row.count in counts and _multiplies_tiles(rung) and row.measured == 0


def _is_whole_program(row: Comparison, rung: OfRung) -> bool:
    counts = ("all_instructions", "fma_pipe_instructions", "lsu_pipe_instructions")
    return row.count in counts and _between(row, 1.0, float("inf"))


def _is_l2(row: Comparison, rung: OfRung) -> bool:
    return row.count == "l2_hit_rate_percent" and _within_points(row, 15)


def _is_occupancy(row: Comparison, rung: OfRung) -> bool:
    return row.count == "achieved_occupancy_percent" and _within_points(row, 10)


def _between(row: Comparison, least: float, most: float) -> bool:
    if row.simulated is None or row.measured is None:
        return False
    return least * row.simulated <= row.measured <= most * row.simulated


def _within_points(row: Comparison, points: float) -> bool:
    return row.simulated is not None and row.measured is not None and abs(row.simulated - row.measured) <= points


DIFFERENCES: tuple[Difference, ...] = (
    Difference(
        "no shared memory, no line",
        "The source page has a line for each instruction that touches shared memory. The kernel has none, so there is "
        "nothing to read, and the simulator says 0.",
        _is_absent,
    ),
    Difference(
        "lost arbitration",
        "The hardware counter also counts clocks in which an access lost the arbitration for the data banks, which "
        "serve the traffic of L1 too. It is never less than the rule gives, and how much more depends on timing. The "
        "count from addresses, which does not depend on it, is equal.",
        _is_arbitration,
    ),
    Difference(
        "matrix instructions, counted apart",
        "Nsight Compute counts ldmatrix in a metric of its own and not as loads of shared memory, and the "
        "multiply-adds of tensor cores are no FFMA. This record was taken when the simulator's sums held both; since "
        "then they are kept apart on both sides, and a test holds them equal.",
        _is_of_matrices,
    ),
    Difference(
        "asynchronous copies, counted apart",
        "cp.async writes shared memory past the store unit: Nsight Compute counts it as LDGSTS, not as a store, and "
        "copies of 16 bytes past L1 show on no counter of shared wavefronts (docs/decisions/0005). The count from "
        "addresses has both, and is equal.",
        _is_asynchronous_copy,
    ),
    Difference(
        "instructions that no statement asks for",
        "The simulator counts what the kernel's text asks for. The compiler adds the arithmetic of addresses "
        "(integer multiply-adds run in the FMA pipe), loads of constants, and the closing of loops.",
        _is_whole_program,
    ),
    Difference(
        "an estimate",
        "The L2 hit rate depends on which blocks run at the same time: it is estimated, not counted (docs/l2.md). "
        "Within 15 points at a size whose every strip is read once.",
        _is_l2,
    ),
    Difference(
        "blocks that have not started, or have ended",
        "The simulated figure has every SM that gets blocks hold them for the whole run. Blocks start one after the "
        "other and end at different times, and the counter is a mean over that. Within 10 points.",
        _is_occupancy,
    ),
)


def explanation(row: Comparison, rung: OfRung) -> Difference | None:
    """The kind of difference of a row; None where it is equal, could not be compared, or nothing explains it."""
    if row.is_equal:
        return None
    return next((one for one in DIFFERENCES if one.covers(row, rung)), None)


def is_unexplained(row: Comparison, rung: OfRung) -> bool:
    """Whether a row differs and no rule says why. Where one side has no figure, only if the two must be equal."""
    if row.is_equal or explanation(row, rung) is not None:
        return False
    return row.count in EXACT or (row.simulated is not None and row.measured is not None)


def by_rung(rows: Sequence[Comparison]) -> dict[str, dict[str, Comparison]]:
    """Rows by rung and count."""
    found: dict[str, dict[str, Comparison]] = {}
    for row in rows:
        found.setdefault(row.rung, {})[row.count] = row
    return found
