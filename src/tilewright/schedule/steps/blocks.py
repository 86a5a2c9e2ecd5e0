"""Blocks: in which order they visit tiles, how long they stay, which start together."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tilewright.ir.program import Loop, Program, RasterChoice, RasterOrder
from tilewright.ir.work import Clustered, SplitK
from tilewright.schedule.laws import check_program
from tilewright.schedule.step import Step, check_count, check_member, find_loop, refuse

MAX_GROUP = 65536
"""Rows or columns of tiles: more than any matrix has, and it is multiplied in 32 bits."""


@dataclass(frozen=True, repr=False)
class Raster(Step):
    """block (x, y) computes tile (y, x)   ->   block number b computes the b-th tile of the order

    The grid becomes one-dimensional. GROUPED goes down `group` rows of tiles, then to the next column of tiles, so that
    blocks which run together share rows of A and columns of B in the L2 cache. SNAKE reverses at the end of each group.
    SERPENTINE is GROUPED with every other group from its last column back. LAYERS takes the rows of a panel of `group`
    columns, then the next panel. HILBERT follows a space-filling curve. alternating_k: a persistent block sums every
    other tile from the end of k, so that it begins with what the tile before has left in the L2.
    """

    order: RasterOrder
    group: int = 1
    alternating_k: bool = False

    def apply(self, program: Program) -> Program:
        check_member(self.order, RasterOrder)
        doing = f"Cannot set the raster order {self.order.value}"
        check_count(self.group, 1, doing, "its group")
        if self.group > MAX_GROUP or (self.order not in _GROUPS and self.group != 1):
            refuse(
                f"{doing} with group={self.group}.",
                hint=f"a group of 1 to {MAX_GROUP} belongs to {', '.join(order.value for order in _GROUPS)}.",
            )
        return check_program(replace(program, raster=RasterChoice(self.order, self.group, self.alternating_k)), doing)


_GROUPS = (RasterOrder.GROUPED, RasterOrder.SERPENTINE, RasterOrder.SNAKE, RasterOrder.LAYERS)


@dataclass(frozen=True, repr=False)
class Persist(Step):
    """grid: tile   ->   resident grid: for tile in block, block + blocks, ...: tile

    No more blocks are started than run at once, nor than finish in as few rounds, and each computes several tiles, in
    the raster order. While one tile is stored, the next is on its way where a producer loads it, or where all copies
    are asynchronous and feed tensor cores: then their ring runs on into it. Other blocks begin anew with each tile.
    """

    def apply(self, program: Program) -> Program:
        doing = "Cannot make blocks persistent"
        if program.persistent:
            refuse(f"{doing}: they are already.", hint="use Persist once.")
        if program.raster is None:
            refuse(
                f"{doing}: tiles are not numbered.",
                note="a block finds its next tile by a number.",
                hint="put Raster(...) before this step.",
            )
        return check_program(replace(program, persistent=True), doing)


MAX_CLUSTER = 8
"""Blocks of a cluster that every GPU with clusters takes. Source: CUDA C++ Programming Guide, thread block clusters."""


@dataclass(frozen=True, repr=False)
class Cluster(Step):
    """grid: m_block: B_tile <- B[tile]   ->   grid: cluster of 2 m_block: B_tile of both <- half of B[tile] by each

    `size` neighbours of a grid loop start together. A tile that does not depend on the loop is the same for all of
    them: each block loads a part of it, for all that read it at once (multicast). Used for a second loop, the step
    makes clusters of rows and columns of tiles: those in a row share A, those in a column B.

    for k_tile: ...   ->   cluster of 2 blocks, for k_tile of each one's half: ...; sums exchanged and added up

    The outermost loop over k: `size` blocks have the same tile of C, and equal parts of its k. Each gets the sums of
    a slice of the tile from all of them, through distributed shared memory, adds them in the order of k, and stores it.
    """

    loop: str
    size: int = 2

    positional = 2
    speaks_of = ("loop",)

    def apply(self, program: Program) -> Program:
        doing = f"Cannot make clusters along loop {self.loop!r}"
        loop = find_loop(program, self.loop)
        earlier = () if program.clustered is None else program.clustered.loops
        if any(name == self.loop for name, _ in earlier):
            refuse(f"{doing}: {self.loop!r} makes clusters already.", hint="use Cluster once for each loop.")
        check_count(self.size, 1, doing, "the number of blocks")
        together = Clustered((*earlier, (self.loop, self.size)))
        if self.size < 2 or together.size > MAX_CLUSTER or self.size & (self.size - 1):
            others = f", {together.size} in all" if earlier else ""
            refuse(f"{doing} of {self.size} blocks{others}.", hint=f"use 2, 4 or 8, at most {MAX_CLUSTER} in all.")
        if loop.is_reduction:
            _check_outermost(program, loop, doing)
        elif loop.level is None or not loop.level.is_grid or len(loop.axes) > 1:
            refuse(
                f"{doing}: it is not a loop of its own on the grid.", hint=f"Bind({self.loop!r}, Level.GRID_X) first."
            )
        if program.raster is None:
            refuse(
                f"{doing}: blocks are not numbered in an order of their own.",
                note="the blocks of a cluster follow each other along x.",
                hint="put Raster(...) before this step.",
            )
        if program.specialized is None and not loop.is_reduction:
            refuse(
                f"{doing}: no warpgroup loads a part of a tile for its neighbours.",
                hint="put Specialize(...) before this step.",
            )
        split_k = SplitK.CLUSTER if loop.is_reduction else program.split_k
        return check_program(replace(program, clustered=together, split_k=split_k), doing)


def _check_outermost(program: Program, loop: Loop, doing: str) -> None:
    """Blocks share out the tiles of k that a pipeline brings."""
    ring = program.pipelined
    if ring is None or ring.loop != loop.name:
        refuse(
            f"{doing}: it does not count the tiles of k that blocks load.",
            note="blocks of a cluster share out whole k tiles.",
            hint=f"Pipeline({loop.name!r}, ...) before this step." if ring is None else f"use loop {ring.loop!r}.",
        )


@dataclass(frozen=True, repr=False)
class DependentLaunch(Step):
    """kernel; kernel   ->   kernel; the next one's blocks start, and wait, where this one's have ended

    A block of the next kernel takes the place of the first one that ends, sets up its barriers, and waits only before
    it touches what the kernels before may have written (programmatic dependent launch). For kernels of one or two
    waves, whose start and end are much of their time. Where threads load for themselves, all of them wait at the
    start: the blocks are there, and no more.
    """

    def apply(self, program: Program) -> Program:
        if program.overlapped:
            refuse("Cannot overlap with the kernel before: it does already.", hint="leave this step out.")
        return check_program(replace(program, overlapped=True), "Cannot overlap with the kernel before")
