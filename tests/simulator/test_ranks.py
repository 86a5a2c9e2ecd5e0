"""Several GPUs at once: rows that copy engines push while kernels run, remote stores, and flags that are forgotten."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any, Literal

import numpy as np
import pytest

from tests.mutations.broken import edited, without
from tilewright.dtypes import BF16, F32, I32, Array
from tilewright.errors import SimulationError
from tilewright.ir.async_stmt import FenceProxy, Scope, SignalFlag, WaitFlag
from tilewright.ir.buffer import Buffer, Space
from tilewright.ir.expr import ONE, ZERO, Binary, Load, Op, Ref, Select, Var, binary
from tilewright.ir.kernel import OWN_ROW, SAFE, SHARD_FLAGS, SHARD_STARTS, SHARDS, Kernel
from tilewright.ir.stmt import Alloc, Assign, Barrier, If, Move
from tilewright.ir.visit import Path, walk
from tilewright.kernels.wgmma import WgmmaConfig
from tilewright.kernels.wgmma_presets import PING_PONG, at_depth, clustered, persistent
from tilewright.problem import Gemm, Operands, make_operands
from tilewright.problem.reference import view
from tilewright.simulator import Await, Kind, Push, Raise, Rank, RanksRun, simulate_ranks
from tilewright.simulator.asynchronous.engines import EngineEvent
from tilewright.toolchain import build

KINDS: dict[str, WgmmaConfig] = {
    "cooperative": persistent(128, 128, 2, subtile=64),
    "cluster": clustered(persistent(64, 128, 1, subtile=64)),
    "ping-pong": replace(PING_PONG, tile=(64, 128, 64), subtile=64, stages=3),
    "swap-AB": WgmmaConfig(tile=(32, 64, 64), consumers=1, swap_ab=True, stages=3, raster_rows=16, subtile=64),
}
GATHERED = ("A", SHARD_FLAGS)


def gathering(gemm: Gemm, config: WgmmaConfig = KINDS["cooperative"]) -> Kernel:
    """A product whose rows of A arrive."""
    return replace(build(gemm, at_depth(config, gemm).schedule(gemm)), arriving=True).kernel


def pushes(rank: int, rows: Sequence[int], k: int) -> tuple[EngineEvent, ...]:
    """What the copy engines of a rank do in a gather: the peer that needs the rows first comes first."""
    start = sum(rows[:rank]) * k
    events: list[EngineEvent] = []
    for distance in range(1, len(rows)):
        peer = (rank - distance) % len(rows)
        events += [Push("A", start, peer, "A", start, rows[rank] * k), Raise(peer, SHARD_FLAGS, rank)]
    return tuple(events)


def gather_of(gemm: Gemm, rows: Sequence[int]) -> tuple[list[Operands], list[Rank]]:
    """Operands with all rows, and ranks that have their own rows alone."""
    starts = [0, *accumulate(rows)]
    complete, ranks = [], []
    a = make_operands(gemm).storage("A")
    for rank in range(len(rows)):
        operands = make_operands(gemm, seed=rank + 1)
        whole = replace(operands, a=a)
        own = np.full_like(a, BF16.encode(np.array([np.nan], np.float32))[0])
        here = slice(starts[rank] * gemm.k, starts[rank + 1] * gemm.k)
        own[here] = a[here]
        flags = np.array([int(i == rank) for i in range(len(rows))], np.int32)
        tables = {SHARD_STARTS: np.array(starts, np.int32), SHARD_FLAGS: flags}
        arguments = {SHARDS.name: len(rows), OWN_ROW.name: starts[rank]}
        complete.append(whole)
        ranks.append(Rank(replace(operands, a=own), arguments, tables, pushes(rank, rows, gemm.k)))
    return complete, ranks


def results(gemm: Gemm, run: RanksRun) -> list[Array]:
    return [gemm.out.decode(view(gemm, "C", memory["C"])) for memory in run.memory]


def alone(gemm: Gemm, kernel_of: WgmmaConfig, operands: Operands) -> Array:
    """The product of all rows on one GPU, by the kernel that waits for none."""
    run = build(gemm, at_depth(kernel_of, gemm).schedule(gemm)).simulate(operands, listeners=())
    return gemm.out.decode(view(gemm, "C", run.c))


@pytest.mark.parametrize(
    ("name", "rows", "schedule"),
    [
        ("cooperative", (128, 72), "lockstep"),
        ("cooperative", (130, 70), "moments"),
        ("cluster", (0, 136), "warps"),
        ("ping-pong", (65, 1, 70), "moments"),
        ("swap-AB", (33, 20), "warps"),
    ],
)
def test_rows_are_gathered_while_kernels_run(
    name: str, rows: tuple[int, ...], schedule: Literal["lockstep", "warps", "moments"]
) -> None:
    """Any shards, the bits of one GPU, whatever the order of warps and copies."""
    gemm = Gemm(sum(rows), 136, 72, BF16, out=BF16)
    complete, ranks = gather_of(gemm, rows)
    run = simulate_ranks(gathering(gemm, KINDS[name]), ranks, GATHERED, schedule=schedule, resident_blocks=2)
    assert run.completed
    for found, operands in zip(results(gemm, run), complete, strict=True):
        np.testing.assert_array_equal(found, alone(gemm, KINDS[name], operands))


def paths_of(kernel: Kernel, kind: type, **fields: Any) -> list[Path]:
    return [
        path
        for path, stmt in walk(kernel.body)
        if isinstance(stmt, kind) and all(getattr(stmt, name) is value for name, value in fields.items())
    ]


SMALL = Gemm(192, 128, 64, BF16, out=BF16)
ROWS = (128, 64)


def run_of(kernel: Kernel, ranks: Sequence[Rank], **options: Any) -> RanksRun:
    return simulate_ranks(kernel, ranks, GATHERED, **options)


@pytest.mark.parametrize("schedule", ["lockstep", "moments"])
def test_a_missing_wait_is_found(schedule: Literal["lockstep", "moments"]) -> None:
    kernel = gathering(SMALL)
    (path,) = paths_of(kernel, WaitFlag)
    _, ranks = gather_of(SMALL, ROWS)
    with pytest.raises(SimulationError, match=r"Race on A\[\d+\]"):
        run_of(without(kernel, path), ranks, schedule=schedule)


def test_a_missing_fence_is_found() -> None:
    kernel = gathering(SMALL)
    (path,) = paths_of(kernel, FenceProxy, space=Space.GLOBAL)
    _, ranks = gather_of(SMALL, ROWS)
    with pytest.raises(SimulationError, match="no fence orders it behind the wait"):
        run_of(without(kernel, path), ranks)


def test_a_fence_in_front_of_the_wait_is_found() -> None:
    kernel = gathering(SMALL)
    (wait,), (fence,) = paths_of(kernel, WaitFlag), paths_of(kernel, FenceProxy, space=Space.GLOBAL)
    moved = edited(without(kernel, fence), wait, lambda stmt: (FenceProxy(Space.GLOBAL), stmt))
    _, ranks = gather_of(SMALL, ROWS)
    with pytest.raises(SimulationError, match="no fence orders it behind the wait"):
        run_of(moved, ranks)


def test_a_wait_for_threads_of_one_gpu_is_found() -> None:
    kernel = gathering(SMALL)
    (path,) = paths_of(kernel, WaitFlag)

    def narrowed(stmt: Any) -> tuple[Any, ...]:
        return (replace(stmt, scope=Scope.GPU),)

    _, ranks = gather_of(SMALL, ROWS)
    with pytest.raises(SimulationError, match="set by copy engines, and orders threads of one GPU only"):
        run_of(edited(kernel, path, narrowed), ranks)


@pytest.mark.parametrize("schedule", ["lockstep", "moments"])
def test_a_flag_that_is_set_before_its_rows_is_found(schedule: Literal["lockstep", "moments"]) -> None:
    _, ranks = gather_of(SMALL, ROWS)
    early = [replace(one, events=one.events[::-1]) for one in ranks]
    with pytest.raises(SimulationError, match=r"Race on A\[\d+\]"):
        run_of(gathering(SMALL), early, schedule=schedule)


def test_a_wait_for_another_shard_is_found() -> None:
    """The flag of the next shard in place of the tile's own."""
    kernel = gathering(SMALL)
    (path,) = paths_of(kernel, WaitFlag)

    def shifted(stmt: Any) -> tuple[Any, ...]:
        (index,) = stmt.place.index
        return (replace(stmt, place=replace(stmt.place, index=((index + 1) % 2,))),)

    _, ranks = gather_of(SMALL, ROWS)
    with pytest.raises(SimulationError, match=r"Race on A\[\d+\]"):
        run_of(edited(kernel, path, shifted), ranks)


def test_rows_pushed_to_another_place_are_found() -> None:
    _, ranks = gather_of(SMALL, ROWS)
    push, flag = ranks[1].events
    assert isinstance(push, Push)
    wrong = replace(ranks[1], events=(replace(push, at=0), flag))
    found = run_of(gathering(SMALL), [ranks[0], wrong], on_finding="collect")
    assert Kind.RACE in {one.kind for one in found.findings}


def test_a_flag_that_nobody_sets_is_a_deadlock() -> None:
    _, ranks = gather_of(SMALL, ROWS)
    silent = replace(ranks[1], events=ranks[1].events[:1])
    with pytest.raises(SimulationError, match="Deadlock in block"):
        run_of(gathering(SMALL), [ranks[0], silent])


def test_engines_that_wait_for_nobody_are_a_deadlock() -> None:
    _, ranks = gather_of(SMALL, ROWS)
    waiting = replace(ranks[0], events=(*ranks[0].events, Await(SHARD_FLAGS, 0, 2)))
    with pytest.raises(SimulationError, match=r"copy engines of rank 0 wait for shard_flags\[0\] to be 2"):
        run_of(gathering(SMALL), [waiting, ranks[1]])


def test_rows_that_come_before_those_of_the_last_call_were_read_are_found() -> None:
    """A peer that pushes twice without waiting in between."""
    _, ranks = gather_of(SMALL, ROWS)
    twice = replace(ranks[1], events=(*ranks[1].events, ranks[1].events[0]))
    with pytest.raises(SimulationError, match=r"Race on A\[\d+\]"):
        run_of(gathering(SMALL), [ranks[0], twice])


LANES = 32


def exchanging(scope: Scope = Scope.SYSTEM, *, early: bool = False, waits: bool = True) -> Kernel:
    """Each of two ranks stores 32 numbers in the peer's memory, and adds up what both have in the order of ranks."""
    lane, rank, own = Var("threadIdx.x"), Var("rank"), Buffer("value", Space.REGISTER, F32, (1,))
    sent, received = Buffer("sum", Space.REGISTER, F32, (1,)), Buffer("received", Space.GLOBAL, F32, ())
    flags = Buffer("peer_arrived", Space.GLOBAL, I32, (), of_ranks=True)
    far = Ref(Buffer("peer_received", Space.GLOBAL, F32, (), of_ranks=True), (1 - rank, lane))
    first = binary(Op.EQ, lane, 0)
    store = Move(far, Ref(own, (ZERO,)))
    signal = If(first, (SignalFlag(Ref(flags, (1 - rank, ZERO)), ONE, scope=scope),))
    meet = Barrier("all have stored")
    wait = If(first, (WaitFlag(Ref(Buffer("arrived", Space.GLOBAL, I32, ()), (ZERO,)), ONE, scope=scope),))
    mine, theirs = Load(own, (ZERO,)), Load(sent, (ZERO,))
    is_first = binary(Op.EQ, rank, 0)
    body = (
        *(Alloc(own), Alloc(sent), Move(Ref(own, (ZERO,)), Ref(Buffer("A", Space.GLOBAL, F32, ()), (lane,)))),
        *((signal, meet, store) if early else (store, meet, signal)),
        *((wait, Barrier("the peer has stored")) if waits else ()),
        Move(Ref(sent, (ZERO,)), Ref(received, (lane,))),
        Assign(
            Ref(sent, (ZERO,)),
            Binary(Op.ADD, Select(is_first, mine, theirs), Select(is_first, theirs, mine)),
        ),
        Move(Ref(Buffer("C", Space.GLOBAL, F32, ()), (lane,)), Ref(sent, (ZERO,))),
    )
    gemm = Gemm(1, LANES, LANES)
    return Kernel("exchange", gemm, SAFE, (ONE, ONE, ONE), (LANES, 1, 1), (), body, {"m": 1, "n": LANES, "k": LANES})


def exchanged(kernel: Kernel, **options: Any) -> tuple[RanksRun, list[Operands]]:
    operands = [make_operands(Gemm(1, LANES, LANES), seed=seed) for seed in (1, 2)]
    tables = {"received": np.full(LANES, np.nan, np.float32), "arrived": np.zeros(1, np.int32)}
    ranks = [Rank(one, {"rank": rank}, tables) for rank, one in enumerate(operands)]
    return simulate_ranks(kernel, ranks, ("received", "arrived"), **options), operands


@pytest.mark.parametrize("schedule", ["lockstep", "moments"])
def test_kernels_store_in_each_others_memory(schedule: Literal["lockstep", "moments"]) -> None:
    run, operands = exchanged(exchanging(), schedule=schedule)
    total = operands[0].storage("A") + operands[1].storage("A")
    for memory in run.memory:
        np.testing.assert_array_equal(memory["C"], total)


def test_remote_stores_that_no_wait_orders_are_found() -> None:
    with pytest.raises(SimulationError, match=r"Race on (peer_)?received\[\d+\]"):
        exchanged(exchanging(waits=False))


def test_remote_stores_behind_their_flag_are_found() -> None:
    with pytest.raises(SimulationError, match=r"Race on (peer_)?received\[\d+\]"):
        exchanged(exchanging(early=True))


def test_remote_stores_without_a_fence_of_the_system_are_found() -> None:
    with pytest.raises(SimulationError, match="set by another GPU, and orders threads of one GPU only"):
        exchanged(exchanging(Scope.GPU))
