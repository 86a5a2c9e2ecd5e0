"""wmma tiles in the simulator: loaded and stored in both orders, multiplied, counted, and what is wrong with them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import numpy as np
import pytest
from collective_kernels import THREAD, WARP, around, dumped, fill, flat_tile, operands_with, place, problem
from simulated_kernels import C, at, kernel, loop, registers, shared, without

from tilewright.dtypes import F32, TF32
from tilewright.ir.expr import Cast, Const, Expr, Load, Ref, Var, real
from tilewright.ir.kernel import Kernel
from tilewright.ir.stmt import Alloc, Assign, Barrier, LoadFragment, Move, MultiplyTiles, StoreFragment
from tilewright.ir.visit import walk
from tilewright.isa.catalog import INSTRUCTIONS
from tilewright.isa.instruction import MatrixInstruction
from tilewright.isa.wmma import WMMA_F16_F32, WMMA_TF32_F32
from tilewright.problem.gemm import Order
from tilewright.simulator import Finding, Kind, Run, simulate
from tilewright.simulator.opaque_tiles import load_access, operand_fragment, store_access

WMMA = [known for known in INSTRUCTIONS if known.is_opaque]
ELEMENTS = 2048


def memory_type(known: MatrixInstruction) -> Any:
    return F32 if known.product is TF32 else known.product


def at_tile(row: int, column: int, order: Order, leading: int) -> int:
    return row * leading + column if order is Order.ROW else column * leading + row


@pytest.mark.parametrize("order", Order)
@pytest.mark.parametrize("known", WMMA, ids=lambda i: i.name)
def test_the_lanes_touch_every_element_once(known: MatrixInstruction, order: Order) -> None:
    accesses = [load_access(known, "A", order), load_access(known, "B", order), store_access(known, order)]
    for access in accesses:
        numbers = np.sort(access.holding().numbers.reshape(-1))
        assert (numbers == np.arange(access.rows * access.columns)).all()


def loading(
    known: MatrixInstruction,
    role: Literal["A", "B"],
    order: Order,
    leading: int,
    corner: Expr | int = 64,
    *,
    threads: int = 32,
) -> Kernel:
    """A tile from `corner` on into a fragment, which is dumped as the simulator holds it."""
    dtype = memory_type(known)
    tile = flat_tile(ELEMENTS, dtype)
    held = registers("fragment", operand_fragment(known, role).registers, dtype=dtype)
    load = LoadFragment(at(held, 0), place(tile, corner), known, role, order, leading, origin="frag")
    return around(load, tile=tile, fragment=held, threads=threads)


def run(kernel: Kernel, **options: Any) -> tuple[np.ndarray, Run]:
    values = np.arange(ELEMENTS) % 251  # exact in bf16 too
    return values, simulate(kernel, operands_with(kernel.gemm, values), **options)


def findings(kernel: Kernel) -> tuple[Finding, ...]:
    return run(kernel, on_finding="collect")[1].findings


@pytest.mark.parametrize("order", Order)
@pytest.mark.parametrize("role", ["A", "B"])
@pytest.mark.parametrize("known", WMMA, ids=lambda i: i.name)
def test_a_fragment_holds_the_tile(known: MatrixInstruction, role: Any, order: Order) -> None:
    values, done = run(loading(known, role, order, 40))
    fragment = operand_fragment(known, role)
    got = dumped(done.c, 32, fragment.registers)
    rows, columns = fragment.places()
    for lane in range(32):
        for register in range(fragment.numbered):
            row, column = int(rows[lane, register]), int(columns[lane, register])
            assert got[lane, register] == values[64 + at_tile(row, column, order, 40)]
    assert (got[:, fragment.numbered :] == 0).all()


def multiplying(known: MatrixInstruction, orders: tuple[Order, Order, Order], leading: int, *, rounded: bool) -> Kernel:
    """C_tile = A_tile @ B_tile, which lie one behind the other in a tile filled from A."""
    dtype = memory_type(known)
    source, target = flat_tile(ELEMENTS, dtype), shared("C_tile", 16 * leading, dtype=known.accumulate)
    a, b = (registers(name, operand_fragment(known, role).registers, dtype=dtype) for name, role in ("aA", "bB"))
    total, out = registers("sum", known.c.registers, dtype=known.accumulate), registers("out", dtype=known.accumulate)
    wide = registers("wide")
    round_to = [loop("r", x.elements, Assign(at(x, Var("r")), Cast(TF32, Load(x, (Var("r"),))))) for x in (a, b)]
    element = Var("round") * 32 + THREAD
    body = (
        *fill(source, threads=32),
        *(Alloc(a), Alloc(b), Alloc(total), Alloc(out), Alloc(wide)),
        LoadFragment(at(a, 0), place(source, 0), known, "A", orders[0], leading),
        LoadFragment(at(b, 0), place(source, 1024), known, "B", orders[1], leading),
        *(round_to if rounded else ()),
        loop("r", total.elements, Assign(at(total, Var("r")), Cast(known.accumulate, real(0)))),
        MultiplyTiles(known, at(total, 0), at(a, 0), at(b, 0), orders[:2]),
        StoreFragment(place(target, 0), at(total, 0), known, orders[2], leading, origin="C"),
        Barrier("the result is complete"),
        loop(
            "round",
            8,
            Move(at(out), place(target, _skipping_gaps(element, leading))),
            Assign(at(wide), Cast(F32, Load(out, (Const(0),)))),
            Move(Ref(C, (element,)), at(wide)),
        ),
    )
    gemm = problem(ELEMENTS, dtype)
    return kernel(body, shared_buffers=(source, target), gemm=gemm)


def _skipping_gaps(element: Expr, leading: int) -> Expr:
    """Element number `element` of 16 lines of 16; the gaps between lines nobody wrote."""
    return element // 16 * leading + element % 16


@pytest.mark.parametrize("c_order", Order)
@pytest.mark.parametrize("b_order", Order)
@pytest.mark.parametrize("a_order", Order)
@pytest.mark.parametrize("known", WMMA, ids=lambda i: i.name)
def test_tiles_are_multiplied(known: MatrixInstruction, a_order: Order, b_order: Order, c_order: Order) -> None:
    leading = 24
    kernel = multiplying(known, (a_order, b_order, c_order), leading, rounded=known.product is TF32)
    values = (np.arange(ELEMENTS) * 7 % 13 - 6).astype(np.float64)
    done = simulate(kernel, operands_with(kernel.gemm, values))

    def matrix(first: int, rows: int, columns: int, order: Order) -> np.ndarray:
        return np.array([[values[first + at_tile(r, c, order, leading)] for c in range(columns)] for r in range(rows)])

    product = matrix(0, 16, known.k, a_order) @ matrix(1024, known.k, 16, b_order)
    got = np.asarray(done.c)[:256].reshape(16, 16)
    assert (got == (product if c_order is Order.ROW else product.T)).all()
    assert done.counters.fmas == known.multiply_adds and done.counters.instructions["HMMA"] == (
        4 if known.product is TF32 else 2
    )


@pytest.mark.parametrize(("leading", "each"), [(32, 4), (40, 1), (64, 8)])
@pytest.mark.parametrize("order", Order)
def test_tiles_of_16_bits_are_read_as_matrices(order: Order, leading: int, each: int) -> None:
    counters = run(loading(WMMA_F16_F32, "A", order, leading))[1].counters
    assert counters.instructions["LDSM"] == 1
    loads = counters.of_origin("frag").shared_loads
    assert (loads.requests, loads.bytes_asked) == (1, 512)
    assert (loads.wavefronts, loads.ideal_wavefronts) == (4 * each, 4)


def test_tiles_of_32_bits_are_read_in_four_instructions() -> None:
    counters = run(loading(WMMA_TF32_F32, "A", Order.ROW, 36))[1].counters
    (line,) = counters.of_origin("frag").lines
    assert dict(line.opcodes) == {"LDS": 4} and (line.executions, line.lane_executions, line.requests) == (1, 32, 4)
    assert (line.wavefronts, line.ideal_wavefronts, line.bytes_asked) == (4, 4, 512)


@pytest.mark.parametrize(
    ("known", "order", "opcode", "count"),
    [
        (WMMA_F16_F32, Order.ROW, "STS.64", 4),
        (WMMA_F16_F32, Order.COL, "STS", 8),
        (INSTRUCTIONS[1], Order.ROW, "STS", 4),
        (INSTRUCTIONS[1], Order.COL, "STS", 4),
    ],
)
def test_stores_are_counted_as_compiled(known: MatrixInstruction, order: Order, opcode: str, count: int) -> None:
    kernel = multiplying(known, (Order.ROW, Order.ROW, order), 24, rounded=False)
    counters = simulate(kernel, operands_with(kernel.gemm, np.ones(ELEMENTS))).counters
    (line,) = counters.of_origin("C").lines
    assert line.kind == "store" and dict(line.opcodes) == {opcode: count} and line.executions == 1
    assert (line.requests, line.bytes_asked) == (count, 256 * known.accumulate.bytes)
    assert line.ideal_wavefronts == 8 * known.accumulate.bytes // 4


def test_a_corner_that_is_not_aligned_is_found() -> None:
    (found,) = findings(loading(WMMA_F16_F32, "A", Order.ROW, 40, corner=72))
    assert found.kind is Kind.MISALIGNED
    assert found.headline == "A tile of tile begins at byte 144, not at a multiple of 32."


@pytest.mark.parametrize("of_warp", [0, 8, 16, 24])
@pytest.mark.parametrize("first", [0, 8, 16, 24, 64])
def test_a_tile_begins_where_its_warp_and_the_rest_of_its_place_say(of_warp: int, first: int) -> None:
    """Warps 0 and 1, each at its own corner: what is looked at is the sum of both parts."""
    corner = Var("threadIdx.x") // 32 * of_warp + first
    found = findings(loading(WMMA_F16_F32, "A", Order.ROW, 40, corner=corner, threads=64))
    wrong = [warp for warp in range(2) if (warp * of_warp + first) * 2 % 32]
    assert [one.where.warp for one in found if one.kind is Kind.MISALIGNED] == wrong[:1]
    if wrong:
        assert f"begins at byte {(wrong[0] * of_warp + first) * 2}," in found[0].headline


@pytest.mark.parametrize("step", [8, 16, 24])
def test_each_corner_of_a_loop_is_looked_at(step: int) -> None:
    """The lanes name the same places relative to each other in every iteration: only the first element differs."""
    one = loading(WMMA_F16_F32, "A", Order.ROW, 40, corner=Var("i") * step)
    (load,) = (stmt for _, stmt in walk(one.body) if isinstance(stmt, LoadFragment))
    body = tuple(loop("i", 4, stmt) if stmt is load else stmt for stmt in one.body)
    wrong = sum(i * step * 2 % 32 != 0 for i in range(4))
    found = [each for each in findings(replace(one, body=body)) if each.kind is Kind.MISALIGNED]
    assert sum(each.occurrences for each in found) == wrong


def test_lines_that_are_not_aligned_are_found() -> None:
    found = findings(loading(WMMA_TF32_F32, "B", Order.COL, 38))
    assert [one.headline for one in found] == [
        "The columns of a tile of tile are 152 bytes apart, not a multiple of 16."
    ]


def test_lanes_that_name_different_places_are_found() -> None:
    found = findings(loading(WMMA_F16_F32, "A", Order.ROW, 40, corner=THREAD * 16))
    assert found[0].kind is Kind.PARTED_WARP and found[0].where.lanes == tuple(range(1, 32))
    assert found[0].headline == "Lanes of a warp name different places for one tile."
    assert findings(loading(WMMA_F16_F32, "A", Order.ROW, 40, corner=WARP * 16, threads=64)) == ()


def test_a_tile_that_leaves_the_buffer_is_found() -> None:
    (found,) = findings(loading(WMMA_F16_F32, "A", Order.ROW, 40, corner=ELEMENTS - 592))
    assert found.kind is Kind.OUT_OF_BOUNDS and "tile has 2048 elements" in found.headline


def test_races_and_unwritten_tiles_are_found() -> None:
    bare = without(loading(WMMA_F16_F32, "A", Order.ROW, 40, threads=64), lambda stmt: isinstance(stmt, Barrier))
    assert Kind.RACE in {found.kind for found in findings(bare)}
    late = without(
        multiplying(WMMA_F16_F32, (Order.ROW,) * 3, 24, rounded=False),
        lambda stmt: isinstance(stmt, Barrier) and "result" in stmt.note,
    )
    assert {found.buffer for found in findings(late) if found.kind is Kind.RACE} == {"C_tile"}
    empty = without(
        multiplying(WMMA_F16_F32, (Order.ROW,) * 3, 24, rounded=False), lambda stmt: isinstance(stmt, StoreFragment)
    )
    assert {(found.kind, found.buffer) for found in findings(empty)} == {(Kind.UNWRITTEN, "C_tile")}


def test_an_accumulator_that_nobody_wrote_is_found() -> None:
    zero = without(
        multiplying(WMMA_F16_F32, (Order.ROW,) * 3, 24, rounded=False), lambda stmt: isinstance(stmt, MultiplyTiles)
    )
    unset = without(zero, lambda stmt: isinstance(stmt, Assign) and stmt.dst.buffer.name == "sum")
    assert findings(zero) == ()
    assert {(found.kind, found.buffer) for found in findings(unset)} == {(Kind.UNWRITTEN, "sum")}
