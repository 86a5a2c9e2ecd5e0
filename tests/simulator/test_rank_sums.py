"""Sums over ranks in the kernels: tiles leave for the ranks that keep them, which add them up, whatever the order."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any, Literal

import numpy as np
import pytest

from tests.lowering.test_ordered_sums import KINDS, schedule_at
from tests.mutations.broken import edited, without
from tests.simulator.test_ranks import KINDS as OTHER_KINDS
from tests.simulator.test_ranks import paths_of
from tilewright.dtypes import BF16, Array
from tilewright.errors import LoweringError, SimulationError
from tilewright.ir.async_stmt import Scope, SignalFlag, WaitBarrier, WaitFlag
from tilewright.ir.expr import Const
from tilewright.ir.kernel import (
    MOST_ROWS,
    OWN_RANK,
    PIECE_TILES,
    RECEIVED_FLAGS,
    RECEIVED_PARTS,
    SENT_COUNTS,
    SENT_PARTS,
    SHARD_STARTS,
    SHARDS,
    Kernel,
)
from tilewright.ir.visit import walk
from tilewright.ir.work import Problems, SplitK
from tilewright.kernels.wgmma import WgmmaConfig
from tilewright.kernels.wgmma_presets import one_tile
from tilewright.planning.stack import Shards
from tilewright.planning.tile_parts import TileParts, slot_of
from tilewright.problem import Gemm, Operands, make_operands
from tilewright.problem.reference import view
from tilewright.simulator import Await, Push, Raise, Rank, RanksRun, simulate_ranks
from tilewright.simulator.asynchronous.engines import EngineEvent
from tilewright.toolchain import Build, build

EXCHANGED = (RECEIVED_PARTS, RECEIVED_FLAGS)
PIECES = 3


def config_of(name: str) -> WgmmaConfig:
    return KINDS.get(name) or OTHER_KINDS[name]


def built(gemm: Gemm, name: str = "cooperative") -> Build:
    return replace(build(gemm, schedule_at(gemm, config_of(name))), split_k=SplitK.RANKS)


def pushes(rank: int, parts: TileParts) -> tuple[EngineEvent, ...]:
    """What the copy engines of a rank do: pieces of the next rank's tiles first, each when it is done."""
    ranks, each = len(parts.tiles), parts.tile_bytes // 2
    events: list[EngineEvent] = []
    for keeper, piece in itertools.product([(rank + i) % ranks for i in range(1, ranks)], range(PIECES)):
        first, count = parts.piece(keeper, piece)
        if count:
            source = slot_of(keeper, rank) * parts.slot_bytes // 2 + first * each
            target = slot_of(rank, keeper) * parts.slot_bytes // 2 + first * each
            events.append(Await(SENT_COUNTS, piece * ranks + keeper, count))
            events.append(Push(SENT_PARTS, source, keeper, RECEIVED_PARTS, target, count * each))
        events.append(Raise(keeper, RECEIVED_FLAGS, piece * ranks + rank))
    return tuple(events)


def ranks_of(gemm: Gemm, rows: Sequence[int], name: str = "cooperative") -> tuple[list[Operands], list[Rank]]:
    """A part of k for each rank, and nothing received yet."""
    starts, count = [0, *accumulate(rows)], len(rows)
    poison = BF16.encode(np.array([np.nan], np.float32))[0]
    operands = [make_operands(gemm, seed=rank + 1) for rank in range(count)]
    found = []
    for rank, one in enumerate(operands):
        shards = Shards(tuple(rows), rank, summed=True, pieces=PIECES)
        parts = TileParts.of(shards, config_of(name), gemm.n, 2)
        elements = (count - 1) * parts.slot_bytes // 2
        tables = {
            SHARD_STARTS: np.array(starts, np.int32),
            SENT_PARTS: np.full(elements, poison),
            RECEIVED_PARTS: np.full(elements, poison),
            SENT_COUNTS: np.zeros(PIECES * count, np.int32),
            RECEIVED_FLAGS: np.zeros(PIECES * count, np.int32),
        }
        names = (SHARDS, OWN_RANK, MOST_ROWS, PIECE_TILES)
        numbers = dict(zip((one.name for one in names), shards.numbers(parts.piece_tiles), strict=True))
        found.append(Rank(one, numbers, tables, pushes(rank, parts)))
    return operands, found


def run_of(kernel: Kernel, ranks: Sequence[Rank], **options: Any) -> RanksRun:
    return simulate_ranks(kernel, ranks, EXCHANGED, **options)


def own_rows(gemm: Gemm, run: RanksRun, rows: Sequence[int]) -> list[Array]:
    starts = [0, *accumulate(rows)]
    decoded = [gemm.out.decode(view(gemm, "C", memory["C"])) for memory in run.memory]
    return [one[starts[rank] : starts[rank + 1]] for rank, one in enumerate(decoded)]


@pytest.mark.parametrize(
    ("name", "rows", "blocks"),
    [
        ("cooperative", (128, 72), 3),
        pytest.param("ping-pong", (128, 128), 1, marks=pytest.mark.slow),
        pytest.param("cluster", (128, 0, 100), 2, marks=pytest.mark.slow),
        ("from registers", (0, 136), 9),
        ("swap-AB", (32, 21), 3),
    ],
)
def test_each_rank_has_the_sum_of_its_rows(name: str, rows: tuple[int, ...], blocks: int) -> None:
    """The same bits in every order, and flags that are 0 again."""
    gemm = Gemm(sum(rows), 136, 72, BF16, out=BF16)
    kernel = built(gemm, name).kernel
    operands, ranks = ranks_of(gemm, rows, name)
    exact = sum(one.matrix("A").astype(float) @ one.matrix("B").astype(float) for one in operands)
    bound = sum(abs(one.matrix("A").astype(float)) @ abs(one.matrix("B").astype(float)) for one in operands)
    orders: tuple[Literal["lockstep", "moments"], ...] = ("lockstep", "moments")
    runs = [run_of(kernel, ranks, schedule=order, resident_blocks=blocks) for order in orders]
    starts = [0, *accumulate(rows)]
    for rank, (one, other) in enumerate(zip(*(own_rows(gemm, run, rows) for run in runs), strict=True)):
        np.testing.assert_array_equal(one, other)
        here = slice(starts[rank], starts[rank + 1])
        assert (abs(one - exact[here]) <= 2.0**-7 * bound[here]).all()
    assert not any(memory[SENT_COUNTS].any() for run in runs for memory in run.memory)


SMALL = Gemm(256, 128, 64, BF16, out=BF16)
ROWS = (128, 128)


def small(change: Any = None) -> tuple[Kernel, list[Rank]]:
    kernel = built(SMALL).kernel
    _, ranks = ranks_of(SMALL, ROWS)
    return (kernel if change is None else change(kernel)), ranks


def test_a_missing_wait_is_found() -> None:
    kernel, ranks = small(lambda one: without(one, paths_of(one, WaitFlag)[0]))
    with pytest.raises(SimulationError, match=r"Race on received_parts\[\d+\]"):
        run_of(kernel, ranks)


def test_a_piece_that_is_never_counted_is_a_deadlock() -> None:
    kernel, ranks = small(lambda one: without(one, paths_of(one, SignalFlag)[0]))
    with pytest.raises(SimulationError, match="Deadlock"):
        run_of(kernel, ranks)


def changed(kind: type, **fields: Any) -> Any:
    """The kernel whose only statement of a kind has other fields."""

    def change(one: Kernel) -> Kernel:
        (path,) = paths_of(one, kind)
        return edited(one, path, lambda stmt: (replace(stmt, **fields),))  # type: ignore[type-var]

    return change


def test_a_count_that_orders_one_gpu_is_found() -> None:
    kernel, ranks = small(changed(SignalFlag, scope=Scope.GPU))
    with pytest.raises(SimulationError, match=r"Race on sent_parts\[\d+\]: read by copy engines"):
        run_of(kernel, ranks)


def test_a_wait_for_threads_of_one_gpu_is_found() -> None:
    kernel, ranks = small(changed(WaitFlag, scope=Scope.GPU))
    with pytest.raises(SimulationError, match="set by copy engines, and orders threads of one GPU only"):
        run_of(kernel, ranks)


def test_a_count_that_is_set_and_not_added_to_is_found() -> None:
    """The last tile of a piece does not speak for the others."""
    gemm = Gemm(256, 512, 64, BF16, out=BF16)
    kernel = changed(SignalFlag, adds=False)(built(gemm).kernel)
    with pytest.raises(SimulationError, match="Deadlock"):
        run_of(kernel, ranks_of(gemm, ROWS)[1])


@pytest.mark.parametrize(("barrier", "number", "raced"), [("there", 0, "received_parts"), ("gone", 0, "sent_parts")])
def test_who_does_not_wait_for_the_other_is_found(barrier: str, number: int, raced: str) -> None:
    """Consumers that add before the courier has seen the flag, and a courier that counts before consumers stored."""

    def hasty(one: Kernel) -> Kernel:
        waits = [path for path, stmt in walk(one.body) if _waits_at(stmt, f"parts_{barrier}")]
        return without(one, waits[number])

    kernel, ranks = small(hasty)
    with pytest.raises(SimulationError, match=rf"Race on {raced}\[\d+\]"):
        run_of(kernel, ranks, schedule="moments")


def _waits_at(stmt: Any, barrier: str) -> bool:
    return isinstance(stmt, WaitBarrier) and stmt.place.buffer.name == barrier


@pytest.mark.parametrize("left_out", [Await, Raise])
def test_engines_that_forget_are_found(left_out: type) -> None:
    kernel, ranks = small()
    (where, *_) = [i for i, event in enumerate(ranks[0].events) if isinstance(event, left_out)]
    events = ranks[0].events[:where] + ranks[0].events[where + 1 :]
    match = r"Race on (sent|received)_parts" if left_out is Await else "Deadlock"
    with pytest.raises(SimulationError, match=match):
        run_of(kernel, [replace(ranks[0], events=events), ranks[1]], schedule="moments")


def test_flags_are_numbered_from_0_to_the_last() -> None:
    """Each rank has as many, those of rank 1 behind those of rank 0."""

    def told_of_flag(number: int) -> str:
        (path,) = paths_of(kernel, WaitFlag)
        moved = lambda stmt: (replace(stmt, place=replace(stmt.place, index=(Const(number),))),)  # noqa: E731
        elsewhere = edited(kernel, path, moved)  # type: ignore[type-var]
        return " ".join(finding.headline for finding in run_of(elsewhere, ranks, on_finding="collect").findings)

    kernel, ranks = small()
    count = PIECES * len(ROWS)
    assert f"Flag -1 of {count} does not exist" in told_of_flag(-1)
    assert f"Flag {count} of {count} does not exist" in told_of_flag(count)
    assert "does not exist" not in told_of_flag(count - 1)


def test_a_part_of_another_rank_is_found() -> None:
    """A rank that takes itself for another one, of three."""
    gemm, rows = Gemm(192, 128, 64, BF16, out=BF16), (64, 64, 64)
    kernel = built(gemm, "cluster").kernel
    _, ranks = ranks_of(gemm, rows, "cluster")
    swapped = [replace(ranks[0], arguments={**ranks[0].arguments, OWN_RANK.name: 1}), *ranks[1:]]
    with pytest.raises(SimulationError):
        run_of(kernel, swapped)


@pytest.mark.parametrize("name", ["cooperative", "ping-pong", "cluster", "swap-AB", "from registers"])
def test_parts_are_of_a_block_of_the_kernel(name: str) -> None:
    gemm = Gemm(256, 256, 64, BF16, out=BF16)
    program = built(gemm, name).program
    parts = TileParts.of(Shards((128, 128), 0, summed=True, pieces=PIECES), config_of(name), gemm.n, 2)
    assert parts.tile_bytes == 2 * program.block_tile("m") * program.block_tile("n")


@pytest.mark.parametrize("name", KINDS)
def test_kernels_do_not_spill(name: str) -> None:
    resources = built(Gemm(256, 256, 512, BF16, out=BF16), name).compile("sm_90a").resources
    assert resources.spill_load_bytes == 0


def test_what_cannot_be_shared_out_is_refused() -> None:
    with pytest.raises(LoweringError, match="Sums over ranks need a persistent kernel with a producer"):
        _ = replace(build(SMALL, schedule_at(SMALL, one_tile(64, 128, 1))), split_k=SplitK.RANKS).kernel
    for other in ({"problems": Problems.STRIDED}, {"arriving": True}):
        with pytest.raises(LoweringError, match=r"Ranks share out the k of one|Rows of A can arrive"):
            _ = replace(built(SMALL), **other).kernel  # type: ignore[arg-type]
