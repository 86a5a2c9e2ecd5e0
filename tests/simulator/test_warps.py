"""Warps are independent threads of control: roles, loops of different length, deadlock, and no hang."""

from __future__ import annotations

from typing import Any

import pytest
from simulated_kernels import C, at, kernel, less, loop, registers, shared, value, without

from tilewright.dtypes import F32
from tilewright.errors import SimulationError
from tilewright.ir.expr import ONE, Binary, Cast, Expr, Op, Ref, Var, as_expr, real
from tilewright.ir.kernel import Kernel
from tilewright.ir.stmt import Alloc, Assign, Barrier, If, Move, Stmt
from tilewright.problem import Gemm, make_operands
from tilewright.simulator import Kind, simulate

THREAD = Var("threadIdx.x")
LANE = THREAD % 32
SCHEDULES = ["lockstep", "warps"]


def roles(*, producer_barriers: int = 2, consumer_barriers: int = 2, blocks: int = 3) -> Kernel:
    """Warp 0 produces a tile in each step, warps 1 to 3 read it; two barriers a step, each role with its own."""
    tile, x, total, step = shared("tile", 32), registers("x"), registers("sum"), Var("step")
    produce = (
        Alloc(x),
        Assign(at(x), Cast(F32, LANE + step * 100)),
        Move(at(tile, LANE), at(x)),
        *(Barrier(f"producer {i}") for i in range(producer_barriers)),
    )
    consume = (
        Alloc(x),
        *(Barrier(f"consumer {i}") for i in range(consumer_barriers - 1)),
        Move(at(x), at(tile, as_expr(31) - LANE)),
        Assign(at(total), Binary(Op.ADD, value(total), value(x))),
        Barrier("consumer last"),
    )
    body = (
        *(Alloc(total), Assign(at(total), real(0))),
        If(less(THREAD, 32), (loop("step", 4, *produce),), (loop("step", 4, *consume),)),
        Move(Ref(C, (Var("blockIdx.x") * 128 + THREAD,)), at(total)),
    )
    grid: tuple[Expr, Expr, Expr] = (as_expr(blocks), ONE, ONE)
    return kernel(body, grid=grid, block=(128, 1, 1), shared_buffers=(tile,), gemm=Gemm(1, 128 * blocks, 1))


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("seed", range(4))
def test_roles_meet_at_barriers_on_different_lines(schedule: Any, seed: int) -> None:
    run = simulate(roles(), make_operands(Gemm(1, 384, 1)), schedule=schedule, seed=seed)
    expected = [0.0] * 32 + [4.0 * (31 - lane) + 600 for lane in range(32)] * 3
    assert run.c.tolist() == expected * 3 and not run.findings
    assert run.counters.barriers_per_block == 8


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_role_that_misses_a_barrier_leaves_the_others_waiting(schedule: Any) -> None:
    with pytest.raises(SimulationError) as caught:
        simulate(roles(producer_barriers=1), make_operands(Gemm(1, 384, 1)), schedule=schedule, detectors=False)
    message = str(caught.value)
    assert message.startswith("Deadlock in block (0, 0, 0): no warp can go on.")
    assert "warps 1-3 wait for the barrier at line 15: barrier  # consumer 0; warp 0 has ended." in message
    assert "every warp of a block must reach the same barriers equally often." in message


def test_a_deadlock_is_collected_and_nothing_hangs() -> None:
    run = simulate(roles(consumer_barriers=1), make_operands(Gemm(1, 384, 1)), on_finding="collect")
    assert not run.completed
    assert [finding.kind for finding in run.findings][-1] is Kind.DEADLOCK
    assert run.findings[-1].where.loops == (("step", 2),)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_role_that_overwrites_too_early_races(schedule: Any) -> None:
    """Producer and consumers meet once a step: the next tile comes while the last one is read."""
    broken = roles(producer_barriers=1, consumer_barriers=2)
    late = _with_barriers_once(broken)
    run = simulate(late, make_operands(Gemm(1, 384, 1)), schedule=schedule, on_finding="collect")
    assert Kind.RACE in {finding.kind for finding in run.findings}


def _with_barriers_once(kernel: Kernel) -> Kernel:
    def last(stmt: Stmt) -> bool:
        return isinstance(stmt, Barrier) and stmt.note == "consumer last"

    return without(kernel, last)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_blocks_may_loop_differently_often(schedule: Any) -> None:
    """Block b goes round b times, with a barrier each time; also a loop without one inside."""
    x, block = registers("x"), Var("blockIdx.x")
    add = Assign(at(x), Binary(Op.ADD, value(x), real(1)))
    body = (
        *(Alloc(x), Assign(at(x), real(0))),
        loop("outer", block, Barrier(), add, loop("inner", block, add)),
        Move(Ref(C, (block * 64 + THREAD,)), at(x)),
    )
    many = kernel(body, grid=(as_expr(5), ONE, ONE), block=(64, 1, 1), gemm=Gemm(1, 320, 1))
    run = simulate(many, make_operands(Gemm(1, 320, 1)), schedule=schedule)
    assert run.c.reshape(5, 64).tolist() == [[float(b + b * b)] * 64 for b in range(5)]
    assert run.counters.total("executions", "barrier") == 2 * (0 + 1 + 2 + 3 + 4) and not run.findings


def test_a_race_between_blocks_loops_of_different_length() -> None:
    """Epochs are counted for each block: a block that is ahead must not hide a race in one that is behind."""
    tile, x, block = shared("tile", 32), registers("x"), Var("blockIdx.x")
    body = (
        *(Alloc(x), Assign(at(x), Cast(F32, THREAD)), Move(at(tile, THREAD), at(x)), Barrier()),
        loop("step", block + 1, Move(at(x), at(tile, as_expr(31) - THREAD)), Barrier()),
        If(Binary(Op.EQ, block, as_expr(2)), (Move(at(x), at(tile, THREAD)),)),
        Assign(at(x), Cast(F32, THREAD + 1)),
        Move(at(tile, (THREAD + 1) % 32), at(x)),
    )
    many = kernel(body, grid=(as_expr(4), ONE, ONE), shared_buffers=(tile,))
    run = simulate(many, make_operands(Gemm(1, 1, 1)), on_finding="collect")
    assert [(f.kind, f.where.block) for f in run.findings] == [(Kind.RACE, (2, 0, 0))]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_branches_with_barriers_inside_branches(schedule: Any) -> None:
    """Warps part twice and meet again: 4 warps, 4 ways, two barriers on each."""
    x, warp = registers("x"), THREAD // 32

    def way(number: int) -> tuple[Stmt, ...]:
        return (Barrier(), Assign(at(x), real(number)), Barrier())

    halves = If(less(warp, 2), (If(less(warp, 1), way(0), way(1)),), (If(less(warp, 3), way(2), way(3)),))
    body = (Alloc(x), halves, Barrier(), Move(Ref(C, (THREAD,)), at(x)))
    run = simulate(
        kernel(body, block=(128, 1, 1), gemm=Gemm(1, 128, 1)), make_operands(Gemm(1, 128, 1)), schedule=schedule
    )
    assert run.c.reshape(4, 32).tolist() == [[float(w)] * 32 for w in range(4)]
    assert run.counters.barriers_per_block == 3


def test_a_partial_warp_meets_the_others() -> None:
    tile, x = shared("tile", 48), registers("x")
    body = (
        *(Alloc(x), Assign(at(x), Cast(F32, THREAD)), Move(at(tile, THREAD), at(x)), Barrier()),
        *(Move(at(x), at(tile, as_expr(47) - THREAD)), Move(Ref(C, (THREAD,)), at(x))),
    )
    operands = make_operands(Gemm(1, 48, 1))
    run = simulate(kernel(body, block=(48, 1, 1), shared_buffers=(tile,), gemm=operands.gemm), operands)
    assert run.c.tolist() == [47.0 - t for t in range(48)]
    assert run.counters.partial_requests == 3  # the store, the load and the store to C of warp 1


def test_the_order_of_warps_comes_from_the_seed() -> None:
    """Without a barrier, which warp comes first decides what is read."""
    tile, x = shared("tile", 32), registers("x")
    first = less(THREAD, 32)
    body = (
        *(Alloc(x), Assign(at(x), real(0))),
        If(first, (Assign(at(x), real(1)), Move(at(tile, LANE), at(x))), (Move(at(x), at(tile, LANE)),)),
        Move(Ref(C, (THREAD,)), at(x)),
    )
    two = kernel(body, block=(64, 1, 1), shared_buffers=(tile,), gemm=Gemm(1, 64, 1))
    operands = make_operands(Gemm(1, 64, 1))
    results = {str(simulate(two, operands, schedule="warps", seed=seed, detectors=False).c[40]) for seed in range(8)}
    assert results == {"1.0", "nan"}
    again = [simulate(two, operands, schedule="warps", seed=5, detectors=False).c.tobytes() for _ in range(2)]
    assert again[0] == again[1]
