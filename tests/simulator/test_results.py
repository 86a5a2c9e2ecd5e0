"""Simulated kernels compute what the GPU would, bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from simulated_kernels import (
    A,
    C,
    accumulate,
    at,
    kernel,
    loop,
    naive,
    register_tiled,
    registers,
    tiled,
    value,
    without,
)

from tilewright.dtypes import BF16, F16, F32, I32, TF32, Array
from tilewright.errors import SimulationError
from tilewright.ir.buffer import Buffer, Space
from tilewright.ir.expr import ONE, Binary, Cast, Const, Expr, Load, Op, Ref, Select, Var, as_expr, real
from tilewright.ir.kernel import Kernel
from tilewright.ir.stmt import Alloc, Assign, Barrier, If, Let, Move
from tilewright.ladders import find_rung
from tilewright.problem import Gemm, Operands, Order, check, make_operands
from tilewright.problem.reference import view
from tilewright.simulator import FloatArithmetic, ModularArithmetic, simulate
from tilewright.toolchain import build, run_on_simulator

THREAD = Var("threadIdx.x")
KERNELS: dict[str, Callable[[], Kernel]] = {
    "naive": naive,
    "naive, rows first": lambda: naive(rows_first=True),
    "tiled": lambda: tiled(16),
    "register tiled": register_tiled,
}


def in_order(operands: Operands) -> Array:
    """The sum over ascending k, one fused multiply-add each, as every kernel here computes it; beta must be 0."""
    a, b = operands.matrix("A"), operands.matrix("B")
    total = np.zeros((operands.gemm.m, operands.gemm.n), np.float32)
    for k in range(operands.gemm.k):
        FloatArithmetic().fma(a[:, k, None], b[None, k, :], total, F32, total)
    result: Array = np.float32(operands.gemm.alpha) * total
    return result


def matrix(operands: Operands, c: Array) -> Array:
    return view(operands.gemm, "C", c)


@pytest.mark.parametrize("schedule", ["lockstep", "warps"])
@pytest.mark.parametrize("size", [(64, 64, 32), (1, 4, 4), (37, 68, 20), (130, 132, 12)])
@pytest.mark.parametrize("name", KERNELS)
def test_results_are_exact(name: str, size: tuple[int, int, int], schedule: Any) -> None:
    operands = make_operands(Gemm(*size, alpha=0.5))
    run = simulate(KERNELS[name](), operands, schedule=schedule, seed=7)
    assert (matrix(operands, run.c) == in_order(operands)).all()
    assert not run.findings and run.completed


@pytest.mark.parametrize("size", [(1, 1, 1), (31, 33, 17), (32, 32, 1), (7, 5, 0), (2, 97, 31)])
def test_awkward_sizes_are_guarded(size: tuple[int, int, int]) -> None:
    operands = make_operands(Gemm(*size, alpha=-1.0))
    for make in (naive, lambda: tiled(16)):
        assert (matrix(operands, simulate(make(), operands).c) == in_order(operands)).all()


@pytest.mark.parametrize("size", [(0, 4, 4), (4, 0, 4), (0, 0, 0)])
def test_empty_results_need_no_block(size: tuple[int, int, int]) -> None:
    run = simulate(naive(), make_operands(Gemm(*size)))
    assert run.c.size == 0 and run.counters.blocks == 0


def test_padding_is_left_alone() -> None:
    operands = make_operands(Gemm(20, 24, 8, lda=12, ldb=28, ldc=40))
    run = simulate(register_tiled(), operands)
    assert (matrix(operands, run.c) == in_order(operands)).all()
    gaps = np.ones(len(run.c), np.bool_)
    matrix_of_gaps = view(operands.gemm, "C", gaps)
    matrix_of_gaps[...] = False
    assert gaps.any() and np.isnan(run.c[gaps]).all()


@pytest.mark.parametrize("beta", [0.0, 1.0, -1.0, 0.5])
def test_beta(beta: float) -> None:
    operands = make_operands(Gemm(33, 20, 9, alpha=0.5, beta=beta))
    run = simulate(tiled(16), operands)
    assert check(operands, matrix(operands, run.c)).ok


def test_the_operands_are_not_changed() -> None:
    operands = make_operands(Gemm(8, 8, 8, beta=1.0))
    before = [storage.copy() for storage in (operands.a, operands.b, operands.c)]
    simulate(naive(), operands)
    assert all((a == b).all() for a, b in zip(before, (operands.a, operands.b, operands.c), strict=True))


def test_nan_and_infinity_pass_through() -> None:
    operands = make_operands(Gemm(8, 8, 8))
    operands.a[3], operands.b[5] = np.nan, np.inf
    run = simulate(naive(), operands)
    assert check(operands, matrix(operands, run.c)).ok


def test_only_the_chosen_blocks_run() -> None:
    operands = make_operands(Gemm(64, 64, 8))
    run = simulate(naive(), operands, blocks=[(1, 0, 0)])
    c = matrix(operands, run.c)
    assert (c[:32, 32:] == in_order(operands)[:32, 32:]).all() and np.isnan(c[:, :32]).all()
    assert (run.counters.blocks, run.counters.grid_blocks) == (1, 4)


def test_a_block_outside_the_grid_is_refused() -> None:
    with pytest.raises(SimulationError, match=r"Block \(2, 0, 0\) is not in the grid \(2, 2, 1\)"):
        simulate(naive(), make_operands(Gemm(64, 64, 8)), blocks=[(2, 0, 0)])


def test_progress_is_told() -> None:
    heard: list[tuple[int, int]] = []
    simulate(naive(), make_operands(Gemm(256, 256, 1)), progress=lambda done, of: heard.append((done, of)))
    assert heard[-1] == (64, 64) and len(heard) > 1


@pytest.mark.parametrize("schedule", ["lockstep", "warps"])
def test_modular_arithmetic_gives_equality_whatever_the_order(schedule: Any) -> None:
    gemm = Gemm(40, 36, 24, alpha=3.0, lda=30)
    operands = make_operands(gemm)
    rng = np.random.default_rng(1)
    for storage in (operands.a, operands.b):
        storage[...] = np.where(np.isnan(storage), np.nan, rng.integers(0, 2**20, storage.size))
    prime = 2_147_483_647
    run = simulate(tiled(16), operands, arithmetic=ModularArithmetic(prime), schedule=schedule)
    a, b = (operands.matrix(name).astype(np.int64).astype(object) for name in ("A", "B"))
    assert (matrix(operands, run.c) == 3 * (a @ b) % prime).all()


def store_each(expr: Expr, *before: Any, out: Buffer | None = None) -> Kernel:
    """One block of 32 threads; thread t computes `expr` and stores it to C[t]."""
    held = out or registers("out")
    body = (*before, Alloc(held), Assign(at(held), expr), Move(Ref(C, (THREAD,)), at(held)))
    return kernel(body, gemm=Gemm(1, 32, 1))


def lanes_of(expr: Expr, *before: Any, gemm: Gemm | None = None) -> list[float]:
    operands = make_operands(gemm or Gemm(1, 32, 1))
    result: list[float] = simulate(store_each(expr, *before), operands).c.tolist()
    return result


def as_float(expr: Expr) -> Expr:
    return Cast(F32, expr)


def test_integer_operators_agree_with_python() -> None:
    t = THREAD
    expr = (t // 4) * 7 + t % 3 + (t ^ 5) + (t & 6) + (t << 2) + (t >> 1)
    extra = Binary(Op.MAX, Binary(Op.MIN, t, as_expr(9)), as_expr(4))
    expected = [i // 4 * 7 + i % 3 + (i ^ 5) + (i & 6) + (i << 2) + (i >> 1) + max(min(i, 9), 4) for i in range(32)]
    assert lanes_of(as_float(expr + extra)) == expected


def test_comparisons_choose_lanes() -> None:
    t = THREAD
    for op, python in [(Op.LT, "<"), (Op.LE, "<="), (Op.GE, ">="), (Op.EQ, "=="), (Op.NE, "!=")]:
        chosen = Select(Binary(op, t * 2, t + 7), real(1), real(0))
        assert lanes_of(chosen) == [float(eval(f"{2 * i} {python} {i + 7}")) for i in range(32)]
    either = Select(Binary(Op.LOR, Binary(Op.LT, t, as_expr(3)), Binary(Op.GE, t, as_expr(30))), real(1), real(0))
    assert sum(lanes_of(either)) == 5


def test_a_let_of_a_float_keeps_its_value() -> None:
    x = registers("x")
    before = (
        Alloc(x),
        Assign(at(x), as_float(THREAD)),
        Let("twice", Binary(Op.MUL, value(x), real(2))),
        Assign(at(x), real(-1)),
    )
    assert lanes_of(Binary(Op.ADD, Var("twice", F32), value(x)), *before) == [2 * i - 1 for i in range(32)]


def test_integer_registers_can_index_memory() -> None:
    where, a = registers("where", dtype=I32), registers("a")
    before = (
        Alloc(where),
        Assign(at(where), as_expr(31) - THREAD),
        Alloc(a),
        Move(at(a), Ref(A, (Load(where, (Const(0),)),))),
    )
    operands = make_operands(Gemm(1, 32, 32))
    run = simulate(store_each(value(a), *before), operands)
    assert (run.c == operands.a[::-1]).all()


def test_an_inner_declaration_hides_the_outer_one() -> None:
    outer, inner = registers("x"), registers("x", 4)
    before = (
        Alloc(outer),
        Assign(at(outer), real(5)),
        loop("i", 1, Alloc(inner), loop("j", 4, Assign(at(inner, Var("j")), real(9)))),
    )
    assert lanes_of(value(outer), *before) == [5.0] * 32


def test_both_sides_of_a_branch_run_with_their_lanes() -> None:
    x = registers("x")
    odd = Binary(Op.EQ, THREAD % 2, ONE)
    before = (Alloc(x), If(odd, (Assign(at(x), real(1)),), (Assign(at(x), real(2)),)))
    assert lanes_of(value(x), *before) == [2.0, 1.0] * 16


def test_a_block_of_threads_that_do_not_fill_a_warp() -> None:
    small = replace(store_each(as_float(THREAD)), block=(20, 1, 1))
    operands = make_operands(Gemm(1, 32, 1))
    c = simulate(small, operands).c
    assert c[:20].tolist() == list(range(20)) and np.isnan(c[20:]).all()


@pytest.mark.parametrize("dtype", [F16, BF16])
def test_narrow_storage_is_decoded_and_rounded(dtype: Any) -> None:
    half = Buffer("A", Space.GLOBAL, dtype, ())
    a, out = registers("a", dtype=dtype), registers("out", dtype=dtype)
    third = Cast(dtype, Binary(Op.MUL, value(a), real(1 / 3)))
    body = (
        Alloc(a),
        Alloc(out),
        Move(at(a), Ref(half, (THREAD,))),
        Assign(at(out), third),
        Move(Ref(Buffer("C", Space.GLOBAL, dtype, ()), (THREAD,)), at(out)),
    )
    gemm = Gemm(1, 32, 32, dtype=dtype, out=dtype)
    operands = make_operands(gemm)
    run = simulate(kernel(body, gemm=gemm), operands)
    expected = dtype.encode(dtype.decode(operands.a).astype(np.float32) * np.float32(1 / 3))
    assert run.c.dtype == dtype.numpy and (run.c == expected).all()


def test_a_reduction_inside_a_nest_keeps_its_order() -> None:
    """`for i: for k: sum[i] += a[k] * a[k]` is one operation along i and a loop along k."""
    a, total, i, k = registers("a", 6), registers("sum", 3), Var("i"), Var("k")
    before = (
        Alloc(a),
        loop("k", 6, Move(at(a, k), Ref(A, (THREAD * 6 + k,)))),
        Alloc(total),
        loop("i", 3, Assign(at(total, i), real(0))),
        loop("i", 3, loop("k", 6, accumulate(at(total, i), value(a, k), value(a, k)))),
    )
    operands = make_operands(Gemm(32, 32, 6))
    run = simulate(replace(store_each(value(total, 2), *before), problem=operands.gemm), operands)
    rows, expected = operands.a.reshape(32, 6), np.zeros(32, np.float32)
    for step in range(6):
        FloatArithmetic().fma(rows[:, step], rows[:, step], expected, F32, expected)
    assert (run.c[:32] == expected).all()


def test_an_iteration_that_reads_another_runs_step_by_step() -> None:
    """A running sum: `x[i + 1] = x[i] + 1` must not be done for all i at once."""
    x, i = registers("x", 5), Var("i")
    before = (
        Alloc(x),
        Assign(at(x, 0), as_float(THREAD)),
        loop("i", 4, Assign(at(x, i + 1), Binary(Op.ADD, value(x, i), real(1)))),
    )
    assert lanes_of(value(x, 4), *before) == [t + 4.0 for t in range(32)]


def test_registers_indexed_by_lane_are_refused() -> None:
    x = registers("x", 32)
    with pytest.raises(SimulationError, match="differs between lanes"):
        lanes_of(value(x, THREAD), Alloc(x))


def test_a_name_without_value_is_refused() -> None:
    with pytest.raises(SimulationError, match="'nowhere' has no value here"):
        lanes_of(as_float(Var("nowhere")))


def test_the_order_of_a_broken_kernel_shows_in_its_result() -> None:
    """Without its barriers a tiled kernel is right in lockstep, by luck; warps that run alone give it away."""
    broken = without(tiled(16), lambda stmt: isinstance(stmt, Barrier))
    operands = make_operands(Gemm(32, 32, 48))
    lucky = simulate(broken, operands, detectors=False)
    unlucky = simulate(broken, operands, detectors=False, schedule="warps", seed=3)
    assert (matrix(operands, lucky.c) == in_order(operands)).all()
    assert not check(operands, matrix(operands, unlucky.c)).ok


@pytest.mark.parametrize("width", [1, 2, 3, 4])
@pytest.mark.parametrize("guarded", [False, True])
def test_a_move_between_registers_moves_each_of_its_elements(width: int, guarded: bool) -> None:
    """From the second element of the one to the first of the other; guarded lanes get zeros."""
    x, y = registers("x", 8), registers("y", 8)
    guard = Binary(Op.LT, THREAD, as_expr(5)) if guarded else None
    body = (
        *(Alloc(x), Alloc(y)),
        *(Assign(at(x, i), Cast(F32, THREAD * 10 + i)) for i in range(8)),
        *(Assign(at(y, i), real(-1)) for i in range(8)),
        Move(at(y, 0), at(x, 1), width=width, guard=guard),
        *(Move(Ref(C, (THREAD * 8 + i,)), at(y, i)) for i in range(8)),
    )
    gemm = Gemm(1, 256, 1)
    run = simulate(kernel(tuple(body), block=(32, 1, 1), gemm=gemm), make_operands(gemm))
    for lane, found in enumerate(run.c.reshape(32, 8).tolist()):
        moved = [lane * 10.0 + 1 + i if not guarded or lane < 5 else 0.0 for i in range(width)]
        assert found == [*moved, *[-1.0] * (8 - width)]


def test_boxes_rounded_to_tf32_take_ties_to_even() -> None:
    """As an H200 does; `cvt.rna`, by which mma.sync kernels round, takes them away from zero."""
    tie = 1 + 2.0**-11  # between 1, whose last bit of tf32 is even, and 1 + 2**-10
    for rung, expected in (("hopper/3", 1.0), ("ampere/6", 1 + 2.0**-10)):
        known = find_rung(rung)
        gemm = known.gemm(64, 64, 8, dtype=F32, product=TF32, b=Order.COL)
        operands = make_operands(gemm)
        operands = replace(operands, a=np.full_like(operands.a, tie), b=np.ones_like(operands.b))
        c, _ = run_on_simulator(build(gemm, known), operands, listeners=(), detectors=False)
        assert (view(gemm, "C", c) == 8 * expected).all(), rung
