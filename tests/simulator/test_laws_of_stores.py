"""st.async in the smallest kernels: what arrives where, what its barrier is told, and each way to use it wrongly."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from simulated_kernels import C, at, kernel, less, loop, registers, shared, value
from unit_kernels import BLOCK, THREAD, Recorded, only, ran, told

from tilewright.dtypes import BF16, F32, MBARRIER, DType
from tilewright.ir.async_stmt import (
    ArriveBarrier,
    ClusterBarrier,
    ExpectBytes,
    FenceBarriers,
    InitBarrier,
    StoreAsync,
    WaitBarrier,
)
from tilewright.ir.buffer import Buffer, Space
from tilewright.ir.expr import ONE, Cast, Expr, Op, Ref, Var, as_expr, binary
from tilewright.ir.kernel import Kernel
from tilewright.ir.stmt import Alloc, Assign, Body, If, Move, Stmt
from tilewright.problem import Gemm, make_operands
from tilewright.simulator import Kind, simulate
from tilewright.simulator.findings import Issue, Listener
from tilewright.simulator.journal import Role
from tilewright.simulator.machine import Order

SCHEDULES: list[Order] = ["lockstep", "warps", "moments"]
LANES = 64
A = Buffer("A", Space.GLOBAL, F32, ())
FULL = Buffer("full", Space.SHARED, MBARRIER, (3,))
"""The kernels use the second one."""


class Sent:
    """Each thread below `active` sends `count` registers to block (own + shift) of the cluster, as often as `turns`."""

    def __init__(
        self, count: int, cluster: int, *, blocks: int = 0, shift: int = 1, active: int = LANES, dtype: DType = F32
    ) -> None:
        self.count, self.cluster, self.active, self.dtype = count, cluster, active, dtype
        self.blocks = blocks or cluster
        self.tile = shared("tile", LANES * count + 8, dtype=dtype)
        self.held, self.out = registers("held", count + 1), registers("out")
        self.gemm = Gemm(self.blocks * LANES * count, 1, 1)
        self.rank: Expr = (BLOCK + shift) % cluster
        self.place: Expr = THREAD * count
        self.bytes = active * count * dtype.bytes
        self.of_cluster = True

    def load(self) -> Body:
        """Registers 1 and on: what register 0 holds is never sent."""
        source = Ref(A, (BLOCK * LANES * self.count + THREAD * self.count + Var("i"),))
        none = Assign(at(self.held, 0), Cast(F32, as_expr(-1)))
        return (Alloc(self.held), none, loop("i", self.count, Move(at(self.held, Var("i") + 1), source)))

    def send(self, **fields: Any) -> Stmt:
        usual = {"dst": at(self.tile, self.place), "src": at(self.held, 1), "count": self.count}
        stmt = StoreAsync(**(usual | {"rank": self.rank, "signal": at(FULL, 1)} | fields))
        return If(less(THREAD, self.active), (stmt,))

    def expect(self, size_bytes: int | None = None) -> Stmt:
        return first(ExpectBytes(at(FULL, 1), self.bytes if size_bytes is None else size_bytes))

    def wait(self, parity: int = 0) -> Stmt:
        return WaitBarrier(at(FULL, 1), as_expr(parity), of_cluster=self.of_cluster)

    def store(self) -> Body:
        element = THREAD * self.count + Var("i")
        part = registers("part", dtype=self.dtype)
        body: Body = (
            Move(at(part), at(self.tile, element)),
            Assign(at(self.out), value(part)),
            Move(Ref(C, (BLOCK * LANES * self.count + element,)), at(self.out)),
        )
        return (Alloc(self.out), Alloc(part), If(less(THREAD, self.active), (loop("i", self.count, *body),)))

    def kernel(self, *body: Stmt, made: bool = True, arrivals: int = 1) -> Kernel:
        make = (first(InitBarrier(at(FULL, 1), arrivals), FenceBarriers()),) if made else ()
        whole = (*make, ClusterBarrier(), *self.load(), *body, ClusterBarrier())
        grid = (as_expr(self.blocks), ONE, ONE)
        plain = kernel(whole, grid=grid, block=(LANES, 1, 1), shared_buffers=(self.tile, FULL), gemm=self.gemm)
        return replace(plain, cluster=self.cluster)

    def usual(self) -> Body:
        return (self.expect(), self.send(), self.wait(), *self.store())


def first(*body: Stmt) -> Stmt:
    return If(binary(Op.EQ, THREAD, 0), body)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize(
    ("cluster", "blocks", "shift"), [(1, 2, 0), (2, 2, 1), (2, 6, 1), (4, 4, 1), (4, 4, 3), (4, 8, 2)]
)
@pytest.mark.parametrize("active", [1, 33, LANES])
def test_each_value_arrives_in_the_block_it_is_sent_to(
    active: int, cluster: int, blocks: int, shift: int, count: int, schedule: Any
) -> None:
    sent = Sent(count, cluster, blocks=blocks, shift=shift, active=active)
    operands = make_operands(sent.gemm)
    run = simulate(sent.kernel(*sent.usual()), operands, schedule=schedule)
    assert not run.findings
    source, found = (np.asarray(one).reshape(blocks, LANES, count) for one in (operands.a, run.c))
    for block in range(blocks):
        sender = block // cluster * cluster + (block - shift) % cluster
        assert (found[block, :active] == source[sender, :active]).all()


@pytest.mark.parametrize("count", [1, 2, 4])
def test_values_are_rounded_to_the_format_of_the_tile_and_their_bytes_counted_in_it(count: int) -> None:
    sent = Sent(count, 2, dtype=BF16)
    assert sent.bytes == LANES * count * 2
    operands = make_operands(sent.gemm)
    run = simulate(sent.kernel(*sent.usual()), operands)
    source = BF16.decode(BF16.encode(np.asarray(operands.a))).reshape(2, -1)
    assert not run.findings and (np.asarray(run.c).reshape(2, -1) == source[::-1]).all()


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("more", [-8, -4, 0, 4])
def test_the_phase_is_over_with_the_last_byte(more: int, schedule: Any) -> None:
    sent = Sent(2, 2)
    body = (sent.expect(sent.bytes + more), sent.send(), sent.wait())
    run = ran(sent.kernel(*body), sent.gemm, schedule=schedule)
    if more == 0:
        assert not run.findings
    else:
        assert [one.kind for one in run.errors] == [Kind.DEADLOCK]
        missing = f"{more} bytes missing" if more > 0 else f"{more} bytes (more landed than were expected) missing"
        assert f"wait for full[1], parity 0 (phase 0: {missing})" in str(run.errors[0])


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_who_reads_before_the_phase_is_over_races(schedule: Any) -> None:
    sent = Sent(1, 2)
    body = (sent.expect(), sent.send(), ClusterBarrier(), *sent.store(), sent.wait())
    races = [one for one in ran(sent.kernel(*body), sent.gemm, schedule=schedule).errors if one.kind is Kind.RACE]
    assert races and "written by TMA, which tells full[1]" in races[0].headline
    assert races[0].element == 32 * races[0].where.warp and races[0].earlier is not None
    assert races[0].earlier.block[0] == races[0].where.block[0] ^ 1
    assert "of block" in races[0].earlier.text and "tells full[1]" in races[0].earlier.text


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("is_waited_for", [False, True])
def test_a_second_store_waits_for_the_first(is_waited_for: bool, schedule: Any) -> None:
    """The same elements are sent twice, in two phases: the second time behind a wait for the first and a meeting."""
    sent = Sent(1, 2)
    between: Body = (sent.wait(), ClusterBarrier()) if is_waited_for else (ClusterBarrier(),)
    last = sent.wait(1) if is_waited_for else sent.wait(0)
    body = (sent.expect(), sent.send(), *between, sent.expect(), sent.send(), last, *sent.store())
    run = ran(sent.kernel(*body), sent.gemm, schedule=schedule)
    if is_waited_for:
        assert not run.findings
    else:
        assert Kind.RACE in {one.kind for one in run.errors}


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("shift", range(5))
def test_stores_begin_at_multiples_of_their_size(shift: int, count: int) -> None:
    """`padding` of 16 bytes lies before the tile. Thread 5 is the first that stores `shift` elements further."""
    sent = Sent(count, 2)
    sent.place = sent.place + binary(Op.LE, 5, THREAD) * shift
    padded = shared("padding", 4, dtype=F32)
    whole = sent.kernel(sent.expect(), sent.send(), sent.wait())
    run = ran(replace(whole, shared=(padded, sent.tile, FULL)), sent.gemm)
    if shift % count == 0:
        assert not run.findings
    else:
        assert (only(run).kind, only(run).buffer) == (Kind.MISALIGNED, "tile")
        size = 4 * count
        text = f"A store of {size} bytes to tile is at byte {16 + 5 * size + 4 * shift}, not at a multiple of {size}."
        assert only(run).headline == text
        assert only(run).where.warp == 0 and only(run).where.lanes == tuple(range(5, 32))


@pytest.mark.parametrize(
    ("element", "is_right"), [(-4, False), (0, True), (LANES * 4 + 4, True), (LANES * 4 + 8, False)]
)
def test_all_elements_lie_in_the_tile(element: int, is_right: bool) -> None:
    sent = Sent(4, 2, active=1)
    sent.place = as_expr(element)
    run = ran(sent.kernel(sent.expect(), sent.send(), sent.wait()), sent.gemm)
    assert run.completed is is_right
    if not is_right:
        assert (only(run).kind, only(run).buffer, only(run).element) == (Kind.OUT_OF_BOUNDS, "tile", element)
        assert f"tile has {LANES * 4 + 8} elements; element {element} and the 3 after it are addressed." in str(
            only(run)
        )


@pytest.mark.parametrize(("rank", "is_right"), [(-1, False), (0, True), (1, True), (2, False)])
def test_the_block_is_one_of_the_cluster(rank: int, is_right: bool) -> None:
    sent = Sent(1, 2)
    sent.rank = as_expr(rank)
    heard = If(binary(Op.EQ, BLOCK, min(max(rank, 0), 1)), (sent.expect(), sent.wait()))
    found = told(ran(sent.kernel(If(binary(Op.EQ, BLOCK, 0), (sent.send(),)), heard), sent.gemm))
    text = f"Block {rank} of a cluster of 2 does not exist."
    assert found == ([] if is_right else [(Kind.OUT_OF_BOUNDS, text)])


def test_a_barrier_that_nobody_made_is_told_of_nothing() -> None:
    """Lanes 0 to 9 tell one that was made, the others one that was not: only what the former send is there."""
    sent = Sent(2, 2, active=40)
    signal = at(FULL, 1 + binary(Op.LE, 10, THREAD))
    body = (sent.expect(10 * 8), sent.send(signal=signal), sent.wait(), *sent.store())
    run = ran(sent.kernel(*body), sent.gemm)
    unmade = [one for one in run.errors if one.kind is Kind.MBARRIER]
    assert [one.headline for one in unmade] == ["full[2] is used before it is made."]
    assert (unmade[0].buffer, unmade[0].where.lanes) == ("full[2]", tuple(range(10, 32)))
    assert [(one.kind, one.element) for one in run.errors if one not in unmade] == [(Kind.UNWRITTEN, 20)]
    none = told(ran(sent.kernel(sent.send(), made=False), sent.gemm))
    assert none == [(Kind.MBARRIER, "full[1] is used before it is made.")]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_threads_that_do_not_act_tell_nothing(schedule: Any) -> None:
    """One arrives for the block, nobody stores: no byte is missing, and the tile stays as it is."""
    sent = Sent(1, 2, active=0)
    run = ran(sent.kernel(first(ArriveBarrier(at(FULL, 1))), sent.send(), sent.wait()), sent.gemm, schedule=schedule)
    assert not run.findings


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(("cluster", "shift", "is_right"), [(1, 0, True), (2, 2, True), (2, 1, False), (4, 3, False)])
def test_a_wait_within_the_block_does_not_show_what_others_store(
    cluster: int, shift: int, is_right: bool, schedule: Any
) -> None:
    sent = Sent(1, cluster, shift=shift)
    sent.of_cluster = False
    found = told(ran(sent.kernel(*sent.usual()), sent.gemm, schedule=schedule))
    text = "A wait for full[1] does not make visible what other blocks stored."
    assert found == ([] if is_right else [(Kind.UNFENCED, text)])


@pytest.mark.parametrize("phases", [1, 2])
def test_a_block_waits_for_all_that_is_stored_in_it(phases: int) -> None:
    """The last phase is not waited for: it may be over or not when the block ends."""
    sent = Sent(1, 2)
    body: Body = ()
    for turn in range(phases):
        last = turn == phases - 1
        body += (sent.expect(), sent.send(), *(() if last else (sent.wait(turn % 2), ClusterBarrier())))
    found = told(ran(sent.kernel(*body), sent.gemm))
    text = "A block may end before another block's stores that full[1] is told of."
    assert (Kind.MBARRIER, text) in found
    right = (*body, sent.wait((phases - 1) % 2))
    assert told(ran(sent.kernel(*right), sent.gemm)) == []


class Heard(Listener):
    """Which barriers each instruction was about."""

    def __init__(self) -> None:
        self.issues: list[Issue] = []

    def issued(self, issue: Issue) -> None:
        self.issues.append(issue)


@pytest.mark.parametrize("active", [0, 1, 32, 33, LANES])
def test_what_listeners_and_journals_are_told(active: int) -> None:
    sent, heard = Sent(1, 2, active=active), Heard()
    arrive = first(ArriveBarrier(at(FULL, 1))) if active == 0 else sent.expect()
    whole = sent.kernel(arrive, sent.send(), sent.wait())
    simulate(whole, make_operands(sent.gemm), listeners=[heard])
    stores = [one for one in heard.issues if "<~" in one.site.text]
    assert sum(one.warps for one in stores) == 2 * -(-active // 32)
    assert sum(one.lanes for one in stores) == 2 * active
    assert {one.barriers for one in stores if one.lanes} <= {("full[1]",)}
    recorded = Recorded()
    simulate(whole, make_operands(sent.gemm), schedule=recorded)  # type: ignore[arg-type]
    arrives = [(one.thing[1], one.generation) for one in recorded.of(Role.ARRIVES, "mbarrier")]
    # In each of the two blocks the thread that expects, and each warp that stores there; one step tells a thing once.
    assert set(arrives) == {(1, 0), (4, 0)}
