"""What a candidate is predicted to take before it is compiled: the order in which a search tries candidates.

`Model` is all that a search knows of a prediction; a better model takes the place of `Analytical` by having its one
method. What stands here reads occupancy, waves of tiles, the pace of the multiplying unit and the bytes that the L2 and
the memory must move. It is meant to put good candidates among the first, not to be near the time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf, prod
from typing import Protocol

from tilewright.device.spec import DeviceSpec
from tilewright.errors import TilewrightError
from tilewright.model.occupancy import occupancy
from tilewright.toolchain import Build, grid_of
from tilewright.tuner.space import Candidate, Space
from tilewright.units import ceil_div

_MMA_SHARE = {(9, 0): 0.62}
"""What mma.sync reaches of the peak of wgmma, by compute capability. Measured: H200, matrix_rate_h200.json in
benchmarks/results."""

_FILL_CLK = 1500
"""Clocks from the start of a tile until its products run, roughly a trip to memory and one through the ring."""

_OTHER_REGISTERS = 40
"""Registers of a thread beside its sums: addresses and fragments, roughly."""

_LAUNCH_US = 2.0


class Model(Protocol):
    """Predicts times."""

    def predicted_us(self, candidate: Candidate) -> float:
        """Microseconds of one multiplication. Raises TilewrightError for a candidate that is no kernel."""
        ...


@dataclass(frozen=True)
class Analytical:
    """The model of this module, for one space."""

    space: Space

    def predicted_us(self, candidate: Candidate) -> float:
        built, spec = self.space.build(candidate), self.space.spec
        gemm, program, kernel = built.gemm, built.program, built.kernel
        tile_m, tile_n, tile_k = (program.block_tile(dim) for dim in ("m", "n", "k"))
        tiles = prod(grid_of(kernel, gemm))
        per_sm = max(1, _blocks_per_sm(built, spec))
        resident = spec.sm_count * (1 if kernel.resident else per_sm)
        depth = ceil_div(gemm.k, tile_k) * tile_k
        product_clk = 2 * tile_m * tile_n * depth / _flops_per_clk(built, spec)
        # Operands that blocks of a cluster share are read once for all of them.
        read = (tile_m + tile_n / kernel.cluster) * depth * gemm.dtype.bytes
        l2_clk = read / spec.l2_bytes_per_clk_per_sm
        tile_clk = max(product_clk, l2_clk, _shared_clk(built, spec, depth))
        hidden = kernel.resident or per_sm > 1
        turns = program.specialized.turns if program.specialized is not None else 1
        stored_clk = tile_m * tile_n * gemm.out.bytes / spec.l2_bytes_per_clk_per_sm / turns
        rounds = ceil_div(tiles, spec.sm_count)
        busy_clk = rounds * (tile_clk + stored_clk + (0 if hidden else _FILL_CLK)) + _FILL_CLK
        clock = spec.boost_clock_mhz if program.tensorized is None else spec.tensor_clock_mhz
        memory_us = _dram_bytes(built, min(resident, tiles)) / (spec.dram_gb_per_s * 1e3)
        return _LAUNCH_US + max(busy_clk / clock, memory_us)


def _flops_per_clk(built: Build, spec: DeviceSpec) -> float:
    """Of one SM, for what multiplies in a kernel."""
    used = built.program.tensorized
    if used is None:
        return spec.fp32_flops_per_clk_per_sm
    instruction = used.instruction
    rate = spec.tensor.flops_per_clk_per_sm(instruction.product.name, instruction.accumulate.name)
    share = 1.0 if instruction.reads_shared else _MMA_SHARE.get(spec.compute_capability, 1.0)
    return max(1.0, rate * share)


def _shared_clk(built: Build, spec: DeviceSpec, depth: int) -> float:
    """Clocks that the shared memory of an SM takes to feed the fragments of one tile."""
    program, gemm = built.program, built.gemm
    sums = program.sum_axes
    if not sums or (program.tensorized is not None and program.tensorized.instruction.reads_shared):
        return 0.0
    rows = prod(axis.extent or 1 for axis in sums if axis.dim == "m")
    columns = prod(axis.extent or 1 for axis in sums if axis.dim == "n")
    if program.tensorized is not None:
        rows, columns = rows * program.tensorized.instruction.m, columns * program.tensorized.instruction.n
        owners = program.threads_per_block // 32
    else:
        # Lanes of a warp that read the same word are served at once: about the square root of 32 each way.
        rows, columns = rows * 4, columns * 8
        owners = program.threads_per_block // 32
    read = owners * (rows + columns) * depth * gemm.dtype.bytes
    return read / spec.shared_bytes_per_clk_per_sm


def _blocks_per_sm(built: Build, spec: DeviceSpec) -> int:
    program = built.program
    if program.specialized is not None:
        registers = spec.max_registers_per_block // built.kernel.threads_per_block // 8 * 8
    else:
        sums = prod(axis.extent or 1 for axis in program.sum_axes)
        used = program.tensorized
        each = 1 if used is None else used.instruction.m * used.instruction.n // used.instruction.c.lanes
        registers = min(spec.max_registers_per_thread, sums * each + _OTHER_REGISTERS)
    try:
        return occupancy(
            spec,
            threads_per_block=built.kernel.threads_per_block,
            registers_per_thread=max(registers, 16),
            static_shared_bytes=built.kernel.shared_bytes,
        ).blocks_per_sm
    except TilewrightError:
        return 1


def _dram_bytes(built: Build, at_once: int) -> float:
    """What memory moves: each operand once, and again for each wave that has lost it from the L2."""
    gemm, program = built.gemm, built.program
    tile_m, tile_n = program.block_tile("m"), program.block_tile("n")
    rows, columns = ceil_div(gemm.m, tile_m), ceil_div(gemm.n, tile_n)
    group = program.raster.group if program.raster is not None else 1
    high = min(rows, max(group, 1))
    wide = min(columns, max(1, at_once // high))
    waves = ceil_div(rows, high) * ceil_div(columns, wide)
    read = waves * (high * tile_m + wide * tile_n) * gemm.k * gemm.dtype.bytes
    return max(gemm.compulsory_bytes, read * 0.5)


@dataclass(frozen=True, slots=True)
class Look:
    """What is known of a candidate before it is compiled. refusal: why it is no kernel here, "" if it is one.

    kind: its rung and tile.
    """

    candidate: Candidate
    predicted_us: float
    refusal: str = ""
    kind: str = ""


def look(space: Space, model: Model, candidate: Candidate) -> Look:
    """One candidate built and predicted: tens of milliseconds."""
    reasons = space.reasons(candidate)
    if reasons:
        return Look(candidate, inf, reasons[0])
    try:
        tiles = space.build(candidate).kernel.tile
        kind = " ".join([candidate.rung, *(f"{dim}{size}" for dim, size in tiles.items())])
        return Look(candidate, model.predicted_us(candidate), "", kind)
    except TilewrightError as refusal:
        return Look(candidate, inf, refusal.headline)


def ranked(looks: Iterable[Look]) -> list[Look]:
    """Those that are kernels, the best predicted first."""
    legal = (one for one in looks if not one.refusal)
    return sorted(legal, key=lambda one: (one.predicted_us, one.candidate.key))


def to_look_at(space: Space, most: int) -> list[Candidate]:
    """Where each rung itself stands, then at most so many, evenly spread over each rung: what can be ranked in time."""
    defaults = [found for rung in space.rungs if (found := space.default(rung)) is not None]
    return list(dict.fromkeys([*defaults, *spread(space.candidates, most)]))


def spread(candidates: Sequence[Candidate], most: int) -> list[Candidate]:
    """At most so many candidates and one a rung, each rung's evenly spread, small rungs whole."""
    by_rung: dict[str, list[Candidate]] = {}
    for candidate in candidates:
        by_rung.setdefault(candidate.rung, []).append(candidate)
    found: list[Candidate] = []
    left = most
    for rungs_left, members in zip(range(len(by_rung), 0, -1), sorted(by_rung.values(), key=len), strict=True):
        step = max(1, ceil_div(len(members), max(1, left // rungs_left)))
        found += members[::step]
        left -= len(members[::step])
    return found


def seeds(space: Space, order: Sequence[Look], most: int) -> list[Candidate]:
    """What to measure first: where each rung itself stands, then the best ranked, few of each rung and tile."""
    defaults = {found for rung in space.rungs if (found := space.default(rung)) is not None}
    chosen = [one.candidate for one in order if one.candidate in defaults][:most]
    alike: dict[str, int] = {}
    for one in order:
        if len(chosen) < most and one.candidate not in chosen and alike.get(one.kind, 0) < _ALIKE:
            alike[one.kind] = alike.get(one.kind, 0) + 1
            chosen.append(one.candidate)
    return chosen


_ALIKE = 2
"""Candidates of one rung and tile among the first: they are predicted alike."""
