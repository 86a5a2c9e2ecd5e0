"""What a candidate is predicted to take before it is compiled: the order in which a search tries candidates.

`Model` is all that a search knows of a prediction; a better model takes the place of `Analytical` by having its one
method. What stands here reads occupancy, waves of tiles, the pace of the multiplying unit and the bytes that the L2 and
the memory must move. It is meant to put good candidates among the first, not to be near the time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Protocol

from tilewright.device.spec import DeviceSpec
from tilewright.errors import TilewrightError
from tilewright.model.occupancy import occupancy
from tilewright.toolchain import Build, grid_of
from tilewright.tuner.space import Candidate, Space
from tilewright.units import ceil_div

_MMA_SHARE = {(9, 0): 0.62}
"""What mma.sync reaches of the peak of wgmma, by compute capability. Measured: H200, benchmarks/results/matrix_rate_h200.json."""

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


def ranked(model: Model, candidates: Sequence[Candidate]) -> list[tuple[float, Candidate]]:
    """Candidates with their predicted times, the best first; those that the model refuses are left out."""
    found = []
    for candidate in candidates:
        try:
            found.append((model.predicted_us(candidate), candidate))
        except TilewrightError:
            continue
    return sorted(found, key=lambda pair: (pair[0], pair[1].key))


def spread(candidates: Sequence[Candidate], most: int) -> list[Candidate]:
    """At most so many candidates, evenly spread over each rung, so that ranking a large space takes no longer."""
    by_rung: dict[str, list[Candidate]] = {}
    for candidate in candidates:
        by_rung.setdefault(candidate.rung, []).append(candidate)
    each = max(1, most // max(1, len(by_rung)))
    found: list[Candidate] = []
    for members in by_rung.values():
        step = max(1, ceil_div(len(members), each))
        found += members[::step]
    return found


def seeds(space: Space, model: Model, most: int) -> list[Candidate]:
    """What to measure first: where each rung itself stands, then the best ranked, few of each rung and tile."""
    defaults = [found for rung in space.rungs if (found := space.default(rung)) is not None]
    order = [candidate for _, candidate in ranked(model, [*defaults, *spread(space.candidates, _RANKED)])]
    first = [candidate for candidate in order if candidate in defaults]
    alike: dict[tuple[str, ...], int] = {}
    chosen = [candidate for candidate in dict.fromkeys(first) if space.is_legal(candidate)][:most]
    for candidate in dict.fromkeys(order):
        tiles = space.build(candidate).kernel.tile if len(chosen) < most else {}
        kind = (candidate.rung, *(f"{name} {value}" for name, value in tiles.items()))
        if len(chosen) < most and candidate not in chosen and alike.get(kind, 0) < _ALIKE and space.is_legal(candidate):
            alike[kind] = alike.get(kind, 0) + 1
            chosen.append(candidate)
    return chosen


_RANKED = 300
"""Candidates that are ranked: each takes some milliseconds."""

_ALIKE = 2
