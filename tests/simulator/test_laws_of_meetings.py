"""Named barriers, the barrier of a cluster, budgets of registers, promises of one value: limits, messages, who is told.

By hand: who is there, how often a barrier has opened, which lanes differ.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from simulated_kernels import at, kernel, less, loop, registers, shared
from unit_kernels import BLOCK, LANE, THREAD, WARP, Recorded, only, ran, told

from tilewright.ir.async_stmt import ClusterBarrier, FenceProxy, SetRegisters, TeamBarrier, WgmmaFence
from tilewright.ir.buffer import Space
from tilewright.ir.expr import ONE, Expr, Op, as_expr, binary, real
from tilewright.ir.kernel import Kernel
from tilewright.ir.stmt import Alloc, Assign, Body, If, Let, Move, Stmt
from tilewright.problem import Gemm, make_operands
from tilewright.simulator import Kind, simulate
from tilewright.simulator.asynchronous.meeting_ops import _differ
from tilewright.simulator.findings import Issue, Listener, Meeting
from tilewright.simulator.journal import Role
from tilewright.simulator.machine import Order

SCHEDULES: list[Order] = ["lockstep", "warps", "moments"]
GEMM = Gemm(1, 1, 1)


def blocks_of(*body: Stmt, warps: int = 4, blocks: int = 1, cluster: int = 1) -> Kernel:
    plain = kernel(body, grid=(as_expr(blocks), ONE, ONE), block=(32 * warps, 1, 1))
    return replace(plain, cluster=cluster)


def warp_is(warp: int, block: int, *body: Stmt) -> Stmt:
    return If(binary(Op.EQ, WARP + BLOCK * 100, warp + block * 100), body)


# -- named barriers ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(("number", "is_right"), [(-1, False), (0, True), (15, True), (16, False), (17, False)])
def test_a_block_has_16_named_barriers(number: int, is_right: bool, schedule: Any) -> None:
    """Only warp 2 of block 1 asks for the number, and has no others to wait for."""
    whole = blocks_of(warp_is(2, 1, TeamBarrier(as_expr(number), 32)), blocks=2)
    run = ran(whole, GEMM, schedule=schedule)
    assert run.completed is is_right
    if not is_right:
        found = only(run)
        assert (found.kind, found.headline) == (Kind.DIVERGENT_BARRIER, f"There is no named barrier {number}.")
        assert (found.where.block, found.where.warp) == ((1, 0, 0), 2)


def test_the_warp_is_named_whose_barrier_is_not_there() -> None:
    """Of four warps with numbers of their own."""
    (found,) = ran(blocks_of(TeamBarrier(WARP * 8, 32)), GEMM).errors
    assert (found.headline, found.where.warp, found.where.lanes) == ("There is no named barrier 16.", 2, (0,))


@pytest.mark.parametrize("threads", [1, 31, 33, 48, 100])
def test_whole_warps_meet(threads: int) -> None:
    run = ran(blocks_of(TeamBarrier(ONE, threads)), GEMM)
    text = f"A named barrier of {threads} threads: only whole warps can meet."
    assert told(run) == [(Kind.DIVERGENT_BARRIER, text)] and not run.completed
    assert only(run).where.warp == 0


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("meet", range(1, 5))
@pytest.mark.parametrize("expected", range(1, 5))
def test_a_named_barrier_opens_for_as_many_warps_as_it_expects(expected: int, meet: int, schedule: Any) -> None:
    """Of block 1; in block 0 nobody comes, and barriers of the same number in two blocks are two barriers."""
    here = If(binary(Op.LT, WARP, meet), (TeamBarrier(as_expr(3), 32 * expected),))
    run = ran(blocks_of(If(binary(Op.EQ, BLOCK, 1), (here,)), blocks=2), GEMM, schedule=schedule)
    if meet % expected == 0:
        assert not run.findings
    else:
        assert not run.completed and only(run).kind is Kind.DEADLOCK
        assert f"named barrier 3 ({meet % expected} of {expected} warps are there)" in str(only(run))
        assert "Deadlock in block (1, 0, 0)" in only(run).headline


@pytest.mark.parametrize("number", [1, 7, 15])
def test_those_who_meet_expect_the_same_number(number: int) -> None:
    """In block 1 two warps wait for a third; then the other two come and expect two."""
    first = If(binary(Op.LT, WARP, 2), (TeamBarrier(as_expr(number), 96),))
    second = If(binary(Op.LE, 2, WARP), (TeamBarrier(as_expr(number), 64),))
    run = ran(blocks_of(If(binary(Op.EQ, BLOCK, 1), (first, second)), blocks=2), GEMM)
    found = next(one for one in run.errors if one.kind is Kind.DIVERGENT_BARRIER)
    assert found.headline == f"Warps meet at named barrier {number} with different numbers of threads."
    assert (found.where.block, found.where.warp, found.where.lanes) == ((1, 0, 0), 2, (0,))
    assert not run.completed


def test_the_warp_is_named_that_expects_another_number() -> None:
    """Warps 0 and 1 of block 0 meet at 5; of block 1 warp 0 waits at 5 with two and warp 1 comes with three."""
    number, odd = as_expr(5), binary(Op.EQ, BLOCK, 1)
    first = If(binary(Op.EQ, WARP, 0), (TeamBarrier(number, 64),))
    second = If(binary(Op.EQ, WARP, 1), (If(odd, (TeamBarrier(number, 96),), (TeamBarrier(number, 64),)),))
    found = ran(blocks_of(first, second, warps=2, blocks=2), GEMM).errors
    named = [one for one in found if one.kind is Kind.DIVERGENT_BARRIER]
    assert [(one.where.block, one.where.warp, one.where.lanes) for one in named] == [((1, 0, 0), 1, (0,))]


def test_of_warps_that_come_together_the_one_is_named_that_is_wrong() -> None:
    """Warp 1 waits at 2 for two others; warps 2 and 3 come at once, to 1 and to 2, and expect two."""
    first = If(binary(Op.EQ, WARP, 1), (TeamBarrier(as_expr(2), 96),))
    second = If(binary(Op.LE, 2, WARP), (TeamBarrier(WARP - 1, 64),))
    named = [one for one in ran(blocks_of(first, second), GEMM).errors if one.kind is Kind.DIVERGENT_BARRIER]
    assert [(one.headline[:30], one.where.warp) for one in named] == [("Warps meet at named barrier 2 ", 3)]


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("turns", [1, 2, 3])
@pytest.mark.parametrize("is_met", [False, True])
def test_what_was_written_before_a_meeting_is_there_after_it(is_met: bool, turns: int, schedule: Any) -> None:
    """Each of two teams of two warps turns over its half of a tile, again and again."""
    tile, held = shared("tile", 128), registers("held")
    meet: Body = (TeamBarrier(WARP // 2 + 1, 64),) if is_met else ()
    partner = WARP // 2 * 64 + 63 - THREAD % 64
    turn = (Move(at(tile, THREAD), at(held)), *meet, Move(at(held), at(tile, partner)), *meet)
    body = (Alloc(held), Assign(at(held), real(1)), loop("turn", turns, *turn))
    plain = kernel(body, block=(128, 1, 1), shared_buffers=(tile,))
    found = {one.kind for one in ran(unit(plain), GEMM, schedule=schedule).errors}
    assert (found & {Kind.RACE, Kind.UNWRITTEN} != set()) is not is_met and (not is_met or not found)


def unit(plain: Kernel) -> Kernel:
    """With a statement of the units, so that clocks find races."""
    return replace(plain, body=(*plain.body, FenceProxy()))


class Heard(Listener):
    def __init__(self) -> None:
        self.meetings: list[Meeting] = []
        self.issues: list[Issue] = []

    def met(self, meeting: Meeting) -> None:
        self.meetings.append(meeting)

    def issued(self, issue: Issue) -> None:
        self.issues.append(issue)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(("warps", "blocks", "cluster"), [(1, 2, 2), (3, 2, 2), (4, 8, 4), (2, 3, 1)])
def test_listeners_hear_of_every_warp_that_arrives(warps: int, blocks: int, cluster: int, schedule: Any) -> None:
    heard, turns = Heard(), 3
    body = loop("turn", turns, ClusterBarrier(), TeamBarrier(ONE, 32 * warps))
    whole = blocks_of(body, warps=warps, blocks=blocks, cluster=cluster)
    assert not simulate(whole, make_operands(GEMM), schedule=schedule, listeners=[heard]).findings
    for text in {one.site.text for one in heard.meetings}:
        arrived = [one for one in heard.meetings if one.site.text == text]
        assert sum(one.warps for one in arrived) == turns * blocks * warps
        assert sum(one.lanes for one in arrived) == turns * blocks * warps * 32
        if schedule == "lockstep":
            assert [one.blocks for one in arrived] == [blocks] * turns
    assert len({one.site.text for one in heard.meetings}) == 2


def test_each_meeting_is_noted_with_the_round_it_is_for() -> None:
    recorded, turns = Recorded(), 3
    body = loop("turn", turns, TeamBarrier(as_expr(7), 64), ClusterBarrier())
    whole = blocks_of(body, warps=2, blocks=4, cluster=2)
    simulate(whole, make_operands(GEMM), schedule=recorded)  # type: ignore[arg-type]
    named = sorted((one.thing[1], one.generation) for one in recorded.of(Role.MEETS, "named barrier"))
    # Clusters run one after the other or together: a block is known by its place among those that run.
    slots = sorted({number // 16 for number, _ in named})
    assert {number % 16 for number, _ in named} == {7}
    each = 4 // len(slots)
    assert named == sorted((16 * s + 7, turn) for s in slots for turn in range(turns) for _ in range(2 * each))
    clusters = sorted((one.thing[1], one.generation) for one in recorded.of(Role.MEETS, "the barrier of the cluster"))
    leaders = sorted({slot // 2 * 2 for slot in slots})
    times = 4 // len(leaders) * 2
    assert clusters == sorted((leader, turn) for leader in leaders for turn in range(turns) for _ in range(times))


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("gone", range(4))
def test_a_cluster_meets_without_those_that_have_ended(gone: int, schedule: Any) -> None:
    """Of two blocks of two warps, warps that number below `gone` end at once; the others meet twice."""
    stays = binary(Op.LE, gone, BLOCK * 2 + WARP)
    whole = blocks_of(If(stays, (ClusterBarrier(), ClusterBarrier())), warps=2, blocks=2, cluster=2)
    heard = Heard()
    run = simulate(whole, make_operands(GEMM), schedule=schedule, listeners=[heard], on_finding="collect")
    assert run.completed and not run.findings
    assert sum(one.warps for one in heard.meetings) == 2 * (4 - gone)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("stmt", [TeamBarrier(ONE, 32), ClusterBarrier(), SetRegisters(24, grow=False), WgmmaFence()])
@pytest.mark.parametrize("lanes", [1, 31, 32])
def test_a_part_of_a_warp_is_named(lanes: int, stmt: Stmt, schedule: Any) -> None:
    """Warp 1 alone comes in part."""
    part = If(binary(Op.LT, THREAD - 32, lanes), (If(binary(Op.LE, 32, THREAD), (stmt,)),))
    found = ran(blocks_of(part, warps=3), GEMM, schedule=schedule).errors
    parted = [one for one in found if one.kind is Kind.PARTED_WARP]
    assert bool(parted) is (lanes < 32)
    for one in parted:
        assert (one.where.warp, one.where.lanes) == (1, tuple(range(lanes)))


# -- registers --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", range(16, 280, 4))
def test_setmaxnreg_takes_multiples_of_8_from_24_to_256(count: int) -> None:
    run = ran(blocks_of(SetRegisters(count, grow=False)), GEMM)
    is_right = count % 8 == 0 and 24 <= count <= 256
    text = f"A warpgroup cannot have {count} registers a thread."
    assert told(run) == ([] if is_right else [(Kind.REGISTERS, text)])
    if not is_right:
        assert only(run).note == "setmaxnreg takes multiples of 8 from 24 to 256." and only(run).where.warp == 0


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(("grown", "shrunk"), [(232, 24), (232, 40), (256, 40), (240, 24), (240, 40), (256, 24)])
def test_only_those_who_ask_have_other_registers(grown: int, shrunk: int, schedule: Any) -> None:
    """In block 1 of three the last of three warpgroups shrinks, then the others grow; elsewhere all keep theirs."""
    third, others = binary(Op.EQ, WARP // 4, 2), [binary(Op.EQ, WARP // 4, group) for group in (0, 1)]
    grow = [If(group, (SetRegisters(grown, grow=True),)) for group in others]
    ask = (If(third, (SetRegisters(shrunk, grow=False),)), *grow)
    run = ran(blocks_of(If(binary(Op.EQ, BLOCK, 1), ask), warps=12, blocks=3), GEMM, schedule=schedule)
    wanted = 128 * (2 * grown + shrunk)
    if wanted <= 64 * 1024:
        assert not run.findings
    else:
        text = f"The warpgroups ask for {grown} + {grown} + {shrunk} registers a thread, {wanted} in all; "
        assert only(run).headline.startswith(text) and only(run).where.block == (1, 0, 0)
        if schedule == "lockstep":  # the first that asks for more
            assert only(run).where.warp == 0


# -- fences -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("space", [Space.SHARED, Space.GLOBAL])
@pytest.mark.parametrize("active", [0, 1, 32, 40])
def test_a_fence_counts_the_threads_that_run_it(active: int, space: Space) -> None:
    heard = Heard()
    fence = If(less(THREAD, active), (FenceProxy(space),))
    simulate(blocks_of(fence, warps=2), make_operands(GEMM), listeners=[heard])
    assert sum(one.lanes for one in heard.issues) == active
    assert sum(one.warps for one in heard.issues) == -(-active // 32)


# -- one value for a warp ---------------------------------------------------------------------------------------------


def promised(value: Expr, *, under: Expr | None = None) -> Kernel:
    let: Body = (Let("promised", value, uniform=True),)
    return unit(blocks_of(*(let if under is None else (If(under, let),)), warps=3))


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("thread", [32, 47, 63, 64, 95])
def test_a_lane_that_differs_is_found_and_its_warp_named(thread: int, schedule: Any) -> None:
    found = only(ran(promised(binary(Op.EQ, THREAD, thread) * 3), GEMM, schedule=schedule))
    assert found.headline == "promised is declared the same in all lanes of a warp, and differs."
    assert (found.kind, found.where.warp, found.where.lanes) == (Kind.NOT_UNIFORM, thread // 32, tuple(range(32)))


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_only_lanes_that_take_part_must_agree(schedule: Any) -> None:
    """Lane 7 has a value of its own; where it takes no part all is right, and of the others warp 2 is the first."""
    odd = binary(Op.EQ, LANE, 7)
    assert told(ran(promised(odd, under=binary(Op.LT, LANE, 7)), GEMM, schedule=schedule)) == []
    assert told(ran(promised(odd, under=binary(Op.EQ, LANE, 7)), GEMM, schedule=schedule)) == []
    some = binary(Op.LT, LANE, as_expr(7) + binary(Op.EQ, WARP, 2))
    found = only(ran(promised(odd, under=some), GEMM, schedule=schedule))
    assert (found.where.warp, found.where.lanes) == (2, tuple(range(8)))


@given(st.data(), st.integers(1, 3))
def test_warps_whose_lanes_differ_by_hand(data: st.DataObject, warps: int) -> None:
    values = st.lists(st.integers(-1, 1), min_size=32, max_size=32)
    flags = st.lists(st.booleans(), min_size=32, max_size=32)
    alike = st.one_of(values, st.integers(-(2**40), 2**40).map(lambda one: [one] * 32))
    rows = np.array([data.draw(alike) for _ in range(warps)])
    active = np.array([data.draw(flags) for _ in range(warps)]) if data.draw(st.booleans()) else None
    taking = np.ones_like(rows, np.bool_) if active is None else active
    expected = [len(set(row[some].tolist())) > 1 for row, some in zip(rows, taking, strict=True)]
    assert _differ(rows, active).tolist() == expected
