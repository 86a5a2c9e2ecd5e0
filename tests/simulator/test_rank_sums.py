"""Sums over ranks in the kernels: tiles leave for the ranks that keep them, which add them up, whatever the order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any, Literal

import numpy as np
import pytest

from tests.lowering.test_ordered_sums import KINDS, schedule_at
from tests.mutations.broken import edited, without
from tests.simulator.test_ranks import KINDS as OTHER_KINDS
from tilewright.dtypes import BF16, Array
from tilewright.errors import LoweringError, SimulationError
from tilewright.ir.async_stmt import Scope, SignalFlag, TeamBarrier, WaitBarrier, WaitFlag
from tilewright.ir.expr import ONE, ZERO, Var
from tilewright.ir.kernel import (
    MOST_ROWS,
    OWN_RANK,
    RECEIVED_FLAGS,
    RECEIVED_PARTS,
    SENT_FLAGS,
    SENT_PARTS,
    SHARD_STARTS,
    SHARDS,
    Kernel,
)
from tilewright.ir.visit import walk
from tilewright.ir.work import Problems, SplitK
from tilewright.kernels.wgmma import WgmmaConfig
from tilewright.kernels.wgmma_presets import one_tile
from tilewright.lowering import rank_carriers, roles
from tilewright.lowering.rank_sums import MOST_BLOCKS, flags_of
from tilewright.lowering.spare_warps import Team
from tilewright.planning.beside_products import TileParts
from tilewright.planning.packing import Shards
from tilewright.problem import Gemm, Operands, make_operands
from tilewright.problem.reference import view
from tilewright.simulator import Rank, RanksRun, simulate_ranks
from tilewright.toolchain import Build, build

EXCHANGED = (RECEIVED_PARTS, RECEIVED_FLAGS)


def config_of(name: str) -> WgmmaConfig:
    return KINDS.get(name) or OTHER_KINDS[name]


def built(gemm: Gemm, name: str = "cooperative") -> Build:
    return replace(build(gemm, schedule_at(gemm, config_of(name))), split_k=SplitK.RANKS)


def ranks_of(gemm: Gemm, rows: Sequence[int], name: str = "cooperative") -> tuple[list[Operands], list[Rank]]:
    """A part of k for each rank, and nothing received yet."""
    starts, count = [0, *accumulate(rows)], len(rows)
    poison = BF16.encode(np.array([np.nan], np.float32))[0]
    operands = [make_operands(gemm, seed=rank + 1) for rank in range(count)]
    found = []
    for rank, one in enumerate(operands):
        shards = Shards(tuple(rows), rank, summed=True)
        parts = TileParts.of(shards, config_of(name), gemm.n, 2)
        elements = (count - 1) * parts.slot_bytes // 2
        tables = {
            SHARD_STARTS: np.array(starts, np.int32),
            SENT_PARTS: np.full(elements, poison),
            RECEIVED_PARTS: np.full(elements, poison),
            SENT_FLAGS: np.zeros((count - 1) * parts.tiles, np.int32),
            RECEIVED_FLAGS: np.zeros(flags_of(count, parts.tiles), np.int32),
        }
        names = (SHARDS, OWN_RANK, MOST_ROWS)
        found.append(Rank(one, dict(zip((one.name for one in names), shards.numbers, strict=True)), tables))
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
    for memory in (memory for run in runs for memory in run.memory):
        assert not memory[SENT_FLAGS].any()
        count = len(rows)
        of_blocks, of_tiles = np.split(memory[RECEIVED_FLAGS], [(count + 1) * MOST_BLOCKS])
        assert set(of_blocks) == {0, 1} and not of_tiles.any()


SMALL = Gemm(256, 128, 64, BF16, out=BF16)
ROWS = (128, 128)


def small(change: Any = None) -> tuple[Kernel, list[Rank]]:
    kernel = built(SMALL).kernel
    _, ranks = ranks_of(SMALL, ROWS)
    return (kernel if change is None else change(kernel)), ranks


def names(kind: type, buffer: str, *, counts: bool = False) -> Any:
    """Statements of a kind that name a flag of tiles, or of launches (counts)."""

    def found(stmt: Any) -> bool:
        here = isinstance(stmt, kind) and stmt.place.buffer.name.endswith(buffer)  # type: ignore[attr-defined]
        return here and (Var("launches") == stmt.value) == counts  # type: ignore[attr-defined]

    return found


def left_out(chosen: Any) -> Any:
    def change(one: Kernel) -> Kernel:
        (path,) = (path for path, stmt in walk(one.body) if chosen(stmt))
        return without(one, path)

    return change


def changed(chosen: Any, **fields: Any) -> Any:
    """The kernel whose only statement that is chosen has other fields."""

    def change(one: Kernel) -> Kernel:
        (path,) = (path for path, stmt in walk(one.body) if chosen(stmt))
        return edited(one, path, lambda stmt: (replace(stmt, **fields),))  # type: ignore[type-var]

    return change


def told(buffer: str) -> Any:
    """Where a flag of tiles is set to 1."""
    return lambda stmt: names(SignalFlag, buffer)(stmt) and stmt.value == ONE


def set_back(buffer: str) -> Any:
    return lambda stmt: names(SignalFlag, buffer)(stmt) and stmt.value == ZERO


@pytest.mark.parametrize("buffer", [SENT_FLAGS, RECEIVED_FLAGS])
def test_a_missing_wait_is_found(buffer: str) -> None:
    kernel, ranks = small(left_out(names(WaitFlag, buffer)))
    raced = buffer.replace("flags", "parts")
    with pytest.raises(SimulationError, match=rf"Race on (peer_)?{raced}\[\d+\]"):
        run_of(kernel, ranks, schedule="moments")


@pytest.mark.parametrize(
    "chosen", [told(SENT_FLAGS), told(RECEIVED_FLAGS), names(SignalFlag, RECEIVED_FLAGS, counts=True)]
)
def test_what_is_never_told_is_a_deadlock(chosen: Any) -> None:
    kernel, ranks = small(left_out(chosen))
    with pytest.raises(SimulationError, match="Deadlock"):
        run_of(kernel, ranks)


def test_launches_follow_each_other() -> None:
    """The memory as a launch leaves it is that of the next one; a peer that may not write yet is waited for."""
    kernel, ranks = small()
    first = run_of(kernel, ranks)
    again = [replace(one, tables=dict(memory)) for one, memory in zip(ranks, first.memory, strict=True)]
    for one in again:
        one.tables.pop("C", None)
    kept = (SHARD_STARTS, SENT_PARTS, RECEIVED_PARTS, SENT_FLAGS, RECEIVED_FLAGS)
    again = [replace(one, tables={name: one.tables[name] for name in kept}) for one in again]
    second = run_of(kernel, again, schedule="moments")
    for before, after in zip(first.memory, second.memory, strict=True):
        np.testing.assert_array_equal(before["C"], after["C"])
        assert set(after[RECEIVED_FLAGS]) == {0, 2} and not after[SENT_FLAGS].any()
    behind = dict(again[0].tables)
    behind[RECEIVED_FLAGS] = behind[RECEIVED_FLAGS] + (behind[RECEIVED_FLAGS] == 1)
    with pytest.raises(SimulationError, match="Deadlock"):
        run_of(kernel, [replace(again[0], tables=behind), again[1]])


@pytest.mark.parametrize("buffer", [SENT_FLAGS, RECEIVED_FLAGS])
def test_a_flag_that_is_not_set_back_is_seen(buffer: str) -> None:
    kernel, ranks = small(left_out(set_back(buffer)))
    assert any((memory[buffer] == 1).sum() > 2 for memory in run_of(kernel, ranks).memory) or buffer == SENT_FLAGS


@pytest.mark.parametrize("chosen", [told(RECEIVED_FLAGS), names(WaitFlag, RECEIVED_FLAGS)])
def test_a_flag_that_orders_one_gpu_is_found(chosen: Any) -> None:
    kernel, ranks = small(changed(chosen, scope=Scope.GPU))
    with pytest.raises(SimulationError, match="set by another GPU, and orders threads of one GPU only"):
        run_of(kernel, ranks)


@pytest.mark.parametrize(
    ("barrier", "number", "raced"), [("there", 0, "peer_received_parts"), ("gone", 0, "sent_parts")]
)
def test_who_does_not_wait_for_the_other_is_found(barrier: str, number: int, raced: str) -> None:
    """Consumers that add before the courier has seen the flag, and a courier that tells before consumers stored."""

    def hasty(one: Kernel) -> Kernel:
        waits = [path for path, stmt in walk(one.body) if _waits_at(stmt, f"parts_{barrier}")]
        return without(one, waits[number])

    kernel, ranks = small(hasty)
    with pytest.raises(SimulationError, match=rf"Race on {raced}\[\d+\]"):
        run_of(kernel, ranks, schedule="moments")


@pytest.mark.parametrize("number", [1, 2])
def test_carriers_that_do_not_meet_are_found(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads that carry before the first of them has seen the flag; and one that tells before all have stored. Of two
    warps: lanes of one know the same, to the simulator."""
    two = Team(2, 2)
    monkeypatch.setattr(rank_carriers, "CARRIERS", two)
    monkeypatch.setattr(roles, "CARRIERS", two)

    def hasty(one: Kernel) -> Kernel:
        meets = (path for path, stmt in walk(one.body) if isinstance(stmt, TeamBarrier) and stmt.threads == two.threads)
        return without(one, list(meets)[number])

    kernel, ranks = small(hasty)
    with pytest.raises(SimulationError, match=r"Race on (sent|peer_received)_parts"):
        run_of(kernel, ranks, schedule="moments")


def _waits_at(stmt: Any, barrier: str) -> bool:
    return isinstance(stmt, WaitBarrier) and stmt.place.buffer.name == barrier


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
    parts = TileParts.of(Shards((128, 128), 0, summed=True), config_of(name), gemm.n, 2)
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
