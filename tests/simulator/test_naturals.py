"""Quotients and remainders of negative integers: as C computes them, and found wherever they are computed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from simulated_kernels import THREAD_X, A, C, at, kernel, less, registers, value

from tilewright.dtypes import F16, F32, I32
from tilewright.ir.expr import Binary, Cast, Const, Expr, Op, Ref, Select, Var, binary, quotient, remainder
from tilewright.ir.kernel import Kernel
from tilewright.ir.stmt import Alloc, Assign, For, If, Let, Move, Stmt
from tilewright.kernels.mma import MmaConfig
from tilewright.problem import Gemm, make_operands
from tilewright.simulator import Kind, simulate
from tilewright.toolchain import build

DIFFERENCE = THREAD_X - 20


def stored(number: Expr, *around: Stmt) -> Kernel:
    """Each thread of a warp stores a number, as f32."""
    out = registers("out")
    body = (*around, Alloc(out), Assign(at(out), Cast(F32, number)), Move(Ref(C, (THREAD_X,)), at(out)))
    return kernel(body, gemm=Gemm(1, 32, 1))


def computed(one: Kernel) -> tuple[np.ndarray, set[Kind]]:
    run = simulate(one, make_operands(one.gemm), on_finding="collect")
    return np.asarray(run.c), {finding.kind for finding in run.errors}


@pytest.mark.parametrize(("op", "of"), [(Op.DIV, quotient), (Op.MOD, remainder)])
def test_negative_numbers_are_divided_as_in_c_and_found(op: Op, of: object) -> None:
    assert callable(of)
    wanted = [of(lane - 20, 8) for lane in range(32)]
    assert wanted[:5] == ([-2, -2, -2, -2, -2] if op is Op.DIV else [-4, -3, -2, -1, 0])
    for one in (
        stored(Binary(op, DIFFERENCE, Const(8))),
        stored(Var("found"), Let("found", Binary(op, DIFFERENCE, Const(8)))),
    ):
        found, kinds = computed(one)
        assert found.tolist() == wanted and kinds == {Kind.NEGATIVE}


def test_a_constant_is_cut_towards_zero() -> None:
    found, kinds = computed(stored(Binary(Op.DIV, Var("K") - 8, Const(4))))
    assert set(found.tolist()) == {-1.0} and kinds == {Kind.NEGATIVE}


def test_what_is_not_evaluated_is_not_found() -> None:
    """The other side of a choice, behind a condition that does not hold, a branch not taken, an access guarded off."""
    eighth = Binary(Op.DIV, DIFFERENCE, Const(8))
    is_natural = less(Const(19), THREAD_X)
    wanted = [max(lane - 20, 0) // 8 for lane in range(32)]
    found, kinds = computed(stored(Select(is_natural, eighth, Const(0))))
    assert found.tolist() == wanted and not kinds
    _, kinds = computed(stored(Select(binary(Op.LAND, is_natural, less(eighth, 1)), Const(1), Const(0))))
    assert not kinds
    read = registers("read")
    taken = (Alloc(read), Move(at(read), Ref(A, (eighth * 0,)), guard=is_natural))
    _, kinds = computed(stored(value(read), *taken))
    assert not kinds
    _, kinds = computed(stored(Const(1), If(is_natural, (Let("inside", eighth), Alloc(read), *taken[1:]))))
    assert not kinds


def test_a_loop_finds_the_iteration() -> None:
    number = registers("number", dtype=I32)
    body = (Alloc(number), For("step", Const(3), (Assign(at(number), Binary(Op.MOD, Var("step") - 2, Const(4))),)))
    run = simulate(stored(Const(0), *body), make_operands(Gemm(1, 32, 1)), on_finding="collect")
    (finding,) = run.errors
    assert finding.kind is Kind.NEGATIVE and finding.headline.startswith("-2 is divided")


@pytest.mark.parametrize("resident", [1, 2, 3, 5, 7])
@pytest.mark.parametrize("rows", [2, 3, 8])
def test_persistent_blocks_look_no_further_than_the_last_tile(rows: int, resident: int) -> None:
    """The tile that a block would copy next has no row where there is none: the last one stands for it."""
    gemm = Gemm(150, 260, 96, F16, out=F16)
    config = MmaConfig((64, 64, 32), (32, 32), 3, persistent=True, raster_rows=rows)
    built = build(gemm, replace(config, in_place_fragments=False).schedule(gemm))
    assert simulate(built.kernel, make_operands(gemm), listeners=(), resident_blocks=resident).findings == ()
