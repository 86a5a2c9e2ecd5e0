"""The tile scheduler: from the number of a work item to (problem, tile of C, range of k).

    walk       one tile per block, or a resident grid whose blocks have item after item
    problems   one, or one of many along z of the grid
    split-K    items along z of the grid share out the k of a tile of C
    raster     the order in which the tiles of C are numbered
    cluster    the blocks of a cluster have neighbouring tiles

`Scheduler.each` makes the statements that a role runs for each of its work items, `locate` those that name where the
item lies. Every role computes the same items from the number of its block, so that roles agree without talking. What
the names mean for loops, places and guards is in `coordinates`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from tilewright.dtypes import I32
from tilewright.ir.buffer import Buffer, Space
from tilewright.ir.clusters import cluster_size, neighbours
from tilewright.ir.expr import ONE, ZERO, Binary, Expr, Load, Op, Ref, Select, Var, binary, ceil_div
from tilewright.ir.kernel import BATCH, GROUPS, OWN_ROW, PART_OF_K, SIZES, Variant
from tilewright.ir.program import Axis, Level, Program, RasterChoice
from tilewright.ir.stmt import Alloc, Assign, Body, For, If, Let
from tilewright.ir.work import Problems, SplitK, Walk
from tilewright.lowering.arrivals import from_row
from tilewright.lowering.coordinates import (
    K_FIRST,
    K_SIZE,
    PART,
    PARTS,
    PROBLEM,
    RANK,
    ROUND,
    TURN,
    axis_extent,
    bound,
    extent_of,
    hardware_number,
    linear_thread,
    place_in_cluster,
)
from tilewright.lowering.groups import TOTAL, GroupsAlongM, locate_along_k
from tilewright.lowering.ranges import ITEMS, STREAMED_ITEMS, RangesOfBlocks, ceil_div_by, strided_count
from tilewright.lowering.rank_tiles import FIRST_OF_RUN, IN_RUN, ROWS_OF_RUN, locate_run
from tilewright.lowering.raster import BLOCK, raster
from tilewright.problem.gemm import Dim

ITEM, TILES, USES = "item", "tiles", "uses_before"
"""Names of the number of a work item, of the tiles of C of a problem, and of the uses of a ring before an item."""


@dataclass(frozen=True, slots=True)
class TileScheduler:
    """How the work of a grid is shared out, as a value. raster None: blocks along x and y have the tiles of C.
    cluster: blocks that have neighbouring tiles."""

    walk: Walk
    problems: Problems
    split_k: SplitK
    raster: RasterChoice | None
    cluster: int

    @classmethod
    def of(cls, program: Program) -> TileScheduler:
        return cls(program.walk, program.problems, program.split_k, program.raster, cluster_size(program))


_AT_WORK = "blocks_at_work"
"""The name of how many blocks, or clusters, have items."""


@dataclass(frozen=True, slots=True)
class Item:
    """A work item in the statements of a role. number: how many items its block has done before."""

    number: Expr

    def uses_before(self, k_tiles: Expr) -> Expr:
        """Uses of a ring in earlier items of the block, where each uses it for `k_tiles` tiles."""
        return self.number * k_tiles

    def uses_through(self, k_tiles: Expr) -> Expr:
        """Uses of a ring up to the end of this item."""
        return (self.number + 1) * k_tiles


@dataclass(frozen=True, slots=True)
class CountedItem(Item):
    """A work item of a block whose items use a ring unequally often. uses: of earlier items. whole: its number among
    the items of whole tiles, and whether it is one of them, where the scheduler knows."""

    uses: Expr
    whole: tuple[Expr, Expr] | None = None

    def uses_before(self, k_tiles: Expr) -> Expr:
        return self.uses

    def uses_through(self, k_tiles: Expr) -> Expr:
        return Binary(Op.ADD, self.uses, k_tiles)


@dataclass(frozen=True)
class Scheduler:
    """The statements of a program's tile scheduler."""

    program: Program

    @property
    def plan(self) -> TileScheduler:
        return TileScheduler.of(self.program)

    # -- the grid ---------------------------------------------------------------------------------------------------

    @property
    def tile_axes(self) -> tuple[Axis, Axis]:
        """The digits that count rows and columns of tiles."""
        by_dim = {loop.axes[0].dim: loop.axes[0] for loop in self.program.grid_loops}
        return by_dim["m"], by_dim["n"]

    @property
    def tile_counts(self) -> tuple[Expr, Expr]:
        """Rows and columns of what is numbered, tiles of blocks or of clusters: of the running item's problem."""
        rows, columns = self.tile_axes
        return (
            self._clusters(rows, axis_extent(self.program, rows)),
            self._clusters(columns, axis_extent(self.program, columns)),
        )

    def _clusters(self, axis: Axis, tiles: Expr) -> Expr:
        """How many clusters cover so many tiles of blocks."""
        return ceil_div(tiles, neighbours(self.program, axis.dim))

    def rows_of(self, size: Expr) -> Expr:
        """Rows of what is numbered that cover so many rows of C."""
        axis, _ = self.tile_axes
        return self._clusters(axis, ceil_div(size, axis.stride))

    @property
    def tiles(self) -> Expr:
        """How many tiles of C (of clusters, where there are any) are numbered."""
        rows, columns = self.tile_counts
        return rows * columns

    @property
    def grid(self) -> tuple[Expr, Expr, Expr]:
        """Blocks along x, y, z: of one problem, where there are many."""
        program = self.program
        if self.plan.problems.along_m:  # each group may end inside a row of tiles
            rows, columns = self.rows_of(SIZES["m"]) + GROUPS, self.tile_counts[1]
            return rows * columns * self.plan.cluster, ONE, ONE
        if self.plan.walk.streams:
            return self._worth_a_range * self.plan.cluster, ONE, ONE
        extents = {loop.level: extent_of(program, loop) for loop in program.grid_loops}
        layers = self._layers
        if program.raster is not None:  # one number along x counts the tiles, whatever level their loops are bound to
            blocks = self.tiles * self.plan.cluster
            return (blocks, ONE, layers) if self.plan.walk is Walk.ONE_TILE else (blocks * layers, ONE, ONE)
        x, y, z = (extents.get(level, ONE) for level in (Level.GRID_X, Level.GRID_Y, Level.GRID_Z))
        return x, y, z * layers

    # -- the items of a role ----------------------------------------------------------------------------------------

    def each(self, do: Callable[[Item], Body], *, behind: Body = (), share: tuple[int, Expr] = (1, ZERO)) -> Body:
        """What `do` makes, for each work item of a role. behind: stands behind the coordinates of each item.

        share: (n, i) for the i-th of n warpgroups that take every n-th item each.
        """
        count, own = share
        if self.plan.walk is Walk.ONE_TILE:
            return (*self.locate(ZERO), *behind, *do(Item(ZERO)))
        if self._counts_uses and self.plan.problems is Problems.GROUPED_K:
            return self._each_counted(do, behind, share)
        item = self._counted if self._counts_uses else Item(Var(TURN))
        located = (*self.locate(Var(TURN)), *behind, *do(item))
        if count == 1:
            return (For(TURN, self.items, located, note="tiles of this block"),)
        turn = Let(TURN, Var(ROUND) * count + own)
        rounds = strided_count(count, own, self.items)
        return (For(ROUND, rounds, (turn, *located), note="tiles of this warpgroup"),)

    def _each_counted(self, do: Callable[[Item], Body], behind: Body, share: tuple[int, Expr]) -> Body:
        """As `each`, where items use a ring unequally often: a register counts the uses, also those of items that are
        another warpgroup's."""
        count, own = share
        uses = Buffer(USES, Space.REGISTER, I32, (1,))
        item = CountedItem(Var(TURN), Load(uses, (ZERO,)))
        body = do(item)
        if count > 1:
            own_round = Let(ROUND, Var(TURN) // count)
            body = (If(binary(Op.EQ, binary(Op.MOD, Var(TURN), count), own), (own_round, *body)),)
        move = Assign(Ref(uses, (ZERO,)), Binary(Op.ADD, item.uses, self._k_tiles))
        located = (*self.locate(Var(TURN)), *behind, *body, move)
        begin: Body = (Alloc(uses), Assign(Ref(uses, (ZERO,)), ZERO))
        return (*begin, For(TURN, self.items, located, note="tiles of this block"))

    @property
    def _counted(self) -> CountedItem:
        """The running item, where `locate` names the uses of the ring before it."""
        behind = Var(TURN) - STREAMED_ITEMS, binary(Op.LE, STREAMED_ITEMS, Var(TURN))
        return CountedItem(Var(TURN), Var(USES), behind if self.plan.walk is Walk.HYBRID else None)

    @property
    def _counts_uses(self) -> bool:
        """Whether a ring runs on from item to item, which use it unequally often."""
        unequal = self.plan.walk.streams or self.plan.problems is Problems.GROUPED_K
        return unequal and self.program.specialized is not None

    @property
    def _k_tiles(self) -> Expr:
        """Uses of the ring by the running item."""
        assert self.program.pipelined is not None
        return extent_of(self.program, self.program.loop(self.program.pipelined.loop))

    def prepare(self) -> Body:
        """What all threads of a block do before its items are located. Of groups, whose items no host has counted, no
        more blocks have some than finish in as few rounds."""
        hybrid = self.plan.walk is Walk.HYBRID
        if not self.plan.problems.along_m:
            return self._ranges.prepare() if hybrid else ()
        if hybrid:
            most = Let(_AT_WORK, binary(Op.MAX, binary(Op.MIN, self._launched, self._worth_a_range), 1))
            return (*self._groups.prepare(), most, *self._ranges.prepare())
        return (*self._groups.prepare(), Let(_AT_WORK, at_work(self.count, self._launched)))

    @property
    def _groups(self) -> GroupsAlongM:
        counted = self.plan.problems is Problems.COUNTED_M
        return GroupsAlongM(self.program.threads_per_block, linear_thread(self.program), self.rows_of, counted)

    @property
    def items(self) -> Expr:
        """Work items of the running block."""
        if self.plan.walk.streams:
            if self.plan.walk is Walk.HYBRID:
                return ITEMS
            first, behind = self._range
            tiles = binary(Op.DIV, behind - 1, self._k_tiles_of_all) - binary(Op.DIV, first, self._k_tiles_of_all) + 1
            return Select(binary(Op.LT, first, behind), tiles, ZERO)
        strided = strided_count(self._stride, self._own, self.count)
        return Select(binary(Op.LT, self._own, self._stride), strided, ZERO) if self.plan.problems.along_m else strided

    def is_last(self, item: Item) -> Expr | None:
        """Whether the running block has no item behind this one; None where it has one item."""
        return None if self.plan.walk is Walk.ONE_TILE else binary(Op.EQ, item.number + 1, self.items)

    @property
    def count(self) -> Expr:
        """Work items of the grid (of clusters, where there are any) of a persistent kernel."""
        if self.plan.problems.along_m:
            return TOTAL * self.tile_counts[1]
        return self.tiles * self._layers

    @property
    def tile_number(self) -> Expr:
        """The number of the running block's tile of C among all tiles of all problems, where tiles are rasterised."""
        number: Expr = Var(BLOCK)
        if self.plan.problems.along_m:
            number = Var(ITEM)
        if self.plan.problems is Problems.STRIDED:
            number = PROBLEM * Var(TILES) + number
        return number * self.plan.cluster + Var(RANK) if self.plan.cluster > 1 else number

    @property
    def names(self) -> tuple[str, ...]:
        """What `locate` names that the statements of an item read."""
        several = (PROBLEM.name,) if self.plan.problems is Problems.STRIDED else ()
        split = (PART.name, K_FIRST.name) if self.plan.split_k.by_items else ()
        return (*several, *split, *(axis.name for axis in self.tile_axes))

    @property
    def _layers(self) -> Expr:
        """How many items each tile of C has: split-K parts, times problems."""
        if self.plan.walk.streams:
            return BATCH if self.plan.problems is Problems.STRIDED else ONE
        batch = {Problems.STRIDED: BATCH, Problems.GROUPED_K: GROUPS}.get(self.plan.problems, ONE)
        return self._parts * batch

    @property
    def _parts(self) -> Expr:
        if not self.plan.split_k.by_items:
            return ONE
        one_tile = self.plan.walk is Walk.ONE_TILE
        k = SIZES["k"] if one_tile else binary(Op.MAX, SIZES["k"], 1)  # also an empty sum has an item for each tile
        return binary(Op.DIV, k + PART_OF_K - 1, PART_OF_K)

    @property
    def _own(self) -> Expr:
        """The number of the running block, or of its cluster."""
        by_cluster = self.program.raster is not None
        return Var("blockIdx.x") // self.plan.cluster if by_cluster else Var("blockIdx.x")

    @property
    def _launched(self) -> Expr:
        """Blocks of the grid, or clusters."""
        return Var("gridDim.x") // self.plan.cluster

    @property
    def _stride(self) -> Expr:
        return Var(_AT_WORK) if self.plan.problems.along_m else self._launched

    def numbered(self, number: Expr) -> Expr:
        """The number of the item that the running block comes to after `number` others; not below `count`: there is
        none."""
        return self._own + number * self._stride

    def locate(self, number: Expr, *, clamped: bool = False) -> Body:
        """Names where the running block's item lies that it comes to after `number` others.

        clamped: where there is none, the last item of the grid stands for it, so that no index leaves its range.
        """
        if self.plan.walk is Walk.ONE_TILE:
            return (*self._layer(Var("blockIdx.z")), *self.coordinates(self._own))
        if self.plan.walk.streams:
            lets = self._segment(number) if self.plan.walk is Walk.STREAM_K else self._in_range(number)
            return (*lets, *self._tile_of_all(Var(ITEM)))
        own = self.numbered(number)
        own = binary(Op.MIN, own, self.count - 1) if clamped else own
        if self.plan.problems.along_m:
            return (Let(ITEM, own), *self._tile_of_all(Var(ITEM)))
        if self._layers == ONE:
            return self.coordinates(own)
        item, tiles = Var(ITEM), Var(TILES)
        lets = (Let(ITEM, own), Let(TILES, self.tiles, "of a problem"))
        return (*lets, *self._layer(item // tiles), *self.coordinates(item % tiles))

    # -- stream-K: k tiles of all tiles of C are one range, of which each block has an equal part -------------------

    @property
    def _k_stride(self) -> int:
        """Products of a k tile."""
        return self.program.block_tile("k")

    @property
    def _k_tiles_of_all(self) -> Expr:
        """k tiles of a tile of C; one also of an empty sum, whose tiles have items too."""
        return binary(Op.MAX, ceil_div(SIZES["k"], self._k_stride), 1)

    @property
    def _worth_a_range(self) -> Expr:
        """Blocks (or clusters) that have work: no fewer than tiles, and more while each has some K_part of k."""
        parts = ceil_div_by(self.count * self._k_tiles_of_all, binary(Op.MAX, PART_OF_K // self._k_stride, 1))
        return binary(Op.MAX, self.count, parts)

    @property
    def _range(self) -> tuple[Expr, Expr]:
        """The running block's first k tile, and the one behind its last."""
        segments = self.count * self._k_tiles_of_all
        each, left = binary(Op.DIV, segments, self._stride), binary(Op.MOD, segments, self._stride)

        def before(block: Expr) -> Expr:
            return block * each + binary(Op.MIN, block, left)

        return before(self._own), before(self._own + 1)

    @property
    def _ranges(self) -> RangesOfBlocks:
        """Of a kernel whose whole waves have a tile per block."""
        return RangesOfBlocks(
            linear_thread(self.program), self.count, self._stride, self._own, self._k_tiles_of_all, self.plan.cluster
        )

    def _in_range(self, number: Expr) -> Body:
        """Names the tile and the part of k of an item of a block whose range `RangesOfBlocks` has found."""
        found, tile, part = self._ranges.item(number)
        return (
            *found,
            Let(ITEM, tile),
            *((Let(USES, part.uses, "of the ring before"),) if self._counts_uses else ()),
            Let(K_FIRST.name, part.first * self._k_stride),
            Let(K_SIZE.name, binary(Op.MIN, part.end * self._k_stride, SIZES["k"]) - K_FIRST),
        )

    def _tile_of_all(self, tile: Expr) -> Body:
        """Names the problem of a tile among those of all problems, and its coordinates there."""
        if self.plan.problems.along_m:
            found, own = self._groups.find(tile, self.tile_counts[1])
            return (*found, *self.coordinates(own))
        if self.plan.problems is not Problems.STRIDED:
            return self.coordinates(tile)
        tiles = Var(TILES)
        lets = Let(TILES, self.tiles, "of a problem"), Let(PROBLEM.name, tile // tiles)
        return (*lets, *self.coordinates(tile % tiles))

    def _segment(self, number: Expr) -> Body:
        """Names a tile of the running block's range and its part of k, the last tile first.

        So a block begins with what comes first in the k of a tile, and ends with what waits for the block before it.
        """
        first, behind = Var("range_first"), Var("range_end")
        k_tiles, tile, begin, end = Var("k_tiles"), Var(ITEM), Var("tile_first"), Var("tile_end")
        ranges = self._range
        lets: list[Let] = [
            Let(k_tiles.name, self._k_tiles_of_all, "of a tile of C"),
            Let(first.name, ranges[0], "k tiles of this block"),
            Let(behind.name, ranges[1]),
            Let(tile.name, binary(Op.DIV, behind - 1, k_tiles) - number),
            Let(begin.name, binary(Op.MAX, first - tile * k_tiles, 0)),
            Let(end.name, binary(Op.MIN, behind - tile * k_tiles, k_tiles)),
            *((Let(USES, behind - tile * k_tiles - end, "of the ring before"),) if self._counts_uses else ()),
            Let(K_FIRST.name, begin * self._k_stride),
            Let(K_SIZE.name, binary(Op.MIN, end * self._k_stride, SIZES["k"]) - K_FIRST),
        ]
        return tuple(lets)

    def _layer(self, number: Expr) -> Body:
        """Names the problem and the range of k of an item, by its number among those of its tile."""
        if self.plan.problems is Problems.GROUPED_K:
            return locate_along_k(number)
        several, split = self.plan.problems is Problems.STRIDED, self.plan.split_k.by_items
        lets: list[Let] = []
        if split:
            lets.append(Let(PARTS.name, self._parts, "of k"))
        if several:
            lets.append(Let(PROBLEM.name, number // PARTS if split else number))
        if split:
            lets.append(Let(PART.name, number % PARTS if several else number))
            lets.append(Let(K_FIRST.name, PART * PART_OF_K, "the part's range of k"))
            if self.plan.walk is Walk.ONE_TILE:
                lets.append(Let(K_SIZE.name, binary(Op.MIN, PART_OF_K, SIZES["k"] - K_FIRST)))
        return tuple(lets)

    def coordinates(self, number: Expr) -> Body:
        """`Let`s for the coordinates of a tile of C, from its number in the raster order."""
        program = self.program
        if program.raster is None:
            return tuple(let for loop in program.grid_loops for let in bound(program, loop, hardware_number(loop)))
        rows, columns = self.tile_counts
        run: Body = ()
        if self.plan.split_k is SplitK.RANKS:
            run = locate_run(number, self.rows_of, columns)
            number, rows = IN_RUN, ROWS_OF_RUN
        *lets, row, column = raster(program.raster, number, rows, columns, *self.tile_axes)
        of_rows, of_columns = (axis.dim for axis in self.tile_axes)
        return (*run, *lets, self._in_cluster(self._of_rank(row), of_rows), self._in_cluster(column, of_columns))

    def _of_rank(self, row: Let) -> Let:
        """The rows of tiles begin with the first whole one from the given row on where rows of A arrive, and with those
        of the rank that keeps the tile where ranks share out k."""
        if self.plan.split_k is SplitK.RANKS:
            return replace(row, value=FIRST_OF_RUN + row.value)
        if not self.program.arriving:
            return row
        return replace(row, value=from_row(row.value, self.tile_counts[0], self.rows_of(OWN_ROW)))

    def _in_cluster(self, let: Let, dim: Dim) -> Let:
        """A coordinate of the tile of the cluster becomes that of the running block."""
        size = neighbours(self.program, dim)
        return replace(let, value=let.value * size + place_in_cluster(self.program, dim)) if size > 1 else let


def at_work(count: Expr, launched: Expr) -> Expr:
    """The fewest blocks that finish so many equal items in as few rounds as all that were launched; one of none."""
    rounds = binary(Op.MAX, ceil_div_by(count, launched), 1)
    return binary(Op.MAX, ceil_div_by(count, rounds), 1)


def assumed_exact(program: Program, variant: Variant) -> frozenset[str]:
    """The dimensions whose edges need no guard: those of `variant`, but for a k that items cover in equal parts, of
    which the last may end behind K. Stream-K shares out k tiles."""
    split = program.split_k.by_items and program.walk is Walk.PERSISTENT
    ragged = ragged_dim(program) or ("k" if split else "")
    return frozenset(dim for dim in variant.exact if dim != ragged)


def ragged_dim(program: Program) -> Dim | None:
    """The dimension along which groups end, where the device says so."""
    if program.problems.along_m:
        return "m"
    return "k" if program.problems is Problems.GROUPED_K else None
