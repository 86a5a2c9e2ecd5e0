"""A kernel that sums the wrong products is told which ones."""

from dataclasses import replace

import numpy as np
import pytest

from tests.mutations.test_told import KERNELS, faults
from tilewright.dtypes import Array
from tilewright.ir.expr import Const, Op, Var, binary
from tilewright.ir.kernel import Kernel
from tilewright.ir.stmt import Body, For, Move, Stmt
from tilewright.ir.visit import rewrite
from tilewright.ladders import find_rung
from tilewright.problem import Gemm, make_operands
from tilewright.problem.reference import view
from tilewright.simulator import simulate
from tilewright.simulator.coverage import miscounts
from tilewright.toolchain import Build, build


def built(name: str, m: int, n: int, k: int) -> Build:
    rung = find_rung(name)
    return build(rung.gemm(m, n, k), rung)


def changed(build: Build, change: object) -> object:
    assert callable(change)
    return replace(build.kernel, body=rewrite(build.kernel.body, change))


def test_a_right_kernel_sums_every_k_once() -> None:
    for name in ("worklog/1", "worklog/6", "swizzle/async_copy", "te/5"):
        kernel = built(name, 37, 41, 21)
        assert miscounts(kernel.kernel, kernel.gemm) == ()


def test_a_loop_that_stops_early_misses_the_last_k() -> None:
    one = built("worklog/1", 5, 7, 9)

    def shorter(stmt: Stmt) -> Body | None:
        return (replace(stmt, extent=binary(Op.SUB, stmt.extent, Const(1))),) if isinstance(stmt, For) else None

    found = miscounts(changed(one, shorter), one.gemm)
    assert len(found) == 16
    assert (found[0].row, found[0].column, found[0].missing, found[0].repeated) == (0, 0, (8,), ())
    assert (found[8].block, found[8].thread) == ((0, 0, 0), 1 + 32)
    assert found[0].text.startswith("C[0, 0] misses k = 8; stored by block (0, 0, 0), thread 0.")


def test_a_guard_that_is_one_too_strict_is_named_with_what_it_loses() -> None:
    three = built("worklog/3", 8, 8, 33)

    def stricter(stmt: Stmt) -> Body | None:
        if isinstance(stmt, Move) and stmt.guard is not None and stmt.src.buffer.name == "A":
            return (replace(stmt, guard=binary(Op.LAND, stmt.guard, binary(Op.NE, Var("k_tile"), Const(1)))),)
        return None

    first = miscounts(changed(three, stricter), three.gemm)[0]
    assert (first.missing, first.repeated) == ((32,), ())
    assert any("A_tile_value[0] <- A[" in line and "k_tile != 1" in line for line in first.guards)


def test_a_column_that_is_never_stored_is_said_to_be_so() -> None:
    two = built("worklog/2", 4, 6, 5)

    def never(stmt: Stmt) -> Body | None:
        if isinstance(stmt, Move) and stmt.dst.buffer.name == "C":
            return (replace(stmt, guard=binary(Op.LAND, stmt.guard, binary(Op.NE, Var("n_thread"), Const(3)))),)
        return None

    found = miscounts(changed(two, never), two.gemm)
    assert {(element.row, element.column) for element in found} == {(row, 3) for row in range(4)}
    assert all(element.block is None and "no thread stores it" in element.text for element in found)


def times_summed(kernel: Kernel, gemm: Gemm) -> Array:
    """How often each element of C sums each k, (m, n, k): of an A that is 1 at this k and a B of ones."""
    found = []
    for k in range(gemm.k):
        operands = make_operands(gemm)
        view(gemm, "A", operands.a)[...] = np.arange(gemm.k) == k
        view(gemm, "B", operands.b)[...] = 1
        run = simulate(kernel, operands, listeners=(), detectors=False, on_finding="collect")
        found.append(view(gemm, "C", run.c).copy())
    return np.stack(found, axis=2)


@pytest.mark.parametrize("name", ["naive", "tiled", "tiled by quads"])
def test_what_is_said_to_be_missing_and_repeated_is(name: str) -> None:
    """Against the sums of one k at a time, for every fault that can be planted and leaves whole sums."""
    kernel, gemm = KERNELS[name]()
    seen = 0
    for what, broken in faults(kernel):
        if what.startswith("left out: for"):
            continue
        times = times_summed(broken, gemm)
        told = miscounts(broken, gemm)
        if not np.isfinite(times).all():  # what was never written is no sum
            assert told, what
            continue
        off = [(int(row), int(column)) for row, column in np.argwhere((times != 1).any(axis=2))]
        assert [(one.row, one.column) for one in told] == off[:16], what
        for one in told:
            count = times[one.row, one.column]
            missing, repeated = (tuple(np.flatnonzero(count == wrong).tolist()) for wrong in (0, 2))
            if len(missing) + len(repeated) <= 2 and set(count.tolist()) <= {0, 1, 2}:
                assert (one.missing, one.repeated) == (missing, repeated), what
                seen += 1
    assert seen
