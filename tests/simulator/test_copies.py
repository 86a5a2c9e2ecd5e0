"""Asynchronous copies: they land late, in groups, and whoever does not wait for them is found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from simulated_kernels import A, C, at, changed, kernel, less, loop, registers, shared, value, without

from tilewright.errors import SimulationError
from tilewright.ir.buffer import Buffer
from tilewright.ir.expr import ONE, ZERO, Binary, Expr, Op, Ref, Select, Var, as_expr, binary, real
from tilewright.ir.kernel import Kernel
from tilewright.ir.stmt import Alloc, Assign, Barrier, Carried, CommitCopies, For, If, Move, Stmt, WaitCopies
from tilewright.problem import Gemm, make_operands
from tilewright.simulator import Kind, count_sampled, sample_blocks, simulate

THREAD, STEP, FILL, READ = Var("threadIdx.x"), Var("step"), Var("fill"), Var("read")
SIZE = Gemm(1, 64, 64 * 6)
SCHEDULES = ["lockstep", "warps"]


def around(name: str, first: int, stages: int) -> Carried:
    following = Var(name) + 1
    return Carried(name, as_expr(first), Select(Binary(Op.EQ, following, as_expr(stages)), ZERO, following))


def copy(tile: Buffer, slot: Expr | int, step: Expr | int, **options: Any) -> Move:
    """64 threads copy 64 elements of A, one each."""
    source = Ref(A, (as_expr(step) * 64 + THREAD,))
    return Move(at(tile, slot, THREAD), source, asynchronous=True, origin="tile", **options)


def ring(stages: int = 3, steps: int = 6) -> Kernel:
    """Sums `steps` rows of A, reversed, through a ring of shared stages: copies run `stages - 1` steps ahead."""
    tile, x, total = shared("tile", stages, 64), registers("x"), registers("sum")
    ahead = stages - 1
    prologue = [s for step in range(ahead) for s in (copy(tile, step, step), CommitCopies())]
    more = If(less(STEP + ahead, steps), (copy(tile, FILL, STEP + ahead),))
    body: tuple[Stmt, ...] = (
        *(Alloc(total), Assign(at(total), real(0)), Alloc(x)),
        *prologue,
        For(
            "step",
            as_expr(steps),
            (
                WaitCopies(stages - 2),
                Barrier("this slot is complete, the last one free"),
                more,
                CommitCopies(),
                Move(at(x), at(tile, READ, as_expr(63) - THREAD)),
                Assign(at(total), Binary(Op.ADD, value(total), value(x))),
            ),
            carried=(around("read", 0, stages), around("fill", ahead, stages)),
        ),
        Move(Ref(C, (THREAD,)), at(total)),
    )
    return kernel(body, block=(64, 1, 1), shared_buffers=(tile,), gemm=SIZE)


def kinds(broken: Kernel, schedule: Any = "lockstep") -> set[Kind]:
    run = simulate(broken, make_operands(SIZE), on_finding="collect", schedule=schedule)
    return {finding.kind for finding in run.findings}


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("stages", [2, 3, 4])
def test_a_ring_is_right_and_clean(stages: int, schedule: Any) -> None:
    operands = make_operands(SIZE)
    run = simulate(ring(stages), operands, schedule=schedule)
    rows = operands.a.reshape(6, 64)[:, ::-1]
    expected = rows[0].copy()
    for row in rows[1:]:
        expected += row
    assert (run.c == expected).all() and not run.findings
    assert run.counters.barriers_per_k_step == 1


@pytest.mark.parametrize("schedule", SCHEDULES)
class TestMistakes:
    def test_no_wait(self, schedule: Any) -> None:
        broken = without(ring(), lambda stmt: isinstance(stmt, WaitCopies))
        assert Kind.RACE in kinds(broken, schedule)

    def test_a_wait_for_one_group_too_few(self, schedule: Any) -> None:
        broken = changed(ring(), lambda stmt: WaitCopies(2) if isinstance(stmt, WaitCopies) else None)
        assert Kind.RACE in kinds(broken, schedule)

    def test_a_commit_that_is_missing(self, schedule: Any) -> None:
        """The prologue's two copies fall into one group, which is then not waited for in time."""
        seen: list[Stmt] = []

        def first_commit(stmt: Stmt) -> bool:
            seen.append(stmt)
            return isinstance(stmt, CommitCopies) and sum(isinstance(s, CommitCopies) for s in seen) == 1

        assert Kind.RACE in kinds(without(ring(), first_commit), schedule)

    def test_no_barrier(self, schedule: Any) -> None:
        assert Kind.RACE in kinds(without(ring(), lambda stmt: isinstance(stmt, Barrier)), schedule)

    def test_a_slot_that_is_filled_while_it_is_read(self, schedule: Any) -> None:
        """With the copy in front of the barrier, others may still read the slot."""

        def copy_first(stmt: Stmt) -> Stmt | None:
            if not isinstance(stmt, For):
                return None
            wait, barrier, more, *rest = stmt.body
            return For(stmt.var, stmt.extent, (wait, more, barrier, *rest), carried=stmt.carried)

        assert Kind.RACE in kinds(changed(ring(), copy_first), schedule)

    def test_a_ring_that_is_one_slot_out_of_step(self, schedule: Any) -> None:
        def shifted(stmt: Stmt) -> Stmt | None:
            if not isinstance(stmt, For):
                return None
            return For(stmt.var, stmt.extent, stmt.body, carried=(around("read", 0, 3), around("fill", 0, 3)))

        assert Kind.RACE in kinds(changed(ring(), shifted), schedule)


def test_the_message_names_the_copy() -> None:
    broken = without(ring(2), lambda stmt: isinstance(stmt, WaitCopies))
    with pytest.raises(SimulationError) as caught:
        simulate(broken, make_operands(SIZE))
    message = str(caught.value)
    assert message.startswith("Race on tile[63]: read here, while an asynchronous copy to it is under way.")
    assert "with step = 0" in message
    assert "earlier, line 7: tile[0, threadIdx.x] <~ A[threadIdx.x]" in message
    assert "wait for the group of the copy, then let a barrier order the threads." in message


def test_what_is_not_waited_for_is_not_there() -> None:
    """Late landing: a reader without a wait finds what was in the tile before."""
    tile, x = shared("tile", 1, 64), registers("x")
    fill = (Alloc(x), Assign(at(x), real(7)), Move(at(tile, 0, THREAD), at(x)))
    read = (Move(at(x), at(tile, 0, THREAD)), Move(Ref(C, (THREAD,)), at(x)))
    operands = make_operands(SIZE)
    for wait, expected in (((), [7.0] * 64), ((WaitCopies(0),), operands.a[:64].tolist())):
        body = (*fill, copy(tile, 0, 0), CommitCopies(), *wait, *read)
        run = simulate(
            kernel(body, block=(64, 1, 1), shared_buffers=(tile,), gemm=SIZE), operands, on_finding="collect"
        )
        assert run.c.tolist() == expected and bool(run.errors) is not bool(wait)


def one_copy(move: Callable[[Buffer], Move], elements: int, *, threads: int = 32) -> Kernel:
    """Copies to a tile and stores the tile to C."""
    tile, x, i = shared("tile", elements), registers("x"), Var("i")
    out = loop("i", elements // threads, Move(at(x), at(tile, i * threads + THREAD)), Move(_c(i, threads), at(x)))
    body = (move(tile), CommitCopies(), WaitCopies(0), Barrier(), Alloc(x), out)
    return kernel(body, block=(threads, 1, 1), shared_buffers=(tile,), gemm=Gemm(1, elements, elements))


def _c(i: Expr, threads: int) -> Ref:
    return Ref(C, (i * threads + THREAD,))


def test_a_guard_fills_with_zero() -> None:
    made = one_copy(lambda tile: Move(at(tile, THREAD), Ref(A, (THREAD,)), 1, less(THREAD, 5), asynchronous=True), 32)
    operands = make_operands(made.gemm)
    run = simulate(made, operands)
    assert run.c.tolist() == [*operands.a[:5].tolist(), *[0.0] * 27] and not run.findings


LEFT_OF_70 = binary(Op.MIN, as_expr(70) - THREAD * 4, as_expr(4))
"""What a copy of four elements may still read of 70."""


def test_a_vector_that_is_partly_valid() -> None:
    """A has 70 elements: lane 17 copies two of its four, later lanes none."""

    def move(tile: Buffer) -> Move:
        return Move(
            at(tile, THREAD * 4), Ref(A, (THREAD * 4,)), 4, less(THREAD * 4, 70), True, LEFT_OF_70, origin="tile"
        )

    made = one_copy(move, 128)
    operands = make_operands(Gemm(1, 128, 70))
    run = simulate(made, operands)
    assert run.c.tolist() == [*operands.a.tolist(), *[0.0] * 58] and not run.findings
    one_more = binary(Op.MIN, as_expr(71) - THREAD * 4, as_expr(4))
    beyond = changed(
        made,
        lambda s: (
            Move(s.dst, s.src, 4, s.guard, True, one_more, origin=s.origin)
            if isinstance(s, Move) and s.asynchronous
            else None
        ),
    )
    with pytest.raises(SimulationError, match="A has 70 elements; element 70 is read"):
        simulate(beyond, operands)


@pytest.mark.parametrize(("size", "asked", "lanes"), [(LEFT_OF_70, -2, "18-31"), (as_expr(5), 5, "0-31")])
def test_a_copy_of_an_impossible_size(size: Expr, asked: int, lanes: str) -> None:
    """No guard holds back the lanes that are past the end; or the size is more than the copy has."""
    made = one_copy(
        lambda tile: Move(at(tile, THREAD * 4), Ref(A, (THREAD * 4,)), 4, None, True, size, origin="tile"), 128
    )
    run = simulate(made, make_operands(Gemm(1, 128, 160)), on_finding="collect")
    (found,) = run.errors
    assert found.kind is Kind.COPY_SIZE and found.buffer == "A" and found.hint
    assert found.headline == f"A copy of 4 element(s) of A is told to read {asked} of them."
    assert f"lanes {lanes}" in found.place


def test_a_copy_counts_on_both_sides() -> None:
    made = one_copy(lambda tile: Move(at(tile, THREAD * 4), Ref(A, (THREAD * 4,)), 4, asynchronous=True), 128)
    counters = simulate(made, make_operands(made.gemm)).counters
    assert (counters.global_loads.requests, counters.global_loads.sectors) == (1, 16)
    assert (counters.shared_stores.requests, counters.shared_stores.wavefronts) == (1, 4)
    assert counters.instructions["LDGSTS.128"] == 1


def test_copies_can_be_sampled() -> None:
    block, x = Var("blockIdx.x"), registers("x")
    tile = shared("tile", 1, 64)
    place = block * 64 + THREAD
    move = Move(at(tile, 0, THREAD), Ref(A, (place,)), guard=less(place, Var("K")), asynchronous=True)
    body = (
        *(move, CommitCopies(), WaitCopies(0), Barrier(), Alloc(x)),
        *(Move(at(x), at(tile, 0, THREAD)), Move(Ref(C, (place,)), at(x), guard=less(place, Var("N")))),
    )
    gemm = Gemm(1, 500, 470)
    many = kernel(body, grid=(as_expr(8), ONE, ONE), block=(64, 1, 1), shared_buffers=(tile,), gemm=gemm)
    operands = make_operands(gemm)
    assert len(sample_blocks(many, gemm).classes) == 2
    assert count_sampled(many, operands).lines == simulate(many, operands).counters.lines


def test_a_counter_that_differs_between_threads_is_refused() -> None:
    wrong = kernel((For("i", as_expr(2), (Barrier(),), carried=(Carried("c", THREAD, Var("c") + 1),)),))
    with pytest.raises(SimulationError, match="must be the same in every thread"):
        simulate(wrong, make_operands(Gemm(1, 1, 1)))


@pytest.mark.parametrize("inner", [(), (Barrier(),)])
def test_counters_move_on_after_each_iteration(inner: tuple[Stmt, ...]) -> None:
    x, read = registers("x"), Var("read")
    places = loop("i", 1, Move(Ref(C, (Var("step") * 32 + THREAD,)), at(x)))
    body = (
        Alloc(x),
        For(
            "step",
            as_expr(4),
            (*inner, Move(at(x), Ref(A, (read * 32 + THREAD,))), places),
            carried=(around("read", 1, 3),),
        ),
    )
    gemm = Gemm(1, 128, 128)
    operands = make_operands(gemm)
    rows = operands.a.reshape(4, 32)
    assert (simulate(kernel(body, gemm=gemm), operands).c.reshape(4, 32) == rows[[1, 2, 0, 1]]).all()


@pytest.mark.parametrize("least", [-1, 0, 1])
@pytest.mark.parametrize("most", [3, 4, 5])
@pytest.mark.parametrize("guarded", [False, True])
def test_a_copy_reads_as_many_elements_as_it_is_told_of_0_to_its_width(least: int, most: int, guarded: bool) -> None:
    """Threads 0 to 7 are told `least` elements, 8 to 15 `most`, all others 2; with a guard only 1 to 14 copy at all."""
    tile, x = shared("tile", 128), registers("x", 4)
    told = Select(less(THREAD, 8), as_expr(least), Select(less(THREAD, 16), as_expr(most), as_expr(2)))
    inside = Binary(Op.LAND, Binary(Op.GE, THREAD, as_expr(1)), less(THREAD, 15))
    copies = Move(
        at(tile, THREAD * 4),
        Ref(A, (THREAD * 4,)),
        width=4,
        asynchronous=True,
        valid=told,
        guard=inside if guarded else None,
    )
    read = (Move(at(x, 0), at(tile, THREAD * 4), width=4), Move(Ref(C, (THREAD * 4,)), at(x, 0), width=4))
    body = (Alloc(x), copies, CommitCopies(), WaitCopies(0), Barrier("there"), *read)
    gemm = Gemm(1, 128, 128)
    operands = make_operands(gemm)
    made = kernel(body, block=(32, 1, 1), shared_buffers=(tile,), gemm=gemm)
    run = simulate(made, operands, on_finding="collect")
    wrong = [lane for lane in range(32) if (not guarded or 1 <= lane < 15)]
    wrong = [lane for lane in wrong if not 0 <= (least if lane < 8 else most if lane < 16 else 2) <= 4]
    sizes = [one for one in run.findings if one.kind is Kind.COPY_SIZE]
    assert [one.where.lanes for one in sizes] == ([tuple(wrong)] if wrong else [])
    if wrong:
        size = least if wrong[0] < 8 else most
        assert sizes[0].headline == f"A copy of 4 element(s) of A is told to read {size} of them."
        return
    for lane in range(32):
        if not guarded or 1 <= lane < 15:
            count = least if lane < 8 else most if lane < 16 else 2
            expected = [*operands.a[lane * 4 : lane * 4 + count], *[0.0] * (4 - count)]
            assert run.c[lane * 4 : lane * 4 + 4].tolist() == expected
