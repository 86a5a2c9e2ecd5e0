"""Why a hardware counter says something else than the simulator: each kind of difference, as a rule with its reason.

A rule states where a difference is expected and how large it may be, so a difference that it does not cover is left
without an explanation, and is told as such.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from calibration.records import EXACT, Comparison
from tilewright.dtypes import F32
from tilewright.layout.banks import SECTOR_BYTES

OfRung = Mapping[str, Comparison]
"""All counts of one rung, by name."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One kind of difference. covers: whether it explains a row, given all rows of the rung."""

    title: str
    why: str
    covers: Callable[[Comparison, OfRung], bool]


_LOST_ARBITRATION = {"hardware_shared_load_wavefronts": 0.02, "hardware_shared_store_wavefronts": 0.15}
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


def _more(rung: OfRung, count: str) -> float | None:
    """How many more were counted than are simulated; None where a side has no figure."""
    row = rung.get(count)
    return None if row is None or row.simulated is None or row.measured is None else row.measured - row.simulated


def _copies_switched_off(rung: OfRung) -> float:
    """Copies that some warps execute with their predicate false: 4 ideal wavefronts each, as far as these go."""
    copies, more = rung.get("async_copy_requests"), _more(rung, "shared_wavefronts_ideal")
    if copies is None or not copies.measured or not more or more < 0 or more % _IDEAL_OF_A_COPY:
        return 0
    return more / _IDEAL_OF_A_COPY


_IDEAL_OF_A_COPY, _MOST_OF_A_COPY = 4, 32
"""Wavefronts of a warp's copy of 16 bytes a lane: without a conflict, and with every lane by itself."""


def _is_copy_switched_off(row: Comparison, rung: OfRung) -> bool:
    off = _copies_switched_off(rung)
    if row.count not in ("shared_wavefronts", "shared_wavefronts_ideal") or not off:
        return False
    return (rung["async_copy_requests"].measured or 0) % off == 0 and (
        _more(rung, "shared_wavefronts") == off * _MOST_OF_A_COPY
    )


def _is_copy_past_l1(row: Comparison, rung: OfRung) -> bool:
    copies, more = rung.get("async_copy_requests"), _more(rung, "shared_wavefronts")
    if row.count != "shared_wavefronts" or copies is None or more is None:
        return False
    is_placed_well = _more(rung, "shared_wavefronts_ideal") == 0
    return is_placed_well and 0 < more <= (copies.measured or 0) * (_MOST_OF_A_COPY - _IDEAL_OF_A_COPY)


def _stores_merged_away(rung: OfRung) -> float:
    """Stores that the compiler saved by making them wider: as many bytes, so as many wavefronts, as before."""
    stores, wavefronts = rung.get("shared_store_requests"), rung.get("shared_wavefronts")
    if stores is None or wavefronts is None or not (stores.simulated and stores.measured and wavefronts.is_equal):
        return 0
    is_wider = stores.simulated / stores.measured in (2, 4)
    return stores.simulated - stores.measured if is_wider else 0


def _is_of_merged_stores(row: Comparison, rung: OfRung) -> bool:
    saved = _stores_merged_away(rung)
    if not saved or row.simulated is None or row.measured is None:
        return False
    if row.count == "all_instructions":
        return row.simulated - 2 * saved <= row.measured < row.simulated
    return row.count == "shared_store_requests"


def _is_whole_program(row: Comparison, rung: OfRung) -> bool:
    if row.count == "fma_pipe_instructions":
        more = _more(rung, row.count)
        return more is not None and 0 < more <= _share_of_all(rung, 0.4)
    return row.count == "all_instructions" and _between(row, 1.0, 4.0)


ACCESSES = (
    "global_load_requests",
    "global_store_requests",
    "shared_load_requests",
    "shared_store_requests",
    "ldmatrix_requests",
    "async_copy_requests",
)
"""What Nsight Compute counts of memory. A cp.async is a load of global memory too."""


def _is_load_store_pipe(row: Comparison, rung: OfRung) -> bool:
    if row.count != "lsu_pipe_instructions" or row.simulated is None or row.measured is None:
        return False
    accesses = sum(rung[name].measured or 0 for name in ACCESSES if name in rung)
    if "async_copy_requests" in rung:
        accesses -= 2 * (rung["async_copy_requests"].measured or 0)
    more = row.measured - max(row.simulated, accesses)
    return row.measured >= accesses and more <= _share_of_all(rung, 0.04)


def _is_access_switched_off(row: Comparison, rung: OfRung) -> bool:
    more = _more(rung, "lsu_pipe_instructions")
    staged = sum(rung[name].measured or 0 for name in ("global_load_requests", "shared_store_requests") if name in rung)
    return row.count == "lsu_pipe_instructions" and bool(more and staged and more > 0 and more % staged == 0)


def _is_constant(row: Comparison, rung: OfRung) -> bool:
    if row.count != "tensor_pipe_instructions" or row.simulated is None or row.measured is None:
        return False
    return 0 < row.measured - row.simulated <= _share_of_all(rung, 0.1)


def _share_of_all(rung: OfRung, share: float) -> float:
    """A share of all instructions that ran."""
    row = rung.get("all_instructions")
    return share * (row.measured or 0) if row is not None else 0


def _has_no_estimate(row: Comparison, rung: OfRung) -> bool:
    counts = ("l2_hit_rate_percent", "achieved_occupancy_percent")
    return row.count in counts and row.simulated is None and row.measured is not None


def _is_l2(row: Comparison, rung: OfRung) -> bool:
    return row.count == "l2_hit_rate_percent" and _within_points(row, 15)


def _is_read_again(row: Comparison, rung: OfRung) -> bool:
    sectors = rung.get("global_load_sectors")
    if row.count != "l2_hit_rate_percent" or sectors is None or row.simulated is None or row.measured is None:
        return False
    of_operands = 2 * row.size**2 * F32.bytes / SECTOR_BYTES
    return (sectors.simulated or 0) >= 100 * of_operands and row.measured > row.simulated


def _is_idle_warps(row: Comparison, rung: OfRung) -> bool:
    loads = rung.get("global_load_requests")
    by_tma = loads is not None and loads.simulated == 0
    return row.count == "achieved_occupancy_percent" and by_tma and _between(row, 0.4, 0.8)


def _is_last_wave(row: Comparison, rung: OfRung) -> bool:
    return row.count == "achieved_occupancy_percent" and row.simulated == 100 and _between(row, 0.5, 1.0)


def _is_occupancy(row: Comparison, rung: OfRung) -> bool:
    return row.count == "achieved_occupancy_percent" and _within_points(row, 12)


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
        "serve the traffic of L1 too, and what cp.async writes (swizzle/stages_4: 1.1 %). It is never less than the "
        "rule gives, and how much more depends on timing. The count from addresses does not depend on it.",
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
        "cp.async writes shared memory past the store unit: Nsight Compute counts it as LDGSTS, and neither as a store "
        "nor among the hardware's wavefronts of stores (docs/decisions/0005). This record was taken when the "
        "simulator's sums held both; since then they are kept apart. The count from addresses has both, and is equal.",
        _is_asynchronous_copy,
    ),
    Difference(
        "copies past L1 that are switched off",
        "`if` around a single copy becomes a predicate (@!P0 LDGSTS.BYPASS.128 on swizzle/async_copy), which is false "
        "in all warps at the last step of k. The source page has no addresses of such a copy and takes the worst: 32 "
        "wavefronts each, of which 4 are ideal. Both differences must name the same number of copies, and it must "
        "divide the copies that ran: 128 of 8,192, which is one step of 64.",
        _is_copy_switched_off,
    ),
    Difference(
        "copies past L1, and where they read",
        "The simulator counts what a copy of 16 bytes (LDGSTS.BYPASS.128) writes, as a store. The source page also "
        "asks how lines of the source fall on lines of 128 bytes of the target: in rows padded by 32 bytes some lines "
        "of the source span two of the target. On swizzle/stages_2 to layers that makes 10 wavefronts of 8 for A and 7 "
        "of 4 for B (the mean of four rows), in every step but the first: a test holds the sum to the unit; why the "
        "first is counted as a store is not known. By the clock such copies take nothing like it "
        "(docs/decisions/0005), so the simulator leaves it out. At most 32 a copy, and the ideal must be equal.",
        _is_copy_past_l1,
    ),
    Difference(
        "stores that the compiler merged",
        "Every thread of te/2 writes the same tile, element after element. The compiler unrolls that loop and makes "
        "four stores one of 16 bytes, which takes four wavefronts: the wavefronts are equal, the stores are a quarter, "
        "and with them go the closings of the loop. (Merging is switched off for loads only.)",
        _is_of_merged_stores,
    ),
    Difference(
        "instructions that no statement asks for",
        "The simulator counts what the kernel's text asks for. The compiler adds the arithmetic of addresses "
        "(integer multiply-adds run in the FMA pipe), loads of constants, and the closing of loops; on Hopper also "
        "the descriptors of each wgmma, and each further look at a barrier that is not complete yet. Never fewer; at "
        "most four times as many, and of the FMA pipe at most two fifths of all instructions.",
        _is_whole_program,
    ),
    Difference(
        "what else takes the load/store pipe",
        "Reads of the thread's index (S2R), shuffles, and registers spilled to memory (te/2) run there too; on "
        "te/2 to te/5 the machine code has exactly as many of them, on ampere/4 each of 128 warps 67 S2R and 3 "
        "LDGDEPBAR (8,960). Before each group of cp.async on Hopper the compiler puts three loads that are "
        "switched off (@!PT LDS). Fewer are counted where the kernel skips an access: with beta = 0 no lane reads "
        "C, which the simulator counts as an instruction that touches nothing, and the compiler branches around "
        "it. Never fewer than the accesses above; what is added is at most 4 % of all instructions.",
        _is_load_store_pipe,
    ),
    Difference(
        "accesses that are switched off",
        "An `if` around a load and its store becomes a predicate (@!P0 LDG, @!P0 STS): a warp of which no lane takes "
        "part issues them too, and touches nothing. On hierarchy/v02_vectorised 8 of 32 warps stage a tile, and three "
        "times as many execute it for nothing. What is added must be a whole multiple of the loads and stores that "
        "ran.",
        _is_access_switched_off,
    ),
    Difference(
        "constants made in the tensor pipe",
        "The compiler sets some registers to constants by HFMA2.MMA, which runs in the tensor pipe, also in kernels "
        "that multiply no tiles. On te/0, te/1, te/3 and te/5 the machine code has exactly as many. At most a tenth of "
        "all instructions.",
        _is_constant,
    ),
    Difference(
        "no estimate",
        "The L2 hit rate is not estimated for kernels that do not stage whole strips of A and B, nor where a block "
        "learns its tile behind a branch, as with warp roles (docs/l2.md). The oldest records hold no estimates.",
        _has_no_estimate,
    ),
    Difference(
        "an estimate",
        "The L2 hit rate depends on which blocks run at the same time: it is estimated, not counted (docs/l2.md). "
        "Within 15 points at a size whose every strip is read once.",
        _is_l2,
    ),
    Difference(
        "read again and again",
        "Each of the 256 threads of a block of te/2 reads the whole tile. What L1 no longer has is then found in L2, "
        "while the estimate has each block read its strips once. Only where A and B are read 100 times or more.",
        _is_read_again,
    ),
    Difference(
        "warps without work",
        "The simulated figure keeps all warps of a block to its end. With warp roles one warp of the producer's "
        "four works and three end at once; where two ping-pong groups of consumers share a block of a single tile, "
        "one group ends at once too. So 5 of 8 warps stay, 9 of 12, or 5 of 12, less what blocks take to start and "
        "end. (Blocks of a cluster end together, with all their warps: hopper/7.) From 0.4 to 0.8 of the simulated "
        "figure, in kernels whose loads TMA makes.",
        _is_idle_warps,
    ),
    Difference(
        "blocks that have not started, or have ended",
        "The simulated figure has every SM that gets blocks hold them for the whole run. Blocks start one after the "
        "other and end at different times, and the counter is a mean over that. Within 12 points.",
        _is_occupancy,
    ),
    Difference(
        "two blocks fill an SM, and end apart",
        "Two blocks of 1024 threads fill an SM, and at this size all blocks run at once: when one of the two ends, "
        "none takes its place, and some SMs have had one only. So the mean lies between a half and the simulated "
        "figure.",
        _is_last_wave,
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
