"""ldmatrix in the simulator: who gets what, what it costs, and what is wrong."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from collective_kernels import (
    LANE,
    THREAD,
    around,
    dumped,
    flat_tile,
    operands_with,
    place,
)
from simulated_kernels import at, less, registers, without

from tilewright.dtypes import F16, F32, DType
from tilewright.ir.expr import Binary, Const, Expr, Op
from tilewright.ir.kernel import Kernel
from tilewright.ir.stmt import Barrier, If, LoadMatrices
from tilewright.simulator import Finding, Kind, Listener, Run, simulate
from tilewright.simulator.findings import Access

ELEMENTS = 64 * 128


def loading(
    source: Expr,
    count: int = 4,
    *,
    transposed: bool = False,
    dtype: DType = F16,
    threads: int = 32,
    filled: bool = True,
) -> Kernel:
    tile, fragment = flat_tile(ELEMENTS, dtype), registers("fragment", count * 4 // dtype.bytes, dtype=dtype)
    load = LoadMatrices(at(fragment, 0), place(tile, source), count, transposed, origin="A_frag")
    return around(load, tile=tile, fragment=fragment, threads=threads, filled=filled)


def run(kernel: Kernel, **options: Any) -> tuple[np.ndarray, Run]:
    """What A held, and the run."""
    values = np.arange(ELEMENTS) % 2048
    return values, simulate(kernel, operands_with(kernel.gemm, values), **options)


def findings(kernel: Kernel, **options: Any) -> tuple[Finding, ...]:
    return run(kernel, on_finding="collect", **options)[1].findings


def xored(pitch: int) -> Expr:
    """Row l, the 16-byte piece 2 of it; pieces permuted by the row."""
    piece = Binary(Op.XOR, Const(2), LANE % 8)
    return LANE * pitch + piece * 8


PLACES = {"pitch 64 bytes": LANE * 32, "pitch 80 bytes": LANE * 40, "pitch 128 bytes": LANE * 64, "xor": xored(64)}


def row_starts(name: str) -> np.ndarray:
    lane = np.arange(32)
    pitch = {"pitch 64 bytes": 32, "pitch 80 bytes": 40, "pitch 128 bytes": 64}.get(name)
    return lane * pitch if pitch else lane * 64 + (2 ^ lane % 8) * 8


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("name", PLACES)
def test_lanes_get_their_elements(name: str, transposed: bool, count: int) -> None:
    values, done = run(loading(PLACES[name], count, transposed=transposed))
    got, starts = dumped(done.c, 32, 2 * count), row_starts(name)
    for lane in range(32):
        for matrix in range(count):
            rows = [values[starts[8 * matrix + row] :][:8] for row in range(8)]
            quad, pair = lane // 4, lane % 4 * 2
            first, second = (rows[pair][quad], rows[pair + 1][quad]) if transposed else rows[quad][pair : pair + 2]
            assert (got[lane, 2 * matrix], got[lane, 2 * matrix + 1]) == (first, second)


@pytest.mark.parametrize("count", [1, 2, 4])
def test_elements_of_four_bytes(count: int) -> None:
    values, done = run(loading(LANE * 36, count, dtype=F32))
    got = dumped(done.c, 32, count)
    for lane in range(32):
        for matrix in range(count):
            assert got[lane, matrix] == values[(8 * matrix + lane // 4) * 36 + lane % 4]


def test_several_warps_each_their_own() -> None:
    values, done = run(loading(THREAD * 40, threads=64))
    got = dumped(done.c, 64, 8)
    assert got[32 + 5, 2] == values[(32 + 8 + 1) * 40 + 2]
    assert done.counters.instructions["LDSM"] == 2


@pytest.mark.parametrize(
    ("name", "each"), [("pitch 64 bytes", 4), ("pitch 80 bytes", 1), ("pitch 128 bytes", 8), ("xor", 1)]
)
@pytest.mark.parametrize("count", [1, 2, 4])
def test_bank_conflicts_count_matrix_by_matrix(name: str, each: int, count: int) -> None:
    counters = run(loading(PLACES[name], count))[1].counters
    loads = counters.shared_loads
    assert (loads.instructions, loads.requests, loads.lanes) == (1, 1, 8 * count)
    assert (loads.wavefronts, loads.ideal_wavefronts) == (each * count, count)
    assert loads.bytes_asked == 16 * 8 * count
    assert counters.instructions["LDSM"] == 1 and counters.of_origin("A_frag").shared_loads == loads
    assert counters.partial_requests == counters.guarded_off_lanes == 0
    (line,) = counters.of_origin("A_frag").lines
    assert (line.executions, line.lane_executions, line.width_bytes) == (1, 32, 16)


def test_matrices_do_not_merge_as_loads_do() -> None:
    """All lanes name one row: a load of 16 bytes takes two wavefronts, four matrices take four."""
    loads = run(loading(LANE * 0))[1].counters.shared_loads
    assert (loads.wavefronts, loads.ideal_wavefronts) == (4, 4)


class Seen(Listener):
    """The accesses that moved matrices."""

    def __init__(self) -> None:
        self.accesses: list[Access] = []

    def accessed(self, access: Access) -> None:
        if access.matrices:
            self.accesses.append(access)


def test_what_listeners_hear() -> None:
    seen = Seen()
    run(loading(LANE * 40, 2), listeners=(seen,))
    (heard,) = seen.accesses
    assert (heard.matrices, heard.width, heard.guarded_off, heard.executing_lanes) == (2, 8, 0, 32)
    assert heard.pattern.active_lanes == 16


def test_lanes_that_name_no_row_may_point_anywhere() -> None:
    """Lanes 8 to 31 of an .x1 point at odd places far outside."""
    far = LANE * 8 + LANE // 8 * (ELEMENTS + 3)
    values, done = run(loading(far, 1))
    assert dumped(done.c, 32, 2)[4].tolist() == values[8:10].tolist()


def test_a_misaligned_row_is_found() -> None:
    (found,) = findings(loading(LANE * 36))
    assert found.kind is Kind.MISALIGNED and found.element == 36
    assert found.headline == "An access of 16 bytes to tile is at byte 72, not at a multiple of 16."
    assert found.where.lanes == tuple(range(1, 32, 2))


def test_a_row_outside_the_buffer_is_found() -> None:
    (found,) = findings(loading(LANE * 272))
    assert (found.kind, found.where.lanes, found.element) == (Kind.OUT_OF_BOUNDS, (31,), 31 * 272)
    assert found.headline == "tile has 8192 elements; elements 8432 to 8439 are read."


def test_rows_that_nobody_wrote_are_found() -> None:
    (found, *_) = findings(loading(LANE * 40, filled=False))
    assert found.kind is Kind.UNWRITTEN and found.buffer == "tile"


def test_a_missing_barrier_is_found() -> None:
    bare = without(loading(LANE * 40, threads=64), lambda stmt: isinstance(stmt, Barrier))
    assert Kind.RACE in {found.kind for found in findings(bare)}


def test_registers_beyond_the_array_are_found() -> None:
    tile, fragment = flat_tile(ELEMENTS), registers("fragment", 6, dtype=F16)
    load = LoadMatrices(at(fragment, 0), place(tile, LANE * 40), 4)
    (found,) = findings(around(load, tile=tile, fragment=fragment))
    assert found.kind is Kind.OUT_OF_BOUNDS and "fragment has 6 elements" in found.headline


def test_a_part_of_a_warp_in_a_branch_is_found() -> None:
    tile, fragment = flat_tile(ELEMENTS), registers("fragment", 8, dtype=F16)
    load = LoadMatrices(at(fragment, 0), place(tile, LANE * 40), 4)
    kernel = around(If(less(THREAD, 40), (load,)), tile=tile, fragment=fragment, threads=64)
    found = next(found for found in findings(kernel) if found.kind is Kind.PARTED_WARP)
    assert found.where.warp == 1 and found.where.lanes == tuple(range(8))
    assert found.headline == "An instruction of the whole warp is reached by a part of it."


def test_a_block_of_less_than_whole_warps_is_found() -> None:
    tile, fragment = flat_tile(48 * 128), registers("fragment", 2, dtype=F16)
    load = LoadMatrices(at(fragment, 0), place(tile, LANE * 40), 1)
    kernel = around(load, tile=tile, fragment=fragment, threads=48)
    done = simulate(kernel, operands_with(kernel.gemm, np.zeros(48 * 128)), on_finding="collect")
    (found,) = done.findings
    assert found.kind is Kind.PARTED_WARP and found.where.warp == 1 and found.where.lanes == tuple(range(16))


def test_whole_warps_may_stay_away() -> None:
    tile, fragment = flat_tile(ELEMENTS), registers("fragment", 8, dtype=F16)
    load = LoadMatrices(at(fragment, 0), place(tile, LANE * 40), 4)
    kernel = around(If(less(THREAD, 32), (load,)), tile=tile, fragment=fragment, threads=64)
    done = run(kernel, on_finding="collect")[1]
    assert {found.kind for found in done.findings} == {Kind.UNWRITTEN}  # the other warp's registers, when dumped
    assert done.counters.shared_loads.lanes == 32 and done.counters.instructions["LDSM"] == 1
