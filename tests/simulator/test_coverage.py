"""A kernel that sums the wrong products is told which ones."""

from dataclasses import replace

from tilewright.ir.expr import Const, Op, Var, binary
from tilewright.ir.stmt import Body, For, Move, Stmt
from tilewright.ir.visit import rewrite
from tilewright.ladders import find_rung
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
