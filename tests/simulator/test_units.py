"""Kernels of Hopper's units: right results, counts, and a finding for each way to break them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import accumulate
from typing import Any

import numpy as np
import pytest
from hopper_kernels import GROUP, THREAD, ring, zeroed
from simulated_kernels import at, changed, kernel, without

from tests.mutations.broken import run_of
from tilewright.dtypes import BF16, MBARRIER
from tilewright.errors import SimulationError
from tilewright.ir.async_stmt import (
    ArriveBarrier,
    AsyncStmt,
    ClusterBarrier,
    ExpectBytes,
    FenceBarriers,
    FenceProxy,
    InitBarrier,
    SetRegisters,
    StoreMatrices,
    TeamBarrier,
    TmaLoad,
    TmaStore,
    WaitBarrier,
    WaitStores,
    Wgmma,
    WgmmaFence,
    WgmmaWait,
)
from tilewright.ir.buffer import Buffer, Space
from tilewright.ir.expr import Const, Op, Ref, as_expr, binary
from tilewright.ir.kernel import Kernel
from tilewright.ir.stmt import Alloc, Barrier, Body, For, If, Let, Move, Stmt
from tilewright.ir.text import stmt_text
from tilewright.ir.visit import rewrite, walk
from tilewright.layout.swizzle import NO_SWIZZLE
from tilewright.problem import Gemm, make_operands
from tilewright.problem.reference import reference, view
from tilewright.simulator import Kind, count_sampled, sample_blocks, search_orders, simulate
from tilewright.simulator.asynchronous.clocks import Clocks
from tilewright.simulator.coverage import miscounts
from tilewright.simulator.machine import Order
from tilewright.simulator.warps import Batch

SCHEDULES: list[Order] = ["lockstep", "warps", "moments"]
DEEP = Gemm(64, 64, 256, dtype=BF16, out=BF16)
TALL = Gemm(192, 64, 128, dtype=BF16, out=BF16)


def test_no_two_kinds_of_counters_share_a_place() -> None:
    """Of a block of 8 warps with 3 barriers: four counters a warp, one a warpgroup, one a barrier."""
    clocks = Clocks(Batch((256, 1, 1), (2, 1, 1), np.array([[0, 0, 0], [1, 0, 0]])), 2, 3)
    starts = [0, clocks.fenced, clocks.made, clocks.stored, clocks.multiplied, clocks.phases, clocks.of_block]
    assert starts == list(accumulate([8, 8, 8, 8, 2, 3], initial=0)) and clocks.previous == 2 * clocks.of_block


def kinds(broken: Kernel, gemm: Gemm = DEEP, **options: Any) -> set[Kind]:
    options = {"resident_blocks": broken.cluster, **options}
    run = simulate(broken, make_operands(gemm), on_finding="collect", **options)
    return {finding.kind for finding in run.findings}


def error(broken: Kernel, gemm: Gemm = DEEP) -> str:
    with pytest.raises(SimulationError) as caught:
        simulate(broken, make_operands(gemm), resident_blocks=broken.cluster)
    return str(caught.value)


def worst(run: Any, gemm: Gemm) -> float:
    """The largest error, relative to half a unit in the last place of bf16."""
    exact = reference(make_operands(gemm))
    off = np.abs(BF16.decode(view(gemm, "C", run.c)) - exact)
    return float((off / np.maximum(np.abs(exact), 1)).max() / BF16.unit_roundoff)


@pytest.mark.cross_section("schedule", "cluster", "size", every=2)
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("cluster", [1, 2])
@pytest.mark.parametrize("size", [(64, 64, 64), (128, 128, 256), (256, 64, 192), (200, 104, 136), (8, 8, 8)])
def test_a_ring_is_right_and_clean(size: tuple[int, int, int], cluster: int, schedule: Any) -> None:
    gemm = Gemm(*size, dtype=BF16, out=BF16)
    run = simulate(ring(cluster=cluster), make_operands(gemm), schedule=schedule, resident_blocks=2)
    assert worst(run, gemm) < 1.1 and not run.findings
    assert (run.c == simulate(ring(cluster=cluster), make_operands(gemm)).c).all()  # bit by bit, in any order


@pytest.mark.parametrize("stages", [1, 2, 3, 5])
def test_any_number_of_stages(stages: int) -> None:
    gemm = Gemm(192, 64, 448, dtype=BF16, out=BF16)
    run = simulate(ring(stages=stages), make_operands(gemm), resident_blocks=1)
    assert worst(run, gemm) < 1.1 and not run.findings


def test_the_sums_are_exact_modulo_a_prime() -> None:
    gemm = Gemm(128, 64, 200, dtype=BF16, out=BF16)
    assert miscounts(ring(), gemm) == ()
    assert miscounts(without(ring(), is_a(WaitStores)), gemm) == ()  # as late as it may be, and still in time


def test_counts() -> None:
    gemm = Gemm(128, 128, 128, dtype=BF16, out=BF16)
    counters = simulate(ring(), make_operands(gemm)).counters
    assert counters.fmas == 128**3
    assert counters.instructions["HGMMA"] == 4 * 2 * 4 * 4  # tiles, tiles of k, parts, warps
    assert counters.operand_wavefronts == 4 * 2 * 4 * (64 + 64) * 16 * 2 // 128  # 64 x 16 of A and of B each
    loads, stores = counters.bulk_loads, counters.bulk_stores
    assert (loads.boxes, loads.size_bytes) == (16, 16 * 8192)
    assert loads.sectors == 16 * 64 * 4
    assert (stores.boxes, stores.elements) == (4, 128 * 128) and counters.results == 128 * 128
    assert counters.shared_loads.requests == 0
    assert counters.shared_stores.wavefronts == counters.shared_stores.ideal_wavefronts == 4 * 4 * 4 * 4
    assert counters.bytes_by_level["l2_to_shared_boxes"] == 16 * 8192


def test_a_box_of_a_cluster_is_read_once() -> None:
    gemm = Gemm(128, 64, 64, dtype=BF16, out=BF16)
    loads = simulate(ring(cluster=2), make_operands(gemm)).counters.bulk_loads
    assert (loads.boxes, loads.sectors * 32) == (4, 3 * 8192)


def test_the_blocks_of_boxes_are_sampled() -> None:
    gemm = Gemm(520, 520, 72, dtype=BF16, out=BF16)
    one_tile = replace(ring(), resident=False)
    operands = make_operands(gemm)
    sample = sample_blocks(one_tile, gemm)
    assert sample.is_exact and len(sample.classes) < 81
    whole = simulate(one_tile, operands).counters
    assert count_sampled(one_tile, operands).as_dict() == whole.as_dict()


def test_who_stored_what_is_wrong() -> None:
    def beside(stmt: Stmt) -> Stmt | None:
        if isinstance(stmt, TmaLoad) and stmt.map.operand == "B":
            return replace(stmt, at=(stmt.at[0] + 64, stmt.at[1]))
        return None

    found = miscounts(changed(ring(), beside), Gemm(64, 64, 128, dtype=BF16, out=BF16))
    assert found and found[0].block == (0, 0, 0) and found[0].thread == 0


@pytest.mark.cross_section("cluster", every=2, at=1)
@pytest.mark.parametrize("cluster", [1, 2])
def test_no_statement_of_the_units_can_be_left_out(cluster: int) -> None:
    gemm = Gemm(256, 64, 320, dtype=BF16, out=BF16)
    whole, operands = ring(cluster=cluster), make_operands(gemm)
    right = simulate(whole, operands, resident_blocks=cluster).c
    for _, stmt in walk(whole.body):
        if not isinstance(stmt, (AsyncStmt, Barrier)) or isinstance(stmt, SetRegisters):
            continue
        for schedule in SCHEDULES:
            broken = without(whole, lambda other, stmt=stmt: other is stmt)  # type: ignore[misc]
            run = run_of(broken, operands, schedule=schedule, resident_blocks=cluster)
            is_found = run is None or (isinstance(stmt, TmaStore) and not (run.c == right).all())
            assert is_found, stmt_text(stmt)


# -- ways to break it -----------------------------------------------------------------------------------------------


def is_a(*types: type) -> Callable[[Stmt], bool]:
    return lambda stmt: isinstance(stmt, types)


def with_each(broken: Kernel, kind: type, **fields: Any) -> Kernel:
    return changed(broken, lambda stmt: replace(stmt, **fields) if isinstance(stmt, kind) else None)


def waits(name: str, parity: Callable[[Any], Any]) -> Callable[[Stmt], Stmt | None]:
    def change(stmt: Stmt) -> Stmt | None:
        if isinstance(stmt, WaitBarrier) and stmt.place.buffer.name == name:
            return replace(stmt, parity=parity(stmt.parity))
        return None

    return change


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_missing_fence_between_the_proxies(schedule: Any) -> None:
    assert kinds(without(ring(), is_a(FenceProxy)), schedule=schedule) == {Kind.UNFENCED}
    assert "was written by a thread without a fence" in error(without(ring(), is_a(FenceProxy)))


def test_a_fence_by_one_thread_does_not_do_for_all() -> None:
    alone = changed(
        ring(), lambda stmt: If(binary(Op.EQ, THREAD % 128, 0), (stmt,)) if isinstance(stmt, FenceProxy) else None
    )
    assert kinds(alone) == {Kind.UNFENCED}


@pytest.mark.parametrize(("fences", "kinds_found"), [(3, set()), (1, {Kind.UNFENCED}), (5, {Kind.UNFENCED})])
def test_the_thread_that_wrote_is_the_one_that_must_fence(fences: int, kinds_found: set[Kind]) -> None:
    """Thread 3 of a warpgroup writes alone, and one thread runs the fence."""

    def alone(stmt: Stmt) -> Stmt | None:
        if isinstance(stmt, StoreMatrices):
            write = Move(at(stmt.dst.buffer, 0, 0), at(stmt.src.buffer, 0), 1)
            return If(binary(Op.EQ, THREAD % 128, 3), (write,))
        return If(binary(Op.EQ, THREAD % 128, fences), (stmt,)) if isinstance(stmt, FenceProxy) else None

    assert kinds(changed(ring(), alone)) & {Kind.UNFENCED} == kinds_found


def test_a_fence_after_the_barrier_is_too_late() -> None:
    late = changed(
        without(ring(), is_a(FenceProxy)),
        lambda stmt: If(as_expr(1), (FenceProxy(), stmt)) if isinstance(stmt, TmaStore) else None,
    )
    assert kinds(late) == {Kind.UNFENCED}


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("name", ["full", "empty"])
def test_a_wait_for_the_wrong_phase(name: str, schedule: Any) -> None:
    found = kinds(changed(ring(), waits(name, lambda parity: parity ^ 1)), schedule=schedule)
    assert found & {Kind.RACE, Kind.DEADLOCK}


def test_a_wait_that_passes_at_once_is_a_race_with_the_copy() -> None:
    hasty = changed(ring(), waits("full", lambda parity: parity ^ 1))
    run = simulate(hasty, make_operands(DEEP), on_finding="collect", schedule="warps", seed=3)
    races = [finding.headline for finding in run.findings if finding.kind is Kind.RACE]
    assert any("written by TMA, which tells full[" in headline for headline in races)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_an_arrival_too_few(schedule: Any) -> None:
    assert kinds(without(ring(), is_a(ArriveBarrier)), schedule=schedule) == {Kind.DEADLOCK}
    text = error(without(ring(), is_a(ArriveBarrier)))
    assert "warp 4 waits for empty[0], parity 0 (phase 0: 1 of 1 arrivals missing)" in text
    assert "warps 0-3 wait for full[0], parity 0 (phase 2: 1 of 1 arrivals missing)" not in text  # phase 1, parity 0
    assert "warps 0-3 wait for full[0], parity 1" in text or "warps 0-3 wait for full[0], parity 0" in text


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_an_arrival_too_many(schedule: Any) -> None:
    twice = changed(
        ring(),
        lambda stmt: (
            If(binary(Op.LT, THREAD % 128, 2), stmt.then)
            if isinstance(stmt, If) and isinstance(stmt.then[0], ArriveBarrier)
            else None
        ),
    )
    assert Kind.MBARRIER in kinds(twice, schedule=schedule)
    more = with_each(ring(), InitBarrier, arrivals=2)
    assert kinds(more, schedule=schedule) == {Kind.DEADLOCK}


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_slot_is_overwritten_while_it_is_read(schedule: Any) -> None:
    early = with_each(ring(), WgmmaWait, pending=1)
    assert Kind.RACE in kinds(early, schedule=schedule)


def test_a_slot_that_nobody_waits_to_be_empty() -> None:
    hasty = without(ring(), lambda stmt: isinstance(stmt, WaitBarrier) and stmt.place.buffer.name == "empty")
    assert Kind.RACE in kinds(hasty)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("how", ["stride", "leading", "place", "turned", "swizzle", "beyond"])
def test_a_descriptor_that_points_elsewhere(how: str, schedule: Any) -> None:
    def change(stmt: Stmt) -> Stmt | None:
        if not isinstance(stmt, Wgmma):
            return None
        a, b = stmt.a, stmt.b
        match how:
            case "stride":
                return replace(stmt, a=replace(a, stride_bytes=2048))
            case "leading":
                return replace(stmt, b=replace(b, stride_bytes=512))
            case "place":
                slot, _, column = a.place.index
                return replace(stmt, a=replace(a, place=Ref(a.place.buffer, (slot, as_expr(8), column))))
            case "turned":
                return replace(stmt, b=replace(b, turned=False))
            case "swizzle":
                return replace(stmt, b=replace(b, swizzle=NO_SWIZZLE))
            case _:
                return replace(stmt, b=replace(b, stride_bytes=1 << 17))

    broken = changed(ring(), change)
    run = simulate(broken, make_operands(DEEP), on_finding="collect", schedule=schedule)
    assert run.errors or worst(run, DEEP) > 10
    if how in ("stride", "place"):  # rows of the next slot, which is being filled
        assert Kind.RACE in {finding.kind for finding in run.errors}
    if how == "beyond":
        assert Kind.OUT_OF_BOUNDS in {finding.kind for finding in run.errors}


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_sum_is_read_before_the_products_are_over(schedule: Any) -> None:
    assert Kind.IN_FLIGHT in kinds(without(ring(), is_a(WgmmaWait)), schedule=schedule)
    assert "Registers of sums are touched while a wgmma uses them" in error(
        without(without(ring(stages=4), is_a(WgmmaWait)), is_a(ArriveBarrier))
    )


def test_sums_that_were_written_need_a_fence() -> None:
    def zero(stmt: Stmt) -> Body | None:
        return (stmt, zeroed(stmt.buffer)) if isinstance(stmt, Alloc) and stmt.buffer.name == "sums" else None

    written = replace(ring(), body=rewrite(ring().body, zero))
    assert kinds(written) == set()
    assert kinds(without(written, is_a(WgmmaFence))) == {Kind.UNFENCED}
    assert kinds(without(ring(), is_a(WgmmaFence))) == {Kind.UNFENCED}  # also before the first product of all


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_staging_is_overwritten_while_it_is_stored(schedule: Any) -> None:
    def first(stmt: Stmt) -> bool:
        return isinstance(stmt, If) and stmt.then == (WaitStores(0),)

    never = without(ring(), first)
    assert kinds(never, TALL, schedule=schedule) == {Kind.RACE, Kind.UNFINISHED}
    assert "read by a bulk store of warp 0" in error(never, TALL)


@pytest.mark.parametrize("order", ["lockstep", "warps", *range(6), "search"])
def test_a_copy_that_nobody_waits_for(order: Any) -> None:
    """The producer loads a tile more than is multiplied: an error also where it has landed before the block ends."""

    def further(stmt: Stmt) -> Stmt | None:
        fills = isinstance(stmt, For) and stmt.var == "step" and isinstance(stmt.body[-1], TmaLoad)
        return replace(stmt, extent=stmt.extent + 1) if fills else None  # type: ignore[call-overload,no-any-return]

    broken = changed(ring(), further)
    if order == "search":
        found = {finding.kind for finding in search_orders(broken, make_operands(DEEP), resident_blocks=1).errors}
    elif isinstance(order, int):
        found = kinds(broken, schedule="moments", seed=order)
    else:
        found = kinds(broken, schedule=order)
    assert found == {Kind.UNFINISHED}
    assert "and no thread has waited for full[0]" in error(broken)


def test_every_thread_may_wait_but_only_its_own_stores_count() -> None:
    def other(stmt: Stmt) -> Stmt | None:
        if isinstance(stmt, If) and stmt.then == (WaitStores(0),):
            return If(binary(Op.EQ, THREAD % 128, 1), stmt.then)
        return None

    assert kinds(changed(ring(), other), TALL) == {Kind.RACE, Kind.UNFINISHED}


def test_more_bytes_are_expected_than_come() -> None:
    text = error(with_each(ring(), ExpectBytes, size_bytes=16384 + 16))
    assert "warps 0-3 wait for full[0], parity 0 (phase 0: 16 bytes missing)" in text
    assert "Deadlock in block (0, 0, 0)" in text


@pytest.mark.parametrize("size_bytes", [8192, 16384 - 16])
def test_fewer_bytes_are_expected_than_come(size_bytes: int) -> None:
    assert kinds(with_each(ring(), ExpectBytes, size_bytes=size_bytes)) & {Kind.RACE, Kind.DEADLOCK, Kind.MBARRIER}


def test_bytes_that_nobody_waits_for() -> None:
    lost = without(ring(), lambda stmt: isinstance(stmt, WaitBarrier) and stmt.place.buffer.name == "full")
    found = kinds(lost)
    assert found & {Kind.RACE, Kind.UNWRITTEN} and Kind.MBARRIER in found


def test_a_team_of_the_wrong_size() -> None:
    text = error(with_each(ring(), TeamBarrier, threads=256))
    assert "named barrier 1 (4 of 8 warps are there)" in text
    assert Kind.RACE in kinds(with_each(ring(), TeamBarrier, threads=32))


@pytest.mark.parametrize("cluster", [1, 2])
def test_barriers_that_are_not_visible(cluster: int) -> None:
    gemm = Gemm(128, 64, 128, dtype=BF16, out=BF16)
    assert Kind.MBARRIER in kinds(without(ring(cluster=cluster), is_a(FenceBarriers)), gemm)
    assert Kind.MBARRIER in kinds(without(ring(cluster=cluster), is_a(Barrier, ClusterBarrier)), gemm)
    assert Kind.MBARRIER in kinds(without(ring(cluster=cluster), is_a(InitBarrier)), gemm)


def test_a_block_ends_before_others_arrive() -> None:
    gemm = Gemm(128, 64, 128, dtype=BF16, out=BF16)
    body = ring(cluster=2).body
    assert isinstance(body[-1], ClusterBarrier)
    early = replace(ring(cluster=2), body=body[:-1])
    assert kinds(early, gemm) == {Kind.MBARRIER}
    assert "may end before another block of its cluster arrives" in error(early, gemm)


def test_a_promise_of_one_value_for_a_warp() -> None:
    broken = changed(ring(), lambda stmt: Let("odd", THREAD // 16, uniform=True) if isinstance(stmt, Barrier) else None)
    assert Kind.NOT_UNIFORM in kinds(broken)


def test_many_threads_start_one_copy() -> None:
    def all_lanes(stmt: Stmt) -> Stmt | None:
        if isinstance(stmt, If) and any(isinstance(inner, TmaStore) for inner in stmt.then):
            return If(binary(Op.LT, THREAD % 128, 32), stmt.then)
        return None

    assert "32 lanes of a warp start the same bulk copy" in error(changed(ring(), all_lanes))


def test_boxes_begin_at_multiples_of_the_swizzle() -> None:
    small = Buffer("small", Space.SHARED, BF16, (64,))
    tiles = tuple(replace(buffer, align_bytes=0) for buffer in ring().shared)
    text = error(replace(ring(), shared=(small, *tiles)))
    assert "A box in A_tile is at byte 128 of shared memory, not at a multiple of 1024" in text


@pytest.mark.parametrize("elements", [1, 4, 8])
def test_boxes_begin_at_multiples_of_16_bytes_of_a_line(elements: int) -> None:
    """As the hardware has it, though the driver takes the map."""

    def later(stmt: Stmt) -> Stmt | None:
        if isinstance(stmt, TmaLoad) and stmt.map.operand == "A":
            return replace(stmt, at=(stmt.at[0] + elements, *stmt.at[1:]))
        return None

    gemm = Gemm(64, 64, 64, dtype=BF16, out=BF16)
    if elements % 8 == 0:
        assert Kind.MISALIGNED not in kinds(changed(ring(), later), gemm)
    else:
        text = error(changed(ring(), later), gemm)
        assert f"A box of A begins at byte {2 * elements} of a line, not at a multiple of 16" in text


def test_leading_dimensions_are_multiples_of_16_bytes() -> None:
    text = error(ring(), Gemm(64, 64, 64, dtype=BF16, out=BF16, lda=68))
    assert "the leading dimension of A is 136 bytes" in text


def test_a_store_would_overwrite_what_lies_behind_a_row() -> None:
    gemm = Gemm(64, 61, 64, dtype=BF16, out=BF16, ldb=64, ldc=64)
    assert "the rows of C are 122 bytes long, and TMA writes whole pieces of 16" in error(ring(), gemm)
    assert kinds(ring(), replace(gemm, n=56)) == set()


def test_registers_do_not_grow_beyond_what_there_is() -> None:
    def with_budget(shrunk: int, grown: int) -> Kernel:
        body = (
            Let("group", THREAD // 128, uniform=True),
            If(binary(Op.EQ, GROUP, 2), (SetRegisters(shrunk, grow=False),), (SetRegisters(grown, grow=True),)),
        )
        return kernel(body, block=(384, 1, 1))

    assert kinds(with_budget(24, 240), Gemm(1, 1, 1)) == set()
    assert kinds(with_budget(32, 240), Gemm(1, 1, 1)) == set()  # all of them
    assert kinds(with_budget(40, 240), Gemm(1, 1, 1)) == {Kind.REGISTERS}
    assert "240 + 240 + 64 registers a thread, 69632 in all" in error(with_budget(64, 240), Gemm(1, 1, 1))


def test_a_warpgroup_that_gives_up_none_keeps_its_share() -> None:
    """Three warpgroups begin with 168 registers a thread: one may not take 240 before another has given some."""
    group = Let("group", THREAD // 128, uniform=True)
    alone = If(binary(Op.EQ, GROUP, 0), (SetRegisters(240, grow=True),))
    assert "240 + 168 + 168 registers a thread" in error(kernel((group, alone), block=(384, 1, 1)), Gemm(1, 1, 1))


@pytest.mark.parametrize("count", [16, 20, 25, 260, 264])
def test_registers_of_a_warpgroup_are_multiples_of_8_from_24_to_256(count: int) -> None:
    budget = kernel((SetRegisters(count, grow=count > 128),), block=(128, 1, 1))
    assert f"A warpgroup cannot have {count} registers a thread" in error(budget, Gemm(1, 1, 1))


def test_two_uses_of_a_barrier_that_is_not_there() -> None:
    bar = Buffer("bar", Space.SHARED, MBARRIER, (1,))
    body = (WaitBarrier(at(bar), as_expr(0)),)
    text = error(kernel(body, shared_buffers=(bar,)), Gemm(1, 1, 1))
    assert "bar[0] is used before it is made" in text


def test_only_some_lanes_multiply() -> None:
    def some(stmt: Stmt) -> Stmt | None:
        return If(binary(Op.LT, THREAD % 32, 16), (stmt,)) if isinstance(stmt, Wgmma) else None

    assert Kind.PARTED_WARP in kinds(changed(ring(), some))
    three = changed(ring(), lambda s: If(binary(Op.LT, THREAD, 96), (s,)) if isinstance(s, Wgmma) else None)
    assert Kind.PARTED_WARP in kinds(three)


def test_a_load_that_is_missing_shows_as_missing_bytes() -> None:
    lost = without(ring(), lambda stmt: isinstance(stmt, TmaLoad) and stmt.dst.buffer.name == "B_tile")
    assert "warps 0-3 wait for full[0], parity 0 (phase 0: 8192 bytes missing)" in error(lost)


@pytest.mark.parametrize(
    ("mask", "told"), [(0, "names no block of the cluster of 2"), (0b101, "names blocks beyond the")]
)
def test_a_multicast_goes_to_blocks_of_its_cluster(mask: int, told: str) -> None:
    def other(stmt: Stmt) -> Stmt | None:
        return replace(stmt, mask=Const(mask)) if isinstance(stmt, TmaLoad) and stmt.mask is not None else None

    assert f"The mask {mask:#b} {told}" in error(changed(ring(cluster=2), other), Gemm(128, 128, 128, BF16, out=BF16))
