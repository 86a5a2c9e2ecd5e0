"""Which kernels could compute a problem, the most promising first: the analytical choice.

A candidate's time is estimated as waves of tiles at the rate that its kind of tile reaches, and never less than memory
needs. The rates are shares of the peak, rounded from measurements on the H200 (2026-11-21); what matters is their
order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import mul
from typing import Any, Literal, Protocol

from tilewright.device.spec import DeviceSpec
from tilewright.dtypes import F16, F32
from tilewright.frontend.layouts import Stack
from tilewright.problem.gemm import Gemm, OperandName, Order
from tilewright.units import ceil_div
from tilewright.winners.choice import Choice

ENGINE_BYTES = 16
"""What addresses and leading dimensions must be multiples of, for the copy engine."""

LAUNCH_US = 2.0
"""Start and end of a kernel in a stream of others, roughly; measured as what 256^3 takes."""

RAMP_US = 1.5
"""Until a kernel's first loads are there and its last stores are done, roughly."""

PADDED: tuple[OperandName, ...] = ("A", "B")


class Database(Protocol):
    """Choices that were measured."""

    def best_choice(
        self, device: str, gemm: Gemm, alignment_bytes: int, order: str | None = None
    ) -> Choice | None:
        """What won on a device, by its driver's name for it; None if nobody tuned the problem.

        order: only kernels of this reduction order, by its name.
        """
        ...


@dataclass(frozen=True, slots=True)
class Candidate:
    """A kind of tile: elements of m, n and k, the share of the peak (0 .. 1) it reaches, blocks on an SM at once, and
    the time that an SM waits between two tiles. walks: its blocks walk over the tiles of one problem."""

    rung: str
    point: Mapping[str, Any]
    m: int
    n: int
    k: int
    share: float
    needs_engine: bool = False
    splits: bool = False
    per_sm: int = 1
    between_us: float = 0.0
    walks: bool = False


@dataclass(frozen=True, slots=True)
class Alignment:
    """Bytes that the address and the rows of each matrix are multiples of, at most 16."""

    a: int
    b: int
    c: int

    def of(self, name: OperandName) -> int:
        return {"A": self.a, "B": self.b, "C": self.c}[name]

    @property
    def least(self) -> int:
        return min(self.a, self.b, self.c)


def candidates(gemm: Gemm, spec: DeviceSpec) -> Iterator[Candidate]:
    """What can multiply the formats of a problem on a device, by kind of tile; nothing where no unit is made for them,
    and the kernel that multiplies everything must do."""
    if gemm.multiplied is F32:
        yield from _fp32()
    elif peak_flop_per_us(gemm, spec):
        if spec.compute_capability[0] == 9:
            yield from _hopper(gemm)
        if spec.compute_capability >= (8, 0):
            yield from _ampere(gemm, spec)
        elif gemm.dtype is F16:
            yield Candidate("hierarchy/wmma_vectorised", {}, 128, 128, 16, 0.4)


def _fp32() -> Iterator[Candidate]:
    from tilewright.ladders.worklog.r13_best import BEST

    for bm, bn, wm, wn, share, per_sm in (
        (128, 256, 64, 64, 0.765, 1),
        (256, 128, 64, 64, 0.745, 1),
        (128, 128, 64, 64, 0.66, 1),
        (128, 64, 64, 32, 0.55, 2),
        (64, 64, 32, 32, 0.42, 4),
        (32, 64, 16, 32, 0.30, 4),
    ):
        point = {**BEST, "bm": bm, "bn": bn, "wm": wm, "wn": wn}
        yield Candidate("worklog/best", point, bm, bn, 16, share, splits=True, per_sm=per_sm)


def _hopper(gemm: Gemm) -> Iterator[Candidate]:
    from tilewright.ladders.hopper.r9_best import SHARED, TURNS

    elements = 128 // gemm.dtype.bytes
    # The wait between tiles: measured in clocks, see ladders/hopper/r9_best.py, at the clock of a warm card.
    for start, between_us in ((SHARED, 1.4), (TURNS, 0.66)):
        yield Candidate(
            "hopper/best", start, start["m"], start["n"], elements, 0.87, True, between_us=between_us, walks=True
        )
    for m, n, groups, stages, share in (
        (128, 256, 2, 4, 0.85),
        (128, 192, 2, 4, 0.82),
        (128, 128, 2, 6, 0.72),
        (64, 256, 1, 4, 0.60),
        (64, 128, 1, 6, 0.52),
        (64, 64, 1, 8, 0.33),
    ):
        point = {"m": m, "n": n, "groups": groups, "stages": stages}
        yield Candidate("hopper/shared_b", point, m, n, elements, share, True, splits=True, between_us=2.0)


_WITHOUT_WARPGROUPS = 0.62
"""What mma.sync reaches of the rate of wgmma, on devices that have both. Measured on the H200."""


def _ampere(gemm: Gemm, spec: DeviceSpec) -> Iterator[Candidate]:
    from tilewright.ladders.ampere.r6_full import BEST

    reached = _WITHOUT_WARPGROUPS if spec.compute_capability[0] == 9 else 1.0
    for m, n, warp_m, warp_n, stages, share, per_sm in (
        (128, 256, 64, 64, 3, 0.68, 1),
        (128, 128, 64, 32, 3, 0.58, 2),
        (64, 64, 32, 32, 4, 0.35, 3),
    ):
        point = {**BEST, "m": m, "n": n, "warp_m": warp_m, "warp_n": warp_n, "stages": stages}
        depth = 128 // gemm.dtype.bytes
        yield Candidate("ampere/full", point, m, n, depth, share * reached, splits=True, per_sm=per_sm)


def order_read(rung: str, gemm: Gemm, name: OperandName) -> Order:
    """How a kernel must find A or B: wgmma turns tiles of 2-byte elements, and no others."""
    if rung.startswith("hopper/") and gemm.dtype.bytes == 4:
        return Order.ROW if name == "A" else Order.COL
    return gemm.operand(name).order


def copied_first(rung: str, gemm: Gemm, alignment: Alignment) -> frozenset[OperandName]:
    """A and B, as far as a kernel cannot read them as they lie."""
    if not rung.startswith("hopper/"):
        return frozenset()
    return frozenset(
        name
        for name in PADDED
        if alignment.of(name) < ENGINE_BYTES or order_read(rung, gemm, name) is not gemm.operand(name).order
    )


def fitted(choice: Choice, gemm: Gemm, alignment: Alignment) -> Choice:
    """A choice that was measured for a problem like this one, with the copies that this one needs, and no others."""
    narrow = frozenset(name for name in PADDED if alignment.of(name) < ENGINE_BYTES)
    return replace(choice, pads=copied_first(choice.rung, gemm, alignment) | (choice.pads & narrow))


def peak_flop_per_us(gemm: Gemm, spec: DeviceSpec) -> float:
    """What the device could do in a microsecond with the formats of a problem."""
    if gemm.multiplied is F32:
        return 2.0 * spec.fp32_lanes_per_sm * spec.sm_count * spec.boost_clock_mhz
    return spec.peak_tensor_tflops("tf32" if gemm.multiplies_tf32 else gemm.dtype.name) * 1e6


_NARROW: Mapping[int, float] = {16: 1.0, 8: 0.94, 4: 0.65, 2: 0.21, 1: 0.21}
"""What is left of the speed of copies by 16 bytes where only so many are legal: measured on the H200 with 16-bit
operands."""


def estimate_us(
    gemm: Gemm,
    spec: DeviceSpec,
    tile: Candidate,
    splits: int = 1,
    pads: frozenset[OperandName] = frozenset(),
    *,
    alignment_bytes: int = 16,
    count: int = 1,
) -> float:
    """About how long a problem takes, or `count` of them in one launch. alignment_bytes: of all addresses and rows."""
    blocks = ceil_div(gemm.m, tile.m) * ceil_div(gemm.n, tile.n) * splits * count
    depth = ceil_div(ceil_div(gemm.k, splits), tile.k) * tile.k
    waves = ceil_div(blocks, spec.sm_count)
    narrow = _NARROW[alignment_bytes] if gemm.dtype.bytes == 2 and not tile.needs_engine else 1.0
    rate = peak_flop_per_us(gemm, spec) / spec.sm_count * tile.share * narrow
    product_us = waves * (2.0 * tile.m * tile.n * depth / rate + tile.between_us)
    memory_us = count * gemm.compulsory_bytes / (spec.dram_gb_per_s * 0.87e3)
    total = LAUNCH_US + max(product_us + RAMP_US, memory_us)
    if splits > 1:
        total += LAUNCH_US + RAMP_US + (splits + 1) * gemm.m * gemm.n * 4 / (spec.dram_gb_per_s * 1e3)
    for name in pads:
        copied = 2 * count * gemm.storage_elements(name) * gemm.dtype.bytes
        total += LAUNCH_US + RAMP_US + copied / (spec.dram_gb_per_s * 0.8e3)
    return total


def choices(
    gemm: Gemm, spec: DeviceSpec, alignment: Alignment, *, keep_order: bool = False, stack: Stack | None = None
) -> list[tuple[float, Choice]]:
    """Candidates with their estimated times, best first. keep_order: never share out a sum over k. stack: where the
    problem is one of many."""
    found: list[tuple[float, Choice]] = []
    # A map of a stack has a step between its matrices, which must be one.
    engine = gemm.k > 0 and (stack is None or min(stack.a, stack.b) > 0)
    for tile in candidates(gemm, spec):
        pads = copied_first(tile.rung, gemm, alignment)
        if (tile.needs_engine and not engine) or (tile.walks and stack is not None):
            continue
        alone = keep_order or stack is not None or not tile.splits
        count = 1 if stack is None else stack.count
        for splits in [1] if alone else _split_counts(gemm, spec, tile):
            least = alignment.least
            time_us = estimate_us(gemm, spec, tile, splits, pads, alignment_bytes=least, count=count)
            found.append((time_us, Choice(tile.rung, tile.point, splits, pads)))
    return sorted(found, key=lambda pair: pair[0])


def choices_for_list(gemms: Sequence[Gemm], spec: DeviceSpec) -> list[Choice]:
    """Candidates for problems that one launch computes, best first. Their blocks share the SMs, and the longest sum is
    the least that it takes."""
    found: list[tuple[float, int, Choice]] = []
    for number, tile in enumerate(candidates(gemms[0], spec)):
        if tile.needs_engine:
            continue
        depths = [ceil_div(gemm.k, tile.k) for gemm in gemms]
        tiles = [ceil_div(gemm.m, tile.m) * ceil_div(gemm.n, tile.n) for gemm in gemms]
        steps = max(sum(map(mul, tiles, depths)) / spec.sm_count, max(depths))
        found.append((steps * tile.m * tile.n * tile.k / tile.share, number, Choice(tile.rung, tile.point)))
    return [choice for _, _, choice in sorted(found, key=lambda entry: entry[:2])]


def _split_counts(gemm: Gemm, spec: DeviceSpec, tile: Candidate) -> Iterator[int]:
    """1, and how often k may be shared out while whole blocks are idle and each part is worth its start."""
    yield 1
    tiles = ceil_div(gemm.m, tile.m) * ceil_div(gemm.n, tile.n)
    room = spec.sm_count * tile.per_sm
    most = min(room // max(tiles, 1), gemm.k // (8 * tile.k))
    for splits in (2, 3, 4, 6, 8, 12, 16, 24, 32):
        if splits <= most:
            yield splits


Precision = Literal["default", "tf32"]
