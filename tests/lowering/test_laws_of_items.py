"""Where work items lie, held against plain Python: runs of ranks, groups along k, teams of warps, parts of vectors."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.lowering.scalar_runs import Thread
from tilewright.dtypes import F32, I32
from tilewright.ir.buffer import Buffer, Space
from tilewright.ir.expr import Const, Expr, Ref, Var, as_expr, binary, ceil_div
from tilewright.ir.expr import Op as Operator
from tilewright.ir.kernel import FIRST_GROUP, GROUP_COUNTS, GROUP_ENDS, GROUPS, OWN_RANK, SHARD_STARTS, SHARDS
from tilewright.ir.program import Axis, RasterChoice, RasterOrder
from tilewright.ir.stmt import Alloc, Move
from tilewright.lowering.arrivals import from_row, wait_for_rows
from tilewright.lowering.coordinates import GROUP_LANE, K_FIRST, K_SIZE, M_FIRST, M_SIZE, PROBLEM
from tilewright.lowering.groups import TABLE, GroupsAlongM, locate_along_k
from tilewright.lowering.guard_edges import narrower
from tilewright.lowering.kernel_parts import ELEMENT
from tilewright.lowering.narrow_accesses import through_registers
from tilewright.lowering.rank_tiles import FIRST_OF_RUN, IN_RUN, OWNER, ROWS_OF_RUN, locate_run
from tilewright.lowering.raster import raster
from tilewright.lowering.scheduler import CountedItem, Item, at_work
from tilewright.lowering.spare_warps import Team, teams

TILE = 4
"""Rows of a tile, in what follows."""


@given(st.lists(st.integers(0, 3 * TILE), min_size=1, max_size=4), st.integers(1, 3), st.data())
def test_tiles_of_the_next_ranks_come_first_and_own_ones_last(
    sizes: list[int], columns: int, data: st.DataObject
) -> None:
    """By hand: runs of ranks own + 1, own + 2, ..., own; shards begin with whole tiles."""
    own = data.draw(st.integers(0, len(sizes) - 1))
    rows = [-(-size // TILE) for size in sizes]
    starts = [sum(rows[:rank]) * TILE for rank in range(len(rows) + 1)]
    order = [(own + 1 + distance) % len(sizes) for distance in range(len(sizes))]
    expected = [(rank, number) for rank in order for number in range(rows[rank] * columns)]
    names = {SHARDS.name: len(sizes), OWN_RANK.name: own}
    for number, (rank, in_run) in enumerate(expected):
        thread = Thread(names, {SHARD_STARTS: starts})
        thread.run(locate_run(Const(number), lambda size: ceil_div(size, TILE), Const(columns)))
        found = [thread.names[one.name] for one in (OWNER, IN_RUN, FIRST_OF_RUN, ROWS_OF_RUN)]
        assert found == [rank, in_run, starts[rank] // TILE, rows[rank]] and not any(thread.unused.values())


@given(st.lists(st.integers(-5, 40), min_size=1, max_size=6), st.integers(0, 32))
def test_groups_along_k_are_limited_to_the_k_that_there_is(ends: list[int], k: int) -> None:
    for group in range(len(ends) + 1):  # one more than there are
        thread = Thread({GROUPS.name: len(ends), "K": k}, {GROUP_ENDS: ends})
        thread.run(locate_along_k(Const(group)))
        inside = [min(max(end, 0), k) for end in ends]
        first = inside[group - 1] if 0 < group < len(ends) else 0
        last = inside[group] if group < len(ends) else 0
        found = [thread.names[one.name] for one in (PROBLEM, K_FIRST, K_SIZE)]
        assert found == [group, first, max(last - first, 0)] and not any(thread.unused.values())
        read = {number for number in (group - 1, group) if number >= 0 and group < len(ends)}
        assert {index for _, (index,) in thread.read} == read


@given(st.lists(st.integers(0, 9), min_size=1, max_size=9), st.integers(1, 3), st.integers(0, 3), st.booleans())
def test_an_item_finds_its_group_by_the_rows_of_tiles_before_it(
    sizes: list[int], columns: int, before: int, counted: bool
) -> None:
    """before: groups of earlier launches. Groups without rows have no items."""
    capacity = 9
    rows, groups = [-(-size // TILE) for size in sizes], len(sizes)
    table = [sum(rows[: group + 1]) for group in range(groups)]
    earlier = [2] * before
    ends = [sum((earlier + sizes)[: group + 1]) for group in range(before + groups)]
    along = GroupsAlongM(128, Var("thread"), lambda size: ceil_div(size, TILE), counted)
    names = {GROUPS.name: groups, FIRST_GROUP.name: before, "M": capacity * (before + groups), "capacity": capacity}
    items = [(g, tile) for g in range(groups) for tile in range(rows[g] * columns)]
    for number, (group, tile) in enumerate(items):
        memory = {GROUP_ENDS: ends, GROUP_COUNTS: earlier + sizes, TABLE.name: table}
        thread = Thread(names, memory)
        body, in_group = along.find(Const(number), Const(columns))
        thread.run(body)
        assert thread.value(in_group) == tile
        first = capacity * (before + group) if counted else sum((earlier + sizes)[: before + group])
        found = [thread.names[one.name] for one in (PROBLEM, M_FIRST, M_SIZE)]
        assert found == [before + group, first, sizes[group]] and not any(thread.unused.values())


@given(st.integers(0, 5000), st.integers(1, 132))
def test_no_more_blocks_have_items_of_groups_than_finish_in_as_few_rounds(count: int, launched: int) -> None:
    found = Thread({}).value(at_work(Const(count), Const(launched)))
    assert 1 <= found <= launched
    assert -(-count // found) == -(-count // launched)
    assert found == 1 or -(-count // (found - 1)) > -(-count // launched)


@pytest.mark.parametrize("threads", [32, 128, 384, 512])
def test_every_entry_of_the_table_of_groups_has_one_thread(threads: int) -> None:
    along, seen = GroupsAlongM(threads, Var("thread"), lambda size: size), []
    for thread, turn in product(range(threads), range(-(-512 // threads))):
        (loop,) = along._each(lambda group, inside: (Move(Ref(NUMBER, (group,)), Ref(NUMBER, (group,)), guard=inside),))
        (move,) = loop.body  # type: ignore[union-attr]
        one = Thread({"thread": thread, "group_pass": turn})
        if move.guard is None or one.value(move.guard):
            seen.append(one.value(move.dst.index[0]))
    assert sorted(seen) == list(range(512))


NUMBER = Buffer("number", Space.REGISTER, I32, (1,))


@pytest.mark.parametrize(("rows", "first"), [(1, 0), (5, 0), (5, 3), (5, 4)])
def test_rows_of_tiles_go_round_from_the_first_that_is_there(rows: int, first: int) -> None:
    found = [Thread({}).value(from_row(Const(row), Const(rows), Const(first))) for row in range(rows)]
    assert found == [*range(first, rows), *range(first)]


@given(st.lists(st.integers(0, 10), min_size=1, max_size=5), st.integers(0, 6))
def test_a_tile_waits_for_the_shards_of_which_it_has_rows(sizes: list[int], tile: int) -> None:
    starts = [sum(sizes[:shard]) for shard in range(len(sizes) + 1)]
    loop, _ = wait_for_rows(Axis("row", "m", TILE, None))
    alloc, begin, end, wait = loop.body  # type: ignore[union-attr]
    for shard in range(len(sizes)):
        thread = Thread({"row": tile, "shard": shard, SHARDS.name: len(sizes)}, {SHARD_STARTS: starts})
        thread.run((alloc, begin, end))
        assert not any(thread.unused.values())
        own = set(range(starts[shard], starts[shard + 1])) & set(range(tile * TILE, (tile + 1) * TILE))
        # A shard without rows inside the tile is told of as well, and is there at once.
        inside = tile * TILE < starts[shard] < (tile + 1) * TILE and not sizes[shard]
        assert bool(thread.value(wait.condition)) == (bool(own) or inside)
        assert thread.value(wait.then[0].place.index[0]) == shard and thread.value(wait.then[0].value) == 1


def test_uses_of_a_ring_are_counted_up_to_an_item_and_through_it() -> None:
    thread = Thread({"turn": 3, "tiles": 5, "used": 11})
    turn, tiles, used = Var("turn"), Var("tiles"), Var("used")
    assert [thread.value(one) for one in (Item(turn).uses_before(tiles), Item(turn).uses_through(tiles))] == [15, 20]
    counted = CountedItem(turn, used)
    assert [thread.value(one) for one in (counted.uses_before(tiles), counted.uses_through(tiles))] == [11, 16]


# -- teams of warps ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("team", [Team(first, warps) for first in range(4) for warps in range(1, 5 - first)], ids=str)
def test_a_team_has_its_warps_and_numbers_their_threads(team: Team) -> None:
    threads = [lane for lane in range(128) if Thread({GROUP_LANE: lane}).value(team.includes)]
    assert threads == list(range(32 * team.first, 32 * (team.first + team.warps))) and team.threads == len(threads)
    assert [Thread({GROUP_LANE: lane}).value(team.thread) for lane in threads] == list(range(team.threads))
    assert [Thread({GROUP_LANE: lane}).value(team.lane) for lane in threads] == [lane % 32 for lane in threads]


@pytest.mark.parametrize("scales", [False, True])
def test_no_warp_is_in_two_teams_that_wait_for_each_other(scales: bool) -> None:
    """The first warp starts TMA's copies; scales and vectors are apart where there are scales."""
    of_scales, of_vectors = ({*range(team.first, team.first + team.warps)} for team in teams(scales=scales))
    assert of_scales == {1} and of_vectors == ({2, 3} if scales else {1, 2, 3})


# -- rasters ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("group", [1, 2, 3, 8])
@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (5, 7), (7, 5), (8, 9), (6, 6)])
def test_bands_by_hand(rows: int, columns: int, group: int) -> None:
    """Grouped: bands of rows, column by column. Layers: panels of columns, row by row; a snake turns in every other."""
    bands = [range(first, min(first + group, rows)) for first in range(0, rows, group)]
    panels = [range(first, min(first + group, columns)) for first in range(0, columns, group)]
    down, up = range(rows), range(rows)[::-1]
    expected = {
        RasterOrder.ROW: [(row, column) for row in down for column in range(columns)],
        RasterOrder.COLUMN: [(row, column) for column in range(columns) for row in down],
        RasterOrder.GROUPED: [(row, column) for band in bands for column in range(columns) for row in band],
        RasterOrder.LAYERS: [(row, column) for panel in panels for row in down for column in panel],
        RasterOrder.SNAKE: [
            (row, column) for i, panel in enumerate(panels) for row in (up if i % 2 else down) for column in panel
        ],
    }
    axes = Axis("m_block", "m", 128, None), Axis("n_block", "n", 128, None)
    for order, tiles in expected.items():
        found = []
        for number in range(rows * columns):
            thread = Thread({})
            thread.run(tuple(raster(RasterChoice(order, group), Const(number), Const(rows), Const(columns), *axes)))
            found.append((thread.names["m_block"], thread.names["n_block"]))
        assert found == tiles, order


# -- parts of vectors -------------------------------------------------------------------------------------------------

MATRIX = Buffer("A", Space.GLOBAL, F32, (), ("m", "k"))


def places(move: Move, names: dict[str, int]) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    thread = Thread(names)
    dst, src = (tuple(thread.value(at) for at in place.index) for place in (move.dst, move.src))
    contiguous = 1
    each = []
    for element in range(move.width):
        here = list(src)
        here[contiguous] += element
        each.append(((*dst[:-1], dst[-1] + element), tuple(here)))
    return each


@pytest.mark.parametrize("inner", [False, True])
@pytest.mark.parametrize(("width", "part"), [(4, 1), (4, 2), (8, 4), (8, 1), (2, 2)])
def test_parts_of_a_vector_are_its_elements_in_order(width: int, part: int, inner: bool) -> None:
    """inner: a loop over parts is around already, and keeps its name."""
    tile = Buffer("tile", Space.SHARED, F32, (4, 32))
    column: Expr = Var(ELEMENT) * 8 if inner else as_expr(8)
    whole = Move(Ref(tile, (Const(1), column)), Ref(MATRIX, (Var("m"), Var("k"))), width)
    loop = narrower(whole, 1, part)
    names = {"m": 5, "k": 16, ELEMENT: 1}
    assert loop.var != ELEMENT or not inner
    found = []
    for turn in range(Thread({}).value(loop.extent)):
        (move,) = loop.body
        assert isinstance(move, Move) and move.width == part
        found += places(move, {**names, loop.var: turn})
    assert found == places(whole, names) and loop.unroll


def test_asynchronous_copies_of_elements_become_a_load_and_a_store() -> None:
    tile, guard = Buffer("tile", Space.SHARED, F32, (32,)), binary(Operator.LT, Var("k"), 7)
    copy = Move(Ref(tile, (Var("k"),)), Ref(MATRIX, (Var("m"), Var("k"))), 1, guard, origin="A_tile", asynchronous=True)
    plain = replace(copy, asynchronous=False)
    alloc, load, store, other = through_registers((copy, plain))
    assert isinstance(alloc, Alloc) and isinstance(load, Move) and isinstance(store, Move)
    assert (load.src, load.guard, load.asynchronous) == (copy.src, guard, False)
    assert (store.dst, store.guard, store.asynchronous) == (copy.dst, None, False)  # zeros are stored as well
    assert load.dst == store.src and load.dst.buffer == alloc.buffer and alloc.buffer.elements == 1
    assert other == plain
