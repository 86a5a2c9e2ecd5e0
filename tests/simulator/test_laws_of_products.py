"""wgmma in the smallest kernels, against numpy written out: results, limits, who starts what, what is under way."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from simulated_kernels import at, loop, registers
from unit_kernels import (
    BLOCK,
    GROUP,
    LANE,
    NARROW,
    SUMS,
    THREAD,
    WARP,
    K,
    N,
    Recorded,
    Tiles,
    matrix,
    only,
    ran,
    row_of,
    told,
)

from tilewright.dtypes import BF16, F16
from tilewright.ir.async_stmt import FenceProxy, TeamBarrier, WgmmaCommit, WgmmaFence, WgmmaWait
from tilewright.ir.buffer import Buffer, Space
from tilewright.ir.expr import Cast, Expr, Op, Ref, Var, as_expr, binary, real
from tilewright.ir.stmt import Alloc, Assign, Barrier, Body, If, Move, Stmt
from tilewright.problem import make_operands
from tilewright.problem.reference import Operands, view
from tilewright.simulator import Kind, simulate
from tilewright.simulator.asynchronous.product_ops import WgmmaStep, WgmmaWaitStep, _whole_groups
from tilewright.simulator.convoy import Wait
from tilewright.simulator.findings import Site
from tilewright.simulator.journal import Role
from tilewright.simulator.listeners import Executions
from tilewright.simulator.machine import Order

SCHEDULES: list[Order] = ["lockstep", "warps", "moments"]


def whole(tiles: Tiles) -> tuple[Operands, np.ndarray]:
    """Operands of small whole numbers, and their product."""
    rng, operands = np.random.default_rng(7), make_operands(tiles.gemm)
    a, b = (F16.encode(rng.integers(-8, 9, one.shape).astype(np.float32)) for one in (operands.a, operands.b))
    operands = replace(operands, a=a, b=b)
    return operands, np.float32(operands.matrix("A")) @ np.float32(operands.matrix("B"))


def result(tiles: Tiles, operands: Operands, kernel: Any, **options: Any) -> np.ndarray:
    return np.asarray(view(tiles.gemm, "C", simulate(kernel, operands, **options).c))


def filled(sums: Buffer, start: float = 0.0) -> Body:
    return (Alloc(sums), loop("i", sums.elements, Assign(at(sums, Var("i")), real(start))))


def held_a(tiles: Tiles, buffer: Buffer, first: int) -> Body:
    """The rows of A in registers of the lanes that multiply them. Source: PTX ISA 9.0, "Register Fragments"."""
    register, source = Var("register"), Buffer("A", Space.GLOBAL, F16, ())
    k = register // 4 * 8 + LANE % 4 * 2 + register % 2
    row = Var("blockIdx.x") * 64 * tiles.groups + GROUP * 64 + row_of(register)
    each = loop("register", 8, Move(at(buffer, first + register), Ref(source, (row * Var("lda") + k,))))
    return (Alloc(buffer), each)


END: Body = (WgmmaCommit(), WgmmaWait(0))


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("in_registers", [False, True])
@pytest.mark.parametrize(("groups", "blocks", "first"), [(1, 1, 0), (2, 1, 3), (1, 2, 5), (2, 3, 0)])
def test_the_sum_is_that_of_numpy(groups: int, blocks: int, first: int, in_registers: bool, schedule: Any) -> None:
    """Three products: the first begins anew, the others add."""
    tiles, kept = Tiles(groups, first=first, spare=2, blocks=blocks), registers("kept", 8 + first, dtype=F16)
    source = {"a": at(kept, first)} if in_registers else {}
    multiply = tiles.multiply(fresh=binary(Op.EQ, Var("turn"), 0), **source)
    body = (*held_a(tiles, kept, first), *tiles.fill(), Alloc(tiles.sums), WgmmaFence(), loop("turn", 3, multiply))
    operands, product = whole(tiles)
    counted = Executions()
    kernel = tiles.kernel(*body, *END, *tiles.store())
    assert (result(tiles, operands, kernel, schedule=schedule, listeners=[counted]) == 3 * product).all()
    by_line = {site.text.split("  #")[0]: row for site, row in counted.counts().items()}
    warps = 4 * groups * blocks
    for line in ("fence before products", "commit products", "wait until at most 0 wgmma group(s) are under way"):
        assert by_line[line] == {"executions": warps, "lane_executions": 32 * warps}
    (products,) = (row for line, row in by_line.items() if line.startswith(f"sums[{first}] +="))
    assert products == {"executions": 3 * warps, "lane_executions": 3 * 32 * warps}


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_warpgroup_may_begin_anew_and_another_add(schedule: Any) -> None:
    tiles = Tiles()
    multiply = tiles.multiply(fresh=binary(Op.EQ, GROUP, 1))
    body = (*tiles.fill(), *filled(tiles.sums, 5), WgmmaFence(), multiply, *END)
    operands, product = whole(tiles)
    product[:64] += 5
    assert (result(tiles, operands, tiles.kernel(*body, *tiles.store()), schedule=schedule) == product).all()


def multiplied(tiles: Tiles, *stmts: Stmt, start: bool = True) -> Body:
    sums = filled(tiles.sums) if start else (Alloc(tiles.sums),)
    return (*tiles.fill(), *sums, WgmmaFence(), *stmts, *END)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("thread", [0, 31, 37, 255])
def test_lanes_that_disagree_are_named(thread: int, schedule: Any) -> None:
    tiles, here = Tiles(), binary(Op.EQ, THREAD, thread)
    anew = multiplied(tiles, tiles.multiply(fresh=here))
    found = ran(tiles.kernel(*anew), tiles.gemm, schedule=schedule).errors
    assert [one.headline for one in found] == ["The lanes of a warpgroup disagree on whether the sum begins anew."]
    assert found[0].kind is Kind.NOT_UNIFORM and found[0].where.warp == thread // 32
    for side in "ab":
        apart = {side: matrix(getattr(tiles, side), here * 8)}
        found = ran(tiles.kernel(*multiplied(tiles, tiles.multiply(**apart))), tiles.gemm, schedule=schedule).errors
        differ = [one for one in found if one.kind is Kind.NOT_UNIFORM]
        assert [one.headline for one in differ] == ["The lanes of a warpgroup disagree on where a tile begins."]
        assert differ[0].where.warp == thread // 32


@pytest.mark.parametrize(("first", "is_right"), [(-1, False), (0, True), (3, True), (4, False)])
def test_the_sum_lies_in_its_registers(first: int, is_right: bool) -> None:
    tiles = Tiles(1, spare=3)
    run = ran(tiles.kernel(*multiplied(tiles, tiles.multiply(d=at(tiles.sums, as_expr(first))))), tiles.gemm)
    assert run.completed is is_right
    if not is_right:
        assert only(run).kind is Kind.OUT_OF_BOUNDS
        assert f"sums has {SUMS + 3} elements" in only(run).headline
        assert only(run).element == (first + SUMS - 1 if first >= 0 else first)


@pytest.mark.parametrize(("first", "is_right"), [(-1, False), (0, True), (2, True), (3, False)])
def test_a_lies_in_its_registers(first: int, is_right: bool) -> None:
    tiles, kept = Tiles(1), registers("kept", 10, dtype=F16)
    zero = (Alloc(kept), loop("i", 10, Assign(at(kept, Var("i")), Cast(F16, real(0)))))
    run = ran(tiles.kernel(*zero, *multiplied(tiles, tiles.multiply(a=at(kept, as_expr(first))))), tiles.gemm)
    assert run.completed is is_right
    if not is_right:
        outside = first + 7 if first >= 0 else first
        assert (only(run).kind, only(run).element) == (Kind.OUT_OF_BOUNDS, outside)


@pytest.mark.parametrize("what", ["sums", "kept"])
@pytest.mark.parametrize("is_fenced", [False, True])
def test_a_fence_lies_between_what_threads_did_and_a_product(is_fenced: bool, what: str) -> None:
    """A register of the sum, or of A, is written once more behind the first fence; products need none between them."""
    tiles, kept = Tiles(1), registers("kept", 8, dtype=F16)
    zero = loop("i", 8, Assign(at(kept, Var("i")), Cast(F16, real(0))))
    again = Assign(at(kept), Cast(F16, real(1))) if what == "kept" else Assign(at(tiles.sums), real(1))
    multiply = tiles.multiply(a=at(kept), fresh=None)
    fence = (WgmmaFence(),) if is_fenced else ()
    body = (*tiles.fill(), *filled(tiles.sums), Alloc(kept), zero, WgmmaFence(), again, *fence, multiply, multiply)
    run = ran(tiles.kernel(*body, *END), tiles.gemm)
    text = f"Registers of {what} were touched, and no WgmmaFence orders that before the wgmma."
    assert {(one.kind, one.headline) for one in run.errors} == (set() if is_fenced else {(Kind.UNFENCED, text)})
    assert {(one.buffer, one.where.warp) for one in run.errors} == (set() if is_fenced else {(what, 0)})


@pytest.mark.parametrize("first", range(3))
@pytest.mark.parametrize("bare", range(10))
def test_all_registers_of_a_are_written(bare: int, first: int) -> None:
    tiles, kept = Tiles(1), registers("kept", 10, dtype=F16)
    zero = [Assign(at(kept, i), Cast(F16, real(0))) for i in range(10) if i != bare]
    run = ran(tiles.kernel(Alloc(kept), *zero, *multiplied(tiles, tiles.multiply(a=at(kept, first)))), tiles.gemm)
    found = [(one.kind, one.buffer, one.element) for one in run.errors]
    assert found == ([(Kind.UNWRITTEN, "kept", bare)] if first <= bare < first + 8 else [])


@pytest.mark.parametrize("second", range(14))
def test_products_of_other_shapes_share_no_register(second: int) -> None:
    """The first adds to registers 4 to 11, the second to four: all of those are its own, or it is found."""
    tiles = Tiles(1, first=4, spare=8)
    other = replace(tiles.multiply(d=at(tiles.sums, second)), instruction=NARROW)
    run = ran(tiles.kernel(*multiplied(tiles, tiles.multiply(), other)), tiles.gemm)
    text = f"Registers {second} to {second + 3} of sums overlap those of a wgmma of another shape under way."
    mine, its = set(range(4, 12)), set(range(second, second + 4))
    assert told(run) == ([(Kind.IN_FLIGHT, text)] if mine & its else [])


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("anew", [(0,), (1,), (0, 1), ()])
def test_sums_that_nobody_wrote_must_begin_anew(anew: tuple[int, ...], schedule: Any) -> None:
    """Also the second product may add to what the first has begun, before it is over."""
    tiles = Tiles(first=2)
    chosen: Expr = as_expr(0)
    for group in anew:
        chosen = chosen + binary(Op.EQ, GROUP, group)
    body = multiplied(tiles, tiles.multiply(fresh=binary(Op.EQ, chosen, 1)), tiles.multiply(fresh=None), start=False)
    run = ran(tiles.kernel(*body), tiles.gemm, schedule=schedule)
    bare = [group for group in (0, 1) if group not in anew]
    assert {(one.kind, one.element) for one in run.errors} == ({(Kind.UNWRITTEN, 2)} if bare else set())
    assert {one.where.warp // 4 for one in run.errors} <= set(bare)
    if schedule == "lockstep":
        assert [one.where.warp for one in run.errors] == [4 * group for group in bare[:1]]
        assert [one.where.lanes for one in run.errors] == [tuple(range(32)) for _ in bare[:1]]


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("pending", range(5))
@pytest.mark.parametrize("read", range(3))
def test_a_wait_is_for_all_groups_but_the_youngest(read: int, pending: int, schedule: Any) -> None:
    """Three groups of one product each. Those that are over can be read, and are right."""
    tiles, sums = Tiles(), [registers(f"sums_{i}", SUMS) for i in range(3)]
    starts: list[Stmt] = []
    for one in sums:
        starts += [tiles.multiply(d=at(one)), WgmmaCommit()]
    body = (*tiles.fill(), *map(Alloc, sums), WgmmaFence(), *starts, WgmmaWait(pending))
    operands, product = whole(tiles)
    kernel = tiles.kernel(*body, *tiles.store(sums[read], 0), WgmmaWait(0))
    run = simulate(kernel, operands, schedule=schedule, on_finding="collect")
    if read < 3 - pending:
        assert not run.findings and (view(tiles.gemm, "C", run.c) == product).all()
    else:
        assert Kind.IN_FLIGHT in {one.kind for one in run.errors}
        assert f"sums_{read}" in {one.buffer for one in run.errors}


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("threads", [32, 96, 128, 160, 256])
def test_warpgroups_are_complete(threads: int, schedule: Any) -> None:
    tiles = Tiles()
    body = (Alloc(tiles.sums), WgmmaFence(), tiles.multiply(), *END)
    found = told(ran(tiles.kernel(*body, threads=threads), tiles.gemm, schedule=schedule, detectors=False))
    text = f"A block of {threads // 32} warps has a warpgroup that is not complete."
    assert found == ([] if threads % 128 == 0 else [(Kind.PARTED_WARP, text)])


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("side", ["a", "b"])
@pytest.mark.parametrize("warp", [0, 3, 5])
def test_the_warps_of_a_warpgroup_give_the_same_descriptors(warp: int, side: str, schedule: Any) -> None:
    tiles = Tiles()
    odd = {side: matrix(getattr(tiles, side), binary(Op.EQ, WARP, warp) * 8)}
    found = ran(tiles.kernel(*multiplied(tiles, tiles.multiply(**odd))), tiles.gemm, schedule=schedule).errors
    parted = [one for one in found if one.kind is Kind.PARTED_WARP]
    assert {one.headline for one in parted} == {"The four warps of a warpgroup start different wgmma."}
    assert {one.where.warp // 4 for one in parted} == {warp // 4}
    same = {side: matrix(getattr(tiles, side), binary(Op.EQ, GROUP, 0) * 8)}  # each warpgroup as it likes
    found = ran(tiles.kernel(*multiplied(tiles, tiles.multiply(**same))), tiles.gemm, schedule=schedule).errors
    assert not [one for one in found if one.kind is Kind.PARTED_WARP]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_warps_that_start_none_are_waited_for_in_vain(schedule: Any) -> None:
    tiles = Tiles()
    starts = (tiles.multiply(), WgmmaCommit(), WgmmaWait(0))
    body = (*tiles.fill(), Alloc(tiles.sums), WgmmaFence(), If(binary(Op.NE, WARP, 5), starts))
    run = ran(tiles.kernel(*body), tiles.gemm, schedule=schedule)
    assert not run.completed and [one.kind for one in run.errors] == [Kind.DEADLOCK]
    text = str(run.errors[0])
    assert "warps 4, 6-7 wait for wgmma that the other warps of its warpgroup have not started" in text


@pytest.mark.parametrize("rows", [8, 32, 56, 64])
def test_addresses_beyond_shared_memory_are_found(rows: int) -> None:
    """A is the last buffer; of the tile that begins so far down, all but `rows` rows lie beyond it."""
    tiles = Tiles(1)
    kernel = replace(tiles.kernel(), shared=(tiles.b, tiles.a))
    start = (64 - rows) // 8 * 128
    body = multiplied(tiles, tiles.multiply(a=matrix(tiles.a, start)))
    run = ran(replace(kernel, body=body), tiles.gemm)
    size = (N * K + 64 * K) * 2
    text = f"A descriptor leads to byte {size} of shared memory, where the kernel has nothing."
    assert told(run) == ([] if rows == 64 else [(Kind.OUT_OF_BOUNDS, text)])


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_what_lies_beyond_or_has_another_format_is_no_number(schedule: Any) -> None:
    """Rows 56 to 63 of A lie beyond. Then A and B are stored in another format than is read."""
    tiles = Tiles(1)
    kernel = replace(tiles.kernel(), shared=(tiles.b, tiles.a))
    body = (*multiplied(tiles, tiles.multiply(a=matrix(tiles.a, 128))), *tiles.store())
    operands, product = whole(tiles)
    run = simulate(replace(kernel, body=body), operands, on_finding="collect", schedule=schedule)
    found = np.asarray(view(tiles.gemm, "C", run.c))
    assert np.isnan(found[56:]).all() and (found[:56] == product[8:]).all()
    other = Tiles(1, dtype=BF16)
    bits = registers("part", dtype=BF16)
    fill = (
        Alloc(bits),
        Assign(at(bits), Cast(BF16, real(0))),
        loop("i", 8, Move(at(other.a, THREAD * 8 + Var("i")), at(bits))),
        loop("i", 2, Move(at(other.b, THREAD * 2 + Var("i")), at(bits))),
        *(FenceProxy(), Barrier(), Alloc(other.sums), WgmmaFence(), other.multiply()),
    )
    run = simulate(other.kernel(*fill, *END, *other.store()), operands, on_finding="collect", schedule=schedule)
    assert np.isnan(np.asarray(view(tiles.gemm, "C", run.c))).all()


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("group", [0, 1])
@pytest.mark.parametrize("pending", [None, 0, 1, 2])
def test_a_tile_is_read_until_the_wait(pending: int | None, group: int, schedule: Any) -> None:
    """One thread of a warpgroup of the second block writes its tile of A when no, or some, groups may be under way."""
    tiles, one = Tiles(blocks=2), THREAD + BLOCK * 1000
    zero = registers("zero", dtype=F16)
    write = If(binary(Op.EQ, one, 1000 + group * 128 + 77), (Move(at(tiles.a, GROUP * 1024 + 9), at(zero)),))
    made = (Alloc(zero), Assign(at(zero), Cast(F16, real(0))))
    early = () if pending is None else (WgmmaWait(pending),)
    order = (*early, TeamBarrier(GROUP + 1, 128), write, WgmmaWait(0))
    body = (*made, *tiles.fill(), Alloc(tiles.sums), WgmmaFence(), tiles.multiply(), WgmmaCommit(), *order)
    run = ran(tiles.kernel(*body), tiles.gemm, schedule=schedule)
    races = [one for one in run.errors if one.kind is Kind.RACE]
    assert bool(races) is (pending != 0) and len(run.errors) == len(races)
    if races:
        assert f"a[{group * 1024 + 9}]" in races[0].headline
        assert f"read by wgmma of warps {group * 4}-{group * 4 + 3}" in races[0].headline
        where, earlier = races[0].where, races[0].earlier
        assert (where.block, where.warp, where.lanes) == ((1, 0, 0), group * 4 + 2, (13,))
        assert earlier is not None and (earlier.block, earlier.warp) == ((1, 0, 0), group * 4)


def test_commits_are_told_and_waits_hear_of_all_but_the_youngest() -> None:
    tiles, recorded = Tiles(), Recorded()
    starts: list[Stmt] = []
    for turn in range(3):
        starts += [tiles.multiply(fresh=as_expr(turn == 0)), WgmmaCommit()]
    body = (*tiles.fill(), Alloc(tiles.sums), WgmmaFence(), *starts, WgmmaWait(1), WgmmaWait(0))
    simulate(tiles.kernel(*body), make_operands(tiles.gemm), schedule=recorded)  # type: ignore[arg-type]
    tells = [(one.thing[1], one.generation) for one in recorded.of(Role.TELLS, "warpgroup")]
    hears = [(one.thing[1], one.generation) for one in recorded.of(Role.HEARS, "warpgroup")]
    assert sorted(tells) == sorted((group, turn) for group in (0, 1) for turn in (1, 2, 3) for _ in range(4))
    assert sorted(hears) == sorted((group, turn) for group in (0, 1) for turn in (2, 3) for _ in range(4))


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("pending", [0, 1, 5])
def test_a_wait_for_nothing_is_over_at_once(pending: int, schedule: Any) -> None:
    tiles = Tiles()
    assert not ran(tiles.kernel(WgmmaWait(pending)), tiles.gemm, schedule=schedule).findings


class Committed:
    """In place of the units: how many groups each warp has committed."""

    def __init__(self, *counts: int) -> None:
        self.committed = np.array(counts)


@pytest.mark.parametrize("late", range(8))
def test_a_wait_is_over_when_the_last_of_four_has_committed(late: int) -> None:
    counts = [3] * 8
    counts[late] = 2
    units: Any = Committed(*counts)
    context: Any = SimpleNamespace(units=units)
    thing = WgmmaWaitStep(Site.__new__(Site), context, 0)
    wait = Wait(thing.site, thing, np.arange(8), np.full(8, 3))
    assert wait.ready().tolist() == [row // 4 != late // 4 for row in range(8)]
    half = wait.select(np.arange(8) >= 4)
    assert half.ready().tolist() == [late < 4] * 4 and half.keys.tolist() == [4, 5, 6, 7]
    assert Wait(thing.site, thing, np.arange(8), np.full(8, 2)).ready().all()


@pytest.mark.parametrize(
    ("rows", "is_whole"),
    [
        ([0, 1, 2, 3], True),
        ([4, 5, 6, 7, 0, 1, 2, 3], True),
        ([0, 1, 2], False),
        ([1, 2, 3, 4], False),
        ([0, 1, 3, 2], False),
        ([0, 1, 2, 3, 4, 5, 6, 8], False),
        ([0, 1, 2, 3, 4], False),
    ],
)
def test_whole_warpgroups_are_four_warps_in_order_from_a_multiple_of_four(rows: list[int], is_whole: bool) -> None:
    assert _whole_groups(np.array(rows)) is is_whole


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("turns", [1, 2])
def test_the_warps_of_a_warpgroup_start_equally_many(turns: int, schedule: Any) -> None:
    """Of the second warpgroup's, warp 5 leaves the last one out."""
    tiles = Tiles()
    some = binary(Op.LT, Var("turn"), as_expr(turns) - binary(Op.EQ, WARP, 5))
    body = (*tiles.fill(), *filled(tiles.sums), WgmmaFence(), loop("turn", turns, If(some, (tiles.multiply(),))), *END)
    found = told(ran(tiles.kernel(*body), tiles.gemm, schedule=schedule))
    text = f"The four warps of a warpgroup have started {turns}, {turns - 1}, {turns}, {turns} wgmma."
    assert (Kind.PARTED_WARP, text) in found


def test_tiles_are_read_once_for_the_four_warps_of_a_warpgroup(monkeypatch: pytest.MonkeyPatch) -> None:
    """Warps come one by one, those of two warpgroups by turns; what was read is forgotten when all four have it."""
    reads: list[int] = []

    def operands(_: Any, convoy: Any, product: Any, warps: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        reads.append(int(convoy.warps[warps[0]]))
        return np.full((1, 2), reads[-1]), np.full((1, 3), -reads[-1])

    monkeypatch.setattr(WgmmaStep, "_operands", operands)
    step = WgmmaStep.__new__(WgmmaStep)
    units = SimpleNamespace(snapshots={}, clocks=SimpleNamespace(row=lambda warps: warps))
    step.context = SimpleNamespace(units=units)  # type: ignore[assignment]
    convoy, product = SimpleNamespace(warps=np.array([6, 1, 4, 5, 0, 2, 7, 3])), SimpleNamespace(number=np.zeros(8))
    for warp, (left, right) in enumerate([(6, 0), (6, 1), (6, 1), (6, 1), (6, 1), (6, 1), (0, 1), (0, 0)]):
        a, b = step._kept(convoy, product, warp)  # type: ignore[arg-type]
        first = 6 if convoy.warps[warp] >= 4 else 1
        assert a.tolist() == [first] * 2 and b.tolist() == [-first] * 3
        kept = {int(one[1][0]) for one in units.snapshots.values()}
        assert kept == {left, right} - {0}
    assert reads == [6, 1] and not units.snapshots
