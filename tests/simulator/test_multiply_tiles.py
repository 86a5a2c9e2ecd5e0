"""Tiles multiplied by tensor cores in the simulator: results, counts, formats, findings, exact arithmetic."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from simulated_kernels import A, B, C, at, kernel, less, loop, registers, value

from tilewright.dtypes import F16, F32, TF32, DType
from tilewright.ir.buffer import Buffer
from tilewright.ir.expr import ONE, Binary, Cast, Expr, Load, Op, Ref, Var, as_expr, both, ceil_div, real
from tilewright.ir.kernel import Kernel
from tilewright.ir.stmt import Alloc, Assign, Body, For, If, Move, MultiplyTiles, Stmt
from tilewright.ir.visit import rewrite
from tilewright.isa.catalog import INSTRUCTIONS
from tilewright.isa.instruction import MatrixInstruction
from tilewright.isa.mma_sync import MMA_F16_F16, MMA_F16_F32, MMA_TF32_F32
from tilewright.layout.fragment import Fragment
from tilewright.problem import Gemm, make_operands
from tilewright.problem.reference import Operands, reference, view
from tilewright.roundings import truncated_tf32
from tilewright.simulator import Kind, ModularArithmetic, Run, simulate
from tilewright.simulator.arithmetic import FloatArithmetic
from tilewright.simulator.coverage import miscounts

LANE = Var("threadIdx.x")
M_AT, N_AT = Var("blockIdx.y"), Var("blockIdx.x")
MMA = [known for known in INSTRUCTIONS if known.family.startswith("mma")]


def each(buffer: Buffer, fragment: Fragment, source: Buffer, row: Expr, column: Expr, leading: Expr) -> For:
    """Each lane its own elements of a tile of global memory that begins at (row, column)."""
    held_row, held_column = fragment.element(LANE, Var("r"))
    offset = (row + held_row) * leading + column + held_column
    return loop("r", fragment.registers, Move(at(buffer, Var("r")), Ref(source, (offset,))))


def gemm_kernel(instruction: MatrixInstruction, *, rounded: bool = False, skip: Body = ()) -> Kernel:
    """A warp a tile of C, operands straight from global memory; sizes are multiples of the tile.

    rounded: operands are rounded to the product's format before they are multiplied. skip: in front of everything.
    """
    dtype = F32 if instruction.product is TF32 else instruction.product
    assert instruction.a is not None and instruction.b is not None
    second = instruction.product_b or dtype
    a, b = registers("a", instruction.a.registers, dtype=dtype), registers("b", instruction.b.registers, dtype=second)
    total, out = registers("sum", instruction.c.registers, dtype=instruction.accumulate), registers("out")
    row, column, k = M_AT * instruction.m, N_AT * instruction.n, Var("k") * instruction.k
    held_row, held_column = instruction.c.element(LANE, Var("r"))
    stored = Ref(C, ((row + held_row) * Var("ldc") + column + held_column,))
    rounding: Body = tuple(
        loop("r", buffer.elements, Assign(at(buffer, Var("r")), Cast(TF32, Load(buffer, (Var("r"),)))))
        for buffer in ((a, b) if rounded else ())
    )
    zero = Cast(instruction.accumulate, real(0)) if instruction.accumulate is not F32 else real(0)
    body = (
        *skip,
        Alloc(total),
        loop("r", total.elements, Assign(at(total, Var("r")), zero)),
        loop(
            "k",
            ceil_div(Var("K"), instruction.k),
            *(Alloc(a), Alloc(b)),
            each(a, instruction.a, replace(A, dtype=dtype), row, k, Var("lda")),
            each(b, instruction.b, replace(B, dtype=second), k, column, Var("ldb")),
            *rounding,
            MultiplyTiles(instruction, at(total, 0), at(a, 0), at(b, 0), origin="sum"),
        ),
        Alloc(out),
        loop("r", total.elements, Assign(at(out), value(total, Var("r"))), Move(stored, at(out), origin="C")),
    )
    grid = (ceil_div(Var("N"), instruction.n), ceil_div(Var("M"), instruction.m), ONE)
    return kernel(body, grid=grid, gemm=problem(instruction, 1))


def problem(instruction: MatrixInstruction, times: int, dtype: DType | None = None) -> Gemm:
    formats = {"dtype": F32, "product": TF32} if instruction.product is TF32 else {"dtype": instruction.product}
    return Gemm(
        times * instruction.m,
        times * instruction.n,
        times * instruction.k,
        accumulate=instruction.accumulate,
        b_dtype=instruction.product_b,
        **formats,
    )


def result(run: Run, gemm: Gemm) -> np.ndarray:
    return view(gemm, "C", np.asarray(run.c))


@pytest.mark.parametrize("known", MMA, ids=lambda i: i.name)
def test_the_product_is_right_and_counted(known: MatrixInstruction) -> None:
    gemm = problem(known, 3)
    operands = make_operands(gemm)
    rounded = known.product is TF32
    done = simulate(gemm_kernel(known, rounded=rounded), operands)
    bound = 3e-2 if known.accumulate is F16 else 1e-4
    assert np.abs(result(done, gemm) - reference(operands)).max() < bound
    counters = done.counters
    assert counters.fmas == gemm.m * gemm.n * gemm.k and counters.instructions[known.opcode] == 27
    (line,) = (line for line in counters.lines if line.tile_multiply_adds)
    assert (line.origin, line.kind, line.executions, line.lane_executions) == ("sum", "arithmetic", 27, 27 * 32)
    assert line.tile_multiply_adds == known.multiply_adds and line.buffer == "sum"


@pytest.mark.parametrize("schedule", ["lockstep", "warps"])
def test_sums_of_f16_are_rounded_after_each_instruction(schedule: Any) -> None:
    gemm = problem(MMA_F16_F16, 2)
    operands = make_operands(gemm)
    a, b = operands.matrix("A").astype(np.float32), operands.matrix("B").astype(np.float32)
    total = np.zeros((gemm.m, gemm.n), np.float16)
    for k in (slice(0, 16), slice(16, 32)):
        total = (np.float32(total) + a[:, k] @ b[k]).astype(np.float16)
    done = simulate(gemm_kernel(MMA_F16_F16), operands, schedule=schedule)
    assert np.abs(result(done, gemm) - np.float32(total)).max() <= 2.0**-8  # BLAS may add in another order


def tf32_operands(x: float) -> tuple[Gemm, Operands]:
    """Every element of A is x, of B one: an element of C is 8 times what the hardware makes of x."""
    gemm = problem(MMA_TF32_F32, 1)
    operands = make_operands(gemm)
    return gemm, replace(operands, a=np.full_like(operands.a, x), b=np.ones_like(operands.b))


def test_tf32_operands_are_truncated_unless_they_are_rounded_before() -> None:
    x = 1 + 2.0**-10 * 0.75
    gemm, operands = tf32_operands(x)
    assert (result(simulate(gemm_kernel(MMA_TF32_F32), operands), gemm) == 8).all()
    rounded = simulate(gemm_kernel(MMA_TF32_F32, rounded=True), operands)
    assert (result(rounded, gemm) == 8 * (1 + 2.0**-10)).all()
    assert rounded.counters.instructions["CVT"] == 6


def test_the_cast_to_tf32_rounds_ties_away_from_zero() -> None:
    tie = np.float32([1 + 2.0**-11, -1 - 2.0**-11, 1 + 3 * 2.0**-11, np.inf, np.nan])
    got = FloatArithmetic().cast(tie, TF32)
    assert got[:4].tolist() == [1 + 2.0**-10, -1 - 2.0**-10, 1 + 2.0**-9, np.inf] and np.isnan(got[4])
    assert float(FloatArithmetic().cast(np.float32(1 + 2.0**-11), TF32)) == 1 + 2.0**-10
    assert truncated_tf32(tie)[:3].tolist() == [1, -1, 1 + 2.0**-10]


def test_modular_tiles_are_exact() -> None:
    arithmetic, rng = ModularArithmetic(), np.random.default_rng(5)
    for known in MMA:
        shapes = (3, known.m, known.k), (3, known.k, known.n), (3, known.m, known.n)
        for low in (0, arithmetic.prime - 9):  # any residues, and those whose products are largest
            a, b, c = (rng.integers(low, arithmetic.prime, shape) for shape in shapes)
            exact = (a.astype(object) @ b.astype(object) + c) % arithmetic.prime
            assert (arithmetic.multiply_tiles(known, a, b, c) == exact).all()


@pytest.mark.parametrize("known", MMA, ids=lambda i: i.name)
def test_exact_arithmetic_sees_every_k(known: MatrixInstruction) -> None:
    """Also where the codes of k do not fit the format of the operands."""
    right, gemm = gemm_kernel(known), problem(known, 2)
    assert miscounts(right, gemm) == ()

    def twice(stmt: Stmt) -> Body | None:
        return (stmt, stmt) if isinstance(stmt, MultiplyTiles) else None

    def shorter(stmt: Stmt) -> Body | None:
        return (replace(stmt, extent=ONE),) if isinstance(stmt, For) and stmt.var == "k" else None

    for change in (twice, shorter):
        found = miscounts(replace(right, body=rewrite(right.body, change)), gemm)
        assert len(found) == 16


def test_one_k_too_few_is_named() -> None:
    right, gemm = gemm_kernel(MMA_F16_F32), problem(MMA_F16_F32, 2)

    def hole(stmt: Stmt) -> Body | None:
        """Lane 5 gets zero for its first element of A in the second step: row 1, k = 16 + 2."""
        if isinstance(stmt, Move) and stmt.dst.buffer.name == "a":
            here = both(
                Binary(Op.EQ, LANE, as_expr(5)),
                Binary(Op.EQ, Var("k"), as_expr(1)),
                Binary(Op.EQ, Var("r"), as_expr(0)),
            )
            return (replace(stmt, guard=Binary(Op.EQ, here, as_expr(0))),)
        return None

    found = miscounts(replace(right, body=rewrite(right.body, hole)), gemm)
    assert {(one.row % 16, one.missing, one.repeated) for one in found} == {(1, (18,), ())}


def test_fragments_that_nobody_wrote_are_found() -> None:
    def without_b(stmt: Stmt) -> Body | None:
        return () if isinstance(stmt, Move) and stmt.dst.buffer.name == "b" else None

    right = gemm_kernel(MMA_F16_F32)
    broken = replace(right, body=rewrite(right.body, without_b))
    done = simulate(broken, make_operands(problem(MMA_F16_F32, 1)), on_finding="collect")
    assert [(f.kind, f.buffer, f.element) for f in done.findings] == [(Kind.UNWRITTEN, "b", 0)]


def test_a_part_of_a_warp_is_found() -> None:
    def branch(stmt: Stmt) -> Body | None:
        return (If(less(LANE, 16), (stmt,)),) if isinstance(stmt, MultiplyTiles) else None

    right = gemm_kernel(MMA_F16_F32)
    broken = replace(right, body=rewrite(right.body, branch))
    done = simulate(broken, make_operands(problem(MMA_F16_F32, 1)), on_finding="collect")
    assert [f.kind for f in done.findings] == [Kind.PARTED_WARP]
    assert done.findings[0].where.lanes == tuple(range(16))


def test_registers_beyond_a_fragment_are_found() -> None:
    def beyond(stmt: Stmt) -> Body | None:
        return (replace(stmt, a=at(stmt.a.buffer, 2)),) if isinstance(stmt, MultiplyTiles) else None

    right = gemm_kernel(MMA_F16_F32)
    broken = replace(right, body=rewrite(right.body, beyond))
    done = simulate(broken, make_operands(problem(MMA_F16_F32, 1)), on_finding="collect")
    assert not done.completed and done.findings[0].kind is Kind.OUT_OF_BOUNDS
