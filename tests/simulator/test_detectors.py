"""Break a kernel on purpose: each mistake must be found, and named by line, block, warp, lanes and loop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from simulated_kernels import (
    A,
    C,
    at,
    changed,
    kernel,
    less,
    loop,
    naive,
    register_tiled,
    registers,
    shared,
    tiled,
    value,
    without,
)

from tilewright.dtypes import F32, I32, I64
from tilewright.errors import SimulationError
from tilewright.ir.expr import ONE, Binary, Cast, Const, Load, Op, Ref, Var, as_expr, real
from tilewright.ir.kernel import Kernel
from tilewright.ir.stmt import Alloc, Assign, Barrier, For, If, Move, Stmt
from tilewright.ir.text import kernel_text
from tilewright.ir.visit import walk
from tilewright.problem import Gemm, make_operands
from tilewright.simulator import Finding, Kind, simulate

THREAD = Var("threadIdx.x")


def findings(kernel: Kernel, gemm: Gemm, **options: Any) -> tuple[Finding, ...]:
    return simulate(kernel, make_operands(gemm), on_finding="collect", **options).findings


def kinds(kernel: Kernel, gemm: Gemm, **options: Any) -> set[Kind]:
    return {finding.kind for finding in findings(kernel, gemm, **options)}


class TestRaces:
    @pytest.mark.parametrize("schedule", ["lockstep", "warps"])
    @pytest.mark.parametrize("note", ["tiles are complete", "tiles are free"])
    @pytest.mark.parametrize("make", [lambda: tiled(16), register_tiled])
    def test_each_missing_barrier_is_found(self, make: Callable[[], Kernel], note: str, schedule: Any) -> None:
        broken = without(make(), lambda stmt: isinstance(stmt, Barrier) and stmt.note == note)
        with pytest.raises(SimulationError, match=r"Race on [AB]_tile") as caught:
            simulate(broken, make_operands(Gemm(128, 128, 32)), schedule=schedule)
        assert "and nothing orders the two" in str(caught.value)

    def test_a_whole_kernel_is_clean(self) -> None:
        for make in (naive, lambda: tiled(16), register_tiled, lambda: register_tiled(pad=4)):
            for schedule in ("lockstep", "warps"):
                assert findings(make(), Gemm(140, 132, 24, beta=0.5), schedule=schedule) == ()

    def test_a_race_is_found_though_the_result_is_right(self) -> None:
        broken = without(tiled(16), lambda stmt: isinstance(stmt, Barrier) and "free" in stmt.note)
        operands = make_operands(Gemm(16, 16, 64))
        run = simulate(broken, operands, on_finding="collect")
        assert (run.c == simulate(tiled(16), operands).c).all() and run.errors

    def test_the_report_says_where_and_who(self) -> None:
        broken = without(tiled(16), lambda stmt: isinstance(stmt, Barrier) and "free" in stmt.note)
        (first, *_) = findings(broken, Gemm(16, 16, 64))
        text = kernel_text(broken).splitlines()
        assert first.kind is Kind.RACE and first.buffer == "A_tile" and first.earlier is not None
        assert text[first.where.line - 1].strip() == first.where.text == "A_tile[m_in, n_in] <- a[0]"
        assert text[first.earlier.line - 1].strip() == first.earlier.text == "a[0] <- A_tile[m_in, k_in]"
        assert first.where.loops == (("k_tile", 1),)
        assert (first.where.block, first.where.warp) == ((0, 0, 0), 0)
        assert 0 in first.where.lanes and first.occurrences == 3

    def test_the_message(self) -> None:
        tile, x = shared("tile", 64), registers("x")
        body = (
            *(Alloc(x), Assign(at(x), Cast(F32, THREAD))),
            Move(at(tile, THREAD), at(x)),
            loop("step", 2, Move(at(x), at(tile, as_expr(63) - THREAD))),
        )
        with pytest.raises(SimulationError) as caught:
            simulate(kernel(body, block=(64, 1, 1), shared_buffers=(tile,)), make_operands(Gemm(1, 1, 1)))
        assert str(caught.value) == (
            "Race on tile[63]: read here, written by another thread, and nothing orders the two.\n"
            "  line 8: x[0] <- tile[63 - threadIdx.x]  with step = 0\n"
            "    block (0, 0, 0), warp 0, lanes 0-31\n"
            "  earlier, line 6: tile[threadIdx.x] <- x[0]\n"
            "    block (0, 0, 0), warp 1, lane 31\n"
            "  Hint: a barrier between the two lines orders them."
        )

    def test_lanes_of_one_store_that_disagree(self) -> None:
        tile, x = shared("tile", 32), registers("x")
        body = (Alloc(x), Assign(at(x), Cast(F32, THREAD)), Move(at(tile, THREAD // 2), at(x)))
        (found,) = findings(kernel(body, shared_buffers=(tile,)), Gemm(1, 1, 1))
        assert found.kind is Kind.RACE and found.element == 0 and found.where.lanes == (1,)
        assert found.earlier is not None and found.earlier.lanes == (0,)

    def test_equal_values_are_only_noted(self) -> None:
        """Every thread writes the whole tile, as a copy without cooperation does: redundant, not wrong."""
        tile, x, i = shared("tile", 8), registers("x"), Var("i")
        copy = loop("i", 8, Move(at(x), Ref(A, (i,))), Move(at(tile, i), at(x)))
        body = (Alloc(x), copy, Barrier(), Move(at(x), at(tile, THREAD % 8)), Move(Ref(C, (THREAD,)), at(x)))
        run = simulate(
            kernel(body, block=(64, 1, 1), shared_buffers=(tile,), gemm=Gemm(1, 64, 8)),
            make_operands(Gemm(1, 64, 8)),
        )
        assert {finding.kind for finding in run.findings} == {Kind.SAME_VALUE} and not run.errors

    def test_equal_values_by_different_lines(self) -> None:
        tile, x = shared("tile", 32), registers("x")
        first, second = Move(at(tile, THREAD), at(x)), Move(at(tile, as_expr(31) - THREAD), at(x))
        same = (Alloc(x), Assign(at(x), real(1)), first, second)
        assert kinds(kernel(same, shared_buffers=(tile,)), Gemm(1, 1, 1)) == {Kind.SAME_VALUE}
        differ = (Alloc(x), Assign(at(x), Cast(F32, THREAD)), first, second)
        assert kinds(kernel(differ, shared_buffers=(tile,)), Gemm(1, 1, 1)) == {Kind.RACE}

    def test_two_blocks_that_write_one_element_of_c(self) -> None:
        wrong = replace(tiled(16), grid=(as_expr(2), ONE, ONE))
        wrong = changed(wrong, _every_block_the_first)
        operands = make_operands(Gemm(16, 16, 16))
        operands.b[:] = 0  # equal results by both: redundant, as compute-sanitizer sees it
        assert {f.kind for f in simulate(wrong, operands).findings} == {Kind.SAME_VALUE}
        with pytest.raises(SimulationError, match=r"Race on C\[0\].*by a thread of another block"):
            simulate(_with_block_number(wrong), operands)

    def test_a_barrier_does_not_order_blocks(self) -> None:
        x = registers("x")
        body = (
            *(Alloc(x), Assign(at(x), Cast(F32, Var("blockIdx.x") * 32 + THREAD))),
            Move(Ref(C, (Var("blockIdx.x") * 32 + THREAD,)), at(x)),
            Barrier(),
            Move(at(x), Ref(C, (as_expr(63) - (Var("blockIdx.x") * 32 + THREAD),))),
        )
        two = kernel(body, grid=(as_expr(2), ONE, ONE), gemm=Gemm(1, 64, 1))
        assert Kind.RACE in kinds(two, Gemm(1, 64, 1))
        one = changed(two, lambda stmt: _mirror_within_the_block(stmt))
        assert kinds(one, Gemm(1, 64, 1)) == set()

    def test_a_later_block_that_overwrites_what_an_earlier_batch_read(self) -> None:
        """The shadow of global memory outlives a batch."""
        x, block = registers("x"), Var("blockIdx.x")
        body = (
            Alloc(x),
            Move(at(x), Ref(C, (THREAD,)), guard=less(block, 1)),
            Assign(at(x), Cast(F32, block)),
            Move(Ref(C, (THREAD,)), at(x), guard=Binary(Op.EQ, block, as_expr(1999))),
        )
        many = kernel(body, grid=(as_expr(2000), ONE, ONE), gemm=Gemm(1, 32, 1))
        (found,) = findings(many, Gemm(1, 32, 1, beta=1.0))
        assert found.kind is Kind.RACE and found.where.block == (1999, 0, 0)
        assert found.earlier is not None and found.earlier.block == (0, 0, 0)

    def test_two_buffers_in_turn_need_one_barrier_a_step(self) -> None:
        """Reads of one half and writes of the other, in one epoch: no race; both in one half: a race."""
        tile, x, step = shared("tile", 2, 32), registers("x"), Var("step")
        for other, expected in ((1, set()), (0, {Kind.RACE, Kind.UNWRITTEN})):
            body = (
                *(Alloc(x), Assign(at(x), Cast(F32, THREAD)), Move(at(tile, 0, THREAD), at(x)), Barrier()),
                loop(
                    "step",
                    6,
                    Move(at(x), at(tile, step % 2, as_expr(31) - THREAD)),
                    Assign(at(x), Binary(Op.ADD, value(x), real(1))),
                    Move(at(tile, (step + other) % 2, THREAD), at(x)),
                    Barrier(),
                ),
            )
            assert kinds(kernel(body, shared_buffers=(tile,)), Gemm(1, 1, 1)) == expected

    def test_detectors_can_be_switched_off(self) -> None:
        broken = without(tiled(16), lambda stmt: isinstance(stmt, Barrier))
        assert simulate(broken, make_operands(Gemm(32, 32, 32)), detectors=False).findings == ()


def _every_block_the_first(stmt: Stmt) -> Stmt | None:
    match stmt:
        case Move() | Assign() | For() | If():
            return None
        case _ if getattr(stmt, "name", "") == "n":
            return replace(stmt, value=Var("n_in"))  # type: ignore[type-var]
        case _:
            return None


def _with_block_number(kernel: Kernel) -> Kernel:
    """Stores the number of the block instead of the result."""

    def change(stmt: Stmt) -> Stmt | None:
        if isinstance(stmt, Assign) and stmt.dst.buffer.name == "out":
            return replace(stmt, value=Cast(F32, Var("blockIdx.x")))
        return None

    return changed(kernel, change)


def _mirror_within_the_block(stmt: Stmt) -> Stmt | None:
    if isinstance(stmt, Move) and stmt.src.buffer is C:
        return replace(stmt, src=Ref(C, (Var("blockIdx.x") * 32 + (as_expr(31) - THREAD),)))
    return None


class TestUnwritten:
    @pytest.mark.parametrize("make", [naive, register_tiled])
    def test_a_sum_that_is_not_set_to_zero(self, make: Callable[[], Kernel]) -> None:
        broken = without(make(), lambda stmt: isinstance(stmt, Assign) and stmt.value == real(0))
        with pytest.raises(SimulationError, match=r"Register sum\[0\] is read before it is written"):
            simulate(broken, make_operands(Gemm(8, 8, 8)))

    def test_a_copy_that_leaves_a_row_out(self) -> None:
        def shorten(stmt: Stmt) -> Stmt | None:
            return replace(stmt, extent=Const(3)) if isinstance(stmt, For) and stmt.var == "quad" else None

        with pytest.raises(SimulationError, match=r"A_tile\[384\] is read before any thread wrote it"):
            simulate(changed(register_tiled(), shorten), make_operands(Gemm(128, 128, 8)))

    def test_the_pad_of_a_row_counts_as_unwritten(self) -> None:
        tile, x = shared("tile", 2, 33), registers("x")
        body = (
            *(Alloc(x), Assign(at(x), real(1)), Move(at(tile, 0, THREAD), at(x)), Barrier()),
            Move(at(x), at(tile, 0, THREAD + 1)),
        )
        (found,) = findings(kernel(body, shared_buffers=(tile,)), Gemm(1, 1, 1))
        assert (found.kind, found.element, found.where.lanes) == (Kind.UNWRITTEN, 32, (31,))

    def test_shared_memory_is_new_in_every_block(self) -> None:
        tile, x = shared("tile", 32), registers("x")
        first = Binary(Op.EQ, Var("blockIdx.x"), as_expr(0))
        body = (
            *(Alloc(x), Assign(at(x), real(1)), If(first, (Move(at(tile, THREAD), at(x)),)), Barrier()),
            Move(at(x), at(tile, THREAD)),
        )
        (found,) = findings(kernel(body, grid=(as_expr(3), ONE, ONE), shared_buffers=(tile,)), Gemm(1, 1, 1))
        assert found.kind is Kind.UNWRITTEN and found.where.block == (1, 0, 0)

    def test_lanes_that_skipped_the_write(self) -> None:
        x, y = registers("x"), registers("y")
        body = (
            *(Alloc(x), Alloc(y), If(less(THREAD, 20), (Assign(at(x), real(1)),))),
            If(less(THREAD, 20), (Assign(at(y), value(x)),)),
            Assign(at(y), value(x)),
        )
        (found,) = findings(kernel(body), Gemm(1, 1, 1))
        assert found.kind is Kind.UNWRITTEN and found.where.lanes == tuple(range(20, 32))

    def test_registers_declared_in_a_loop_are_new_each_time(self) -> None:
        x, y, step = registers("x"), registers("y"), Var("step")
        for guard in (less(step, 1), less(as_expr(-1), step)):
            body = (
                Alloc(y),
                loop("step", 2, Alloc(x), If(guard, (Assign(at(x), real(1)),)), Assign(at(y), value(x))),
            )
            found = findings(kernel(body), Gemm(1, 1, 1))
            assert [f.where.loops for f in found] == ([(("step", 1),)] if guard == less(step, 1) else [])

    def test_a_guarded_load_writes_zero(self) -> None:
        x = registers("x")
        body = (Alloc(x), Move(at(x), Ref(A, (THREAD,)), guard=less(THREAD, 2)), Move(Ref(C, (THREAD,)), at(x)))
        operands = make_operands(Gemm(2, 16, 1))
        run = simulate(kernel(body, gemm=operands.gemm), operands)
        assert run.c.tolist() == [*operands.a.tolist(), *[0.0] * 30]


class TestBounds:
    @pytest.mark.parametrize("origin", ["A", "B", "C"])
    def test_a_guard_that_is_missing(self, origin: str) -> None:
        def unguarded(stmt: Stmt) -> Stmt | None:
            place = "C" if origin == "C" and isinstance(stmt, Move) and stmt.dst.buffer.name == "C" else origin
            return replace(stmt, guard=None) if isinstance(stmt, Move) and stmt.origin == place else None

        with pytest.raises(SimulationError, match=f"{origin} has .* elements; element .* is (read|written)"):
            simulate(changed(naive(), unguarded), make_operands(Gemm(33, 37, 5)))

    def test_a_guard_that_is_one_too_wide(self) -> None:
        def widen(stmt: Stmt) -> Stmt | None:
            if isinstance(stmt, Move) and stmt.origin == "A":
                return replace(stmt, guard=Binary(Op.LE, Var("m"), Var("M")))
            return None

        (found, *_) = findings(changed(naive(), widen), Gemm(20, 20, 4))
        assert (found.kind, found.buffer, found.element) == (Kind.OUT_OF_BOUNDS, "A", 80)
        assert (found.where.warp, found.where.lanes) == (20, tuple(range(32)))
        assert found.where.loops == (("k", 0),) and found.occurrences == 4

    def test_the_gap_between_rows_is_inside_the_storage(self) -> None:
        """It holds NaN, so reading it shows in the result; only past the last row is it out of bounds."""

        def widen(stmt: Stmt) -> Stmt | None:
            if isinstance(stmt, Move) and stmt.origin == "B":
                return replace(stmt, guard=Binary(Op.LE, Var("n"), Var("N")))
            return None

        operands = make_operands(Gemm(20, 20, 4, ldb=24))
        (found,) = simulate(changed(naive(), widen), operands, on_finding="collect").findings
        assert found.element == 3 * 24 + 20 and found.where.loops == (("k", 3),)

    def test_shared_and_register_arrays(self) -> None:
        tile, x = shared("tile", 31), registers("x", 2)
        store = (Alloc(x), Assign(at(x, 0), real(1)), Move(at(tile, THREAD), at(x, 0)))
        (found,) = findings(kernel(store, block=(32, 1, 1), shared_buffers=(tile,)), Gemm(1, 1, 1))
        assert (found.kind, found.buffer, found.where.lanes) == (Kind.OUT_OF_BOUNDS, "tile", (31,))
        beyond = (Alloc(x), loop("i", 3, Assign(at(x, Var("i")), real(0))))
        with pytest.raises(SimulationError, match="Register array x has 2 elements; element 2 is accessed"):
            simulate(kernel(beyond), make_operands(Gemm(1, 1, 1)))
        with pytest.raises(SimulationError, match="Register array x has 2 elements; element 4 is accessed"):
            simulate(kernel((Alloc(x), Move(at(x, 1), Ref(A, (as_expr(0),)), 4))), make_operands(Gemm(4, 1, 1)))

    def test_negative_offsets(self) -> None:
        x = registers("x")
        body = (Alloc(x), Move(at(x), Ref(A, (THREAD - 3,))))
        (found,) = findings(kernel(body), Gemm(32, 1, 1))
        assert (found.kind, found.element, found.where.lanes) == (Kind.OUT_OF_BOUNDS, -3, (0, 1, 2))

    def test_one_block_never_reaches_into_the_shared_memory_of_another(self) -> None:
        tile, x = shared("tile", 32), registers("x")
        body = (Alloc(x), Assign(at(x), real(1)), Move(at(tile, THREAD + Var("blockIdx.x")), at(x)))
        (found,) = findings(kernel(body, grid=(as_expr(2), ONE, ONE), shared_buffers=(tile,)), Gemm(1, 1, 1))
        assert (found.kind, found.where.block, found.element) == (Kind.OUT_OF_BOUNDS, (1, 0, 0), 32)

    def test_misaligned_vectors(self) -> None:
        operands = make_operands(Gemm(128, 128, 9))
        with pytest.raises(SimulationError, match="An access of 16 bytes to A is at byte 36, not at a multiple of 16"):
            simulate(register_tiled(), operands)
        aligned = make_operands(Gemm(128, 128, 8))
        assert Kind.MISALIGNED in {
            f.kind for f in simulate(register_tiled(), aligned, base_bytes={"C": 4}, on_finding="collect").findings
        }

    @pytest.mark.parametrize(
        ("first", "turns", "said"),
        [
            (0, 5, "Register array offsets has 4 elements; element 4 is accessed"),
            (-1, 2, "Register array offsets has 4 elements; element -1 is accessed"),
            (1, 3, r"Register offsets\[3\] is read before it is written"),
        ],
    )
    @pytest.mark.parametrize("use", ["index", "guard", "value", "condition"])
    def test_registers_that_offsets_are_kept_in(self, use: str, first: int, turns: int, said: str) -> None:
        """An array of offsets or pointers that a loop leaves: the GPU would use whatever register lies there."""
        x, offsets, i = registers("x"), replace(registers("offsets", 4), dtype=I32), Var("i")
        read = Load(offsets, (i + first,))
        uses: dict[str, Stmt] = {
            "index": Move(at(x), Ref(A, (read,))),
            "guard": Move(at(x), Ref(A, (THREAD,)), guard=less(read, 1)),
            "value": Assign(Ref(offsets, (as_expr(0),)), read + 1),
            "condition": If(less(read, 1), (Assign(at(x), real(0)),)),
        }
        filled = 4 if "elements" in said else 3
        fill = loop("i", filled, Assign(Ref(offsets, (i,)), as_expr(0)))
        used = loop("i", turns, uses[use], unroll=True)
        with pytest.raises(SimulationError, match=said):
            simulate(kernel((Alloc(x), Alloc(offsets), fill, used)), make_operands(Gemm(64, 1, 1)))

    def test_an_offset_that_32_bits_cannot_hold(self) -> None:
        x, big = registers("x"), Const(2**30, I32)
        for product, expected in (((THREAD + 1) * big, True), (Cast(I64, THREAD + 1) * big, False)):
            load = Move(at(x), Ref(A, (product - product,)), guard=less(THREAD, 31))
            narrow = Move(at(x), Ref(A, (Binary(Op.MOD, product, as_expr(4)),)))
            body = (Alloc(x), narrow, load)
            run = simulate(kernel(body), make_operands(Gemm(64, 1, 1)), on_finding="collect")
            assert (Kind.OVERFLOW in {f.kind for f in run.findings}) is expected
            assert run.completed is not expected

    @pytest.mark.parametrize("beyond", [0, 1, 2])
    @pytest.mark.parametrize("sign", [1, -1])
    def test_the_last_integers_that_32_bits_hold(self, sign: int, beyond: int) -> None:
        """Lane 31 alone is `beyond` the largest or the least integer."""
        first = 2**31 - 1 - 31 + beyond if sign > 0 else -(2**31) + 31 - beyond
        x = registers("x")
        place = Binary(Op.AND, THREAD * sign + Const(first, I32), as_expr(31))
        run = simulate(
            kernel((Alloc(x), Move(at(x), Ref(A, (place,))))), make_operands(Gemm(64, 1, 1)), on_finding="collect"
        )
        assert [one.where.lanes for one in run.findings] == ([tuple(range(32 - beyond, 32))] if beyond else [])

    @pytest.mark.parametrize("op", [Op.DIV, Op.MOD, Op.SHR, Op.MIN])
    def test_an_operand_that_32_bits_cannot_hold_though_the_result_fits(self, op: Op) -> None:
        """What leaves 32 bits on the way into a division, a shift to the right or a minimum decides its result."""
        x, big = registers("x"), Const(2**30, I32)
        bits = {Op.DIV: big, Op.MOD: as_expr(4), Op.SHR: as_expr(28), Op.MIN: as_expr(3)}
        load = Move(at(x), Ref(A, (Binary(op, (THREAD + 1) * big, bits[op]),)))
        run = simulate(kernel((Alloc(x), load)), make_operands(Gemm(64, 1, 1)), on_finding="collect")
        assert Kind.OVERFLOW in {finding.kind for finding in run.findings}

    def test_lanes_that_take_no_part_may_overflow(self) -> None:
        x, big = registers("x"), Const(2**30, I32)
        load = Move(at(x), Ref(A, (Binary(Op.MOD, (THREAD + 1) * big, as_expr(4)),)), guard=less(THREAD, 1))
        assert findings(kernel((Alloc(x), load)), Gemm(64, 1, 1)) == ()


class TestBarriers:
    def test_a_barrier_that_a_part_of_a_warp_reaches(self) -> None:
        body = (If(less(THREAD, 40), (Barrier(),)), Barrier())
        with pytest.raises(SimulationError) as caught:
            simulate(kernel(body, block=(96, 1, 1)), make_operands(Gemm(1, 1, 1)))
        assert "A barrier is reached by a part of a warp." in str(caught.value)
        assert "block (0, 0, 0), warp 1, lanes 0-7" in str(caught.value)

    def test_a_barrier_that_whole_warps_skip_is_a_deadlock(self) -> None:
        body = (If(less(THREAD, 64), (Barrier("halves"),)),)
        with pytest.raises(SimulationError) as caught:
            simulate(kernel(body, block=(96, 1, 1)), make_operands(Gemm(1, 1, 1)))
        message = str(caught.value)
        assert message.startswith("Deadlock in block (0, 0, 0): no warp can go on.")
        assert "warps 0-1 wait for the barrier at line 4: barrier  # halves; warp 2 has ended." in message

    def test_a_barrier_in_a_guarded_tail_is_found(self) -> None:
        inside = less(Var("n"), Var("N"))
        broken = changed(tiled(16), lambda stmt: If(inside, (stmt,)) if isinstance(stmt, Barrier) else None)
        assert Kind.DIVERGENT_BARRIER in kinds(broken, Gemm(16, 20, 16))

    def test_every_barrier_of_the_tests_is_one_that_can_be_missed(self) -> None:
        """The mutations above remove something: no test that cannot fail."""
        for make in (lambda: tiled(16), register_tiled):
            notes = [stmt.note for _, stmt in walk(make().body) if isinstance(stmt, Barrier)]
            assert notes == ["tiles are complete", "tiles are free"]


def test_the_first_error_is_raised_and_all_are_collected() -> None:
    broken = without(tiled(16), lambda stmt: isinstance(stmt, Barrier))
    operands = make_operands(Gemm(32, 32, 32))
    with pytest.raises(SimulationError):
        simulate(broken, operands)
    collected = simulate(broken, operands, on_finding="collect")
    assert len(collected.errors) >= 4 and collected.completed
    assert len({(f.kind, f.where.line, f.earlier and f.earlier.line) for f in collected.findings}) == len(
        collected.findings
    )
