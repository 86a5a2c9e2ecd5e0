"""The tile scheduler: from the number of a work item to (problem, tile of C, range of k).

    walk       one tile per block, or a resident grid whose blocks have item after item
    problems   one, or one of many along z of the grid
    split-K    items along z of the grid share out the k of a tile of C
    raster     the order in which the tiles of C are numbered
    cluster    the blocks of a cluster have neighbouring tiles

`Scheduler.each` makes the statements that a role runs for each of its work items, `locate` those that name where the
item lies. Every role computes the same items from the number of its block, so that roles agree without talking. What
the names mean for loops, places and guards is in `located`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from tilewright.errors import LoweringError
from tilewright.ir.expr import ONE, ZERO, Expr, Op, Var, binary, ceil_div
from tilewright.ir.kernel import PART_OF_K, SIZES
from tilewright.ir.program import Axis, Level, Program, RasterChoice, Route
from tilewright.ir.stmt import Body, For, Let
from tilewright.ir.work import Problems, SplitK, Walk
from tilewright.lowering.coordinates import (
    RANK,
    ROUND,
    TURN,
    axis_extent,
    bound,
    extent_of,
    hardware_number,
)
from tilewright.lowering.located import K_FIRST, K_SIZE, PART
from tilewright.lowering.raster import raster
from tilewright.problem.gemm import Order


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
        cluster = 1 if program.clustered is None else program.clustered.size
        return cls(program.walk, program.problems, program.split_k, program.raster, cluster)


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
        """Rows and columns of what is numbered: tiles of blocks, or of clusters."""
        counts = []
        clustered = self.program.clustered
        for axis in self.tile_axes:
            extent = axis_extent(self.program, axis)
            held = clustered is not None and self.program.loop(clustered.loop).axes[0] == axis
            counts.append(ceil_div(extent, clustered.size) if held and clustered is not None else extent)
        return counts[0], counts[1]

    @property
    def tiles(self) -> Expr:
        """How many tiles of C (of clusters, where there are any) are numbered."""
        rows, columns = self.tile_counts
        return rows * columns

    @property
    def grid(self) -> tuple[Expr, Expr, Expr]:
        """Blocks along x, y, z: of one problem, where there are many."""
        program = self.program
        extents = {loop.level: extent_of(program, loop) for loop in program.grid_loops}
        along_z = extents.get(Level.GRID_Z, ONE)
        if self.plan.split_k is not SplitK.NONE:
            along_z = binary(Op.DIV, SIZES["k"] + PART_OF_K - 1, PART_OF_K)
        if program.raster is not None:
            return self.tiles * self.plan.cluster, ONE, along_z
        return extents.get(Level.GRID_X, ONE), extents.get(Level.GRID_Y, ONE), along_z

    # -- the items of a role ----------------------------------------------------------------------------------------

    def each(self, do: Callable[[Item], Body], *, behind: Body = (), share: tuple[int, Expr] = (1, ZERO)) -> Body:
        """What `do` makes, for each work item of a role. behind: stands behind the coordinates of each item.

        share: (n, i) for the i-th of n warpgroups that take every n-th item each.
        """
        count, own = share
        if self.plan.walk is Walk.ONE_TILE:
            return (*self.locate(ZERO), *behind, *do(Item(ZERO)))
        located = (*self.locate(Var(TURN)), *behind, *do(Item(Var(TURN))))
        if count == 1:
            return (For(TURN, self.items, located, note="tiles of this block"),)
        turn = Let(TURN, Var(ROUND) * count + own)
        rounds = strided_count(count, own, self.items)
        return (For(ROUND, rounds, (turn, *located), note="tiles of this warpgroup"),)

    @property
    def items(self) -> Expr:
        """Work items of the running block."""
        return strided_count(self._stride, self._own, self.tiles)

    @property
    def _own(self) -> Expr:
        """The number of the running block, or of its cluster."""
        by_cluster = self.program.raster is not None
        return Var("blockIdx.x") // self.plan.cluster if by_cluster else Var("blockIdx.x")

    @property
    def _stride(self) -> Expr:
        return Var("gridDim.x") // self.plan.cluster

    def locate(self, number: Expr) -> Body:
        """Names where the running block's item lies that it comes to after `number` others."""
        tile = self._own if self.plan.walk is Walk.ONE_TILE else self._own + number * self._stride
        return (*self._range_of_k(), *self.coordinates(tile))

    def _range_of_k(self) -> Body:
        if self.plan.split_k is SplitK.NONE:
            return ()
        first = Let(K_FIRST.name, PART * PART_OF_K, "this item's range of k")
        return (first, Let(K_SIZE.name, binary(Op.MIN, PART_OF_K, SIZES["k"] - K_FIRST)))

    def coordinates(self, number: Expr) -> Body:
        """`Let`s for the coordinates of a tile of C, from its number in the raster order."""
        program = self.program
        if program.raster is None:
            return tuple(let for loop in program.grid_loops for let in bound(program, loop, hardware_number(loop)))
        lets = raster(program.raster, number, *self.tile_counts, *self.tile_axes)
        if program.clustered is not None:
            lets[-2:] = self._in_cluster(lets[-2:])
        return tuple(lets)

    def _in_cluster(self, lets: list[Let]) -> list[Let]:
        """The coordinates of the tile of the cluster become those of the running block."""
        clustered = self.program.clustered
        assert clustered is not None
        name, size = self.program.loop(clustered.loop).axes[0].name, clustered.size
        return [replace(let, value=let.value * size + Var(RANK)) if let.name == name else let for let in lets]


def strided_count(step: Expr | int, first: Expr, count: Expr) -> Expr:
    """How many numbers below `count` there are from `first` on, `step` apart; first < count + step."""
    return binary(Op.DIV, count - first + (step - 1), step)


def check_scheduler(program: Program) -> None:
    """Raise LoweringError for a combination of choices that cannot be."""
    if program.split_k is SplitK.PARTIALS:
        _check_partials(program)
    if program.problems is not Problems.ONE:
        _check_many(program)


def _check_partials(program: Program) -> None:
    gemm = program.gemm
    if program.accumulation is None or gemm.out is not gemm.accumulate or gemm.c is not Order.ROW:
        raise LoweringError(
            f"Cannot split k into partial sums of {gemm.out}.",
            note="partial sums keep the format of the accumulators, and lie one matrix below the other, row-major.",
            hint=f"lower a problem whose C is {gemm.accumulate} and row-major, and whose schedule accumulates in "
            "registers.",
        )
    if gemm.epilogue:
        raise LoweringError(
            "Partial sums have no epilogue.",
            hint="lower the problem without, and apply it where the partial sums are added up.",
        )
    if _stores_by_tma(program):
        raise LoweringError("A TMA store cannot take partial sums: a map of C knows one matrix, not its parts.")
    if program.persistent:
        raise LoweringError(
            "Cannot split the k of a persistent kernel.",
            hint="leave Persist() out: the items that share out k are blocks along z.",
        )


def _check_many(program: Program) -> None:
    if program.split_k is not SplitK.NONE or program.at_level(Level.GRID_Z) is not None:
        raise LoweringError(
            "Blocks along z cannot have a problem each: they share out one problem already.",
            hint="sum all of k in one block, and bind no loop to grid.z.",
        )
    if program.persistent:
        raise LoweringError(
            "Cannot compute many problems in a persistent kernel.",
            hint="leave Persist() out: problems are blocks along z.",
        )
    if _stores_by_tma(program):
        raise LoweringError(
            "A TMA store cannot take the results of many problems: its map of C knows one matrix.",
            hint='store C from registers: leave Transfer("C", Route.TMA) out.',
        )
    listed_tma = program.problems is Problems.LISTED and any(s.route is Route.TMA for s in program.staged)
    if (program.clustered is not None and program.clustered.size > 1) or listed_tma:
        raise LoweringError(
            "Many problems cannot be read by clusters of blocks, nor a list of them by TMA.",
            note="a map is made for one size, and all blocks of a cluster share their tiles.",
            hint="use a schedule that copies through registers or cp.async.",
        )


def _stores_by_tma(program: Program) -> bool:
    return any(staged.operand == "C" and staged.route is Route.TMA for staged in program.staged)
