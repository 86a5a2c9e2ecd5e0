"""`Program`: a GEMM as a nest of named loops with declared tiles. What a schedule transforms.

A program is declarative. Its loops are the nest, outermost first; every other decision is a value beside the nest:
where the sum is kept, which tiles are staged where, how a copy is shared out. Lowering makes it explicit. That is what
keeps a step small: it edits one declaration and the meaning of the rest stands.

Each loop counts one or more *axes*. An axis is one digit of one dimension: it contributes `stride * digit` to the
index m, n or k. Splitting a loop splits its axis; fusing loops puts their axes side by side, slowest first. So every
index is a sum of digits, whatever was split, fused or reordered.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any, Literal

from tilewright.enums import Spelled
from tilewright.html_text import code
from tilewright.ir.buffer import Handoff, Space
from tilewright.ir.work import Clustered, Problems, SplitK, Walk
from tilewright.isa.instruction import MatrixInstruction
from tilewright.layout.arrangement import Arrangement
from tilewright.problem.gemm import DIMS, Dim, Gemm, OperandName

WARP_LANES = 32
GROUP_LANES = 128
"""Threads of a warpgroup: four warps that follow each other."""


class Level(Spelled):
    """What runs the iterations of a loop."""

    GRID_X = "grid.x"
    GRID_Y = "grid.y"
    GRID_Z = "grid.z"
    BLOCK_X = "block.x"
    BLOCK_Y = "block.y"
    BLOCK_Z = "block.z"
    WARP = "warp"
    LANE = "lane"
    WARPGROUP = "warpgroup"
    VTHREAD = "virtual thread"  # inside the thread, unrolled: its registers are strided over the tile
    INSTRUCTION = "instruction"  # inside one matrix instruction, by the lanes of a warp together

    @property
    def is_grid(self) -> bool:
        return self in (Level.GRID_X, Level.GRID_Y, Level.GRID_Z)

    @property
    def is_thread(self) -> bool:
        """Whether the iterations are threads of one block."""
        return not self.is_grid and self not in (Level.VTHREAD, Level.INSTRUCTION)


@dataclass(frozen=True, slots=True)
class Axis:
    """One digit of one dimension: contributes `stride * digit`, digit in 0 .. extent.

    extent None is the outermost digit: it runs to ceil(size / stride), known at run time.
    """

    name: str
    dim: Dim
    stride: int
    extent: int | None


@dataclass(frozen=True, slots=True)
class Loop:
    """A named loop over the digits of its axes, slowest first. `level` None is a serial loop.

    turning: it runs forward and backward in turn, as the loop around it counts. blocks: see `Unroll`.
    """

    name: str
    axes: tuple[Axis, ...]
    level: Level | None = None
    unroll: bool = False
    turning: bool = False
    blocks: int = 0

    @property
    def extent(self) -> int | None:
        """Iterations, or None where they depend on the size of the problem."""
        extents = [axis.extent for axis in self.axes]
        return None if None in extents else prod(e for e in extents if e is not None)

    @property
    def dims(self) -> set[Dim]:
        return {axis.dim for axis in self.axes}

    @property
    def is_reduction(self) -> bool:
        return "k" in self.dims


class Pattern(Spelled):
    """Which chunks of a tile each thread copies."""

    CYCLIC = "cyclic"  # chunk = step * threads + thread: neighbours copy neighbouring chunks
    BLOCKED = "blocked"  # chunk = thread * steps + step: each thread copies one run of chunks


@dataclass(frozen=True, slots=True)
class Distribution:
    """A copy shared out over the threads of the block, `vector` elements at a time.

    row_threads: how many threads lie side by side along a row of the tile; 0: as many as a row has chunks.
    thread_guards: guards compare a thread's own row with what is left of the matrix, see `lowering.thread_guards`.
    """

    vector: int = 1
    pattern: Pattern = Pattern.CYCLIC
    row_threads: int = 0
    thread_guards: bool = False


class Route(Spelled):
    """How a copy travels."""

    REGISTERS = "registers"  # a load, then a store
    ASYNC = "cp.async"  # straight to shared memory while the thread goes on (sm_80 and later)
    TMA = "TMA"  # by TMA, between global and shared memory (sm_90 and later)
    MATRICES = "ldmatrix"  # from shared memory to the fragments of a warp, eight rows of 16 bytes at a time, or back


@dataclass(frozen=True, slots=True)
class Staged:
    """A tile of an operand copied closer and read from there.

    under: the loop in whose body the copy stands. Of the result, whose tile is written after the sum: the loop in each
    of whose turns a part of it leaves; empty where it leaves as a whole.
    rows: the dimension that counts the rows of a shared tile ("" is as the operand lies); pad (elements a row) and
    arrangement: how it lies in memory.
    vector: elements a thread reads or writes at once where the tile is not distributed.
    route: how the copy travels. prefetched: the next tile is loaded into registers while this one is used. in_place: of
    fragments, each into the registers of the one whose products are done. fenced: no load of the next tile sinks below.
    evict_first: lines of it are the first to leave the L2.
    subtile: of a result that each warpgroup stores by itself, the elements along C's contiguous dimension that it
    stores at a time (0: all it has); the last subtile may be narrower. stages: how many subtiles there is room for.
    """

    name: str
    operand: OperandName
    space: Space
    under: str
    rows: Dim | Literal[""] = ""
    pad: int = 0
    arrangement: Arrangement | None = None
    distribution: Distribution | None = None
    vector: int = 1
    route: Route = Route.REGISTERS
    prefetched: bool = False
    in_place: bool = False
    fenced: bool = False
    evict_first: bool = False
    subtile: int = 0
    stages: int = 2

    @property
    def finished(self) -> bool:
        """Whether it is a result that lies there as C will have it, an epilogue subtile; else it holds bare sums."""
        return self.operand == "C" and self.route in (Route.TMA, Route.MATRICES)


@dataclass(frozen=True, slots=True)
class Accumulation:
    """The sum kept in registers called `name` from before the loop `over` until after it.

    promote_every: elements of k after which it is added to registers of f32 and starts anew; 0 for never.
    """

    name: str
    over: str
    promote_every: int = 0


@dataclass(frozen=True, slots=True)
class Pipelined:
    """A loop whose shared tiles have `stages` stages each, so that copies run ahead of their use.

    alternating: the two halves of the block alternate: one copies a tile while the other computes.
    interleave: the loop inside over whose iterations the next copies are spread; "" starts all at once.
    issue_distance: in each of those iterations, the iterations of the outer loop of MMAs that come before its copies.
    """

    loop: str
    stages: int
    alternating: bool = False
    interleave: str = ""
    issue_distance: int = 0


@dataclass(frozen=True, slots=True)
class Tensorized:
    """The loops, innermost, that one matrix instruction runs: along its rows, its columns and its depth. These are over
    m, n and k; or over n, m and k where it computes the tile of C transposed (swap-AB)."""

    instruction: MatrixInstruction
    loops: tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class Specialized:
    """One more warpgroup, the producer, fills the stages of the pipelined loop; the others only compute.

    registers: of a thread of the producer, and of the others; None: what a block of so many warpgroups has. ping_pong:
    warpgroups in ping-pong, each on a tile of C, each storing one while the others multiply; 1: all on the same tile.
    apart: of its last stages, how many a warpgroup leaves to the one before it first.
    """

    registers: tuple[int, int] | None = None
    ping_pong: int = 1
    apart: int = 0


class RasterOrder(Spelled):
    """The order in which blocks, numbered as the hardware starts them, visit the tiles of C."""

    ROW = "row"  # along a row of tiles first
    COLUMN = "column"  # down a column of tiles first
    GROUPED = "grouped"  # down groups of rows, column by column, so that a wave of blocks shares operands
    SERPENTINE = "serpentine"  # as GROUPED, every other group from its last column back, where the one before ended
    LAYERS = "layers"  # panels of columns, one after another: in each, along its rows
    SNAKE = "snake"  # as LAYERS, every other panel from the bottom up, so that its start meets the last one's end
    HILBERT = "hilbert"  # along a Hilbert curve, so that neighbours in time are neighbours in both directions


@dataclass(frozen=True, slots=True)
class RasterChoice:
    """A raster order; `group` counts rows of tiles (GROUPED, SERPENTINE) or columns of tiles (LAYERS, SNAKE).
    alternating_k: every other tile of a block is summed from the end of k, where the tile before has ended."""

    order: RasterOrder
    group: int = 1
    alternating_k: bool = False


@dataclass(frozen=True, slots=True)
class Program:
    """A GEMM as a loop nest with declared tiles.

    loops: outermost first. accumulation None: the sum is kept in C itself. result_vector: elements of C stored at once.
    late_alpha, late_beta: the factor is applied once to each finished sum, not in the loops. persistent: the grid is
    resident, and a block computes many tiles. overlapped: it starts while the kernel before still ends. problems,
    split_k: whether a launch computes many problems, and blocks share out k; stream_k: that of all tiles together, or
    with whole_waves that of the tiles that fill none. arriving: rows of A arrive meanwhile, one shard first. constant:
    an operand that no kernel before writes.
    """

    gemm: Gemm
    loops: tuple[Loop, ...]
    staged: tuple[Staged, ...] = ()
    accumulation: Accumulation | None = None
    result_vector: int = 1
    late_alpha: bool = False
    late_beta: bool = False
    raster: RasterChoice | None = None
    pipelined: Pipelined | None = None
    tensorized: Tensorized | None = None
    specialized: Specialized | None = None
    clustered: Clustered | None = None
    persistent: bool = False
    overlapped: bool = False
    problems: Problems = Problems.ONE
    split_k: SplitK = SplitK.NONE
    stream_k: bool = False
    whole_waves: bool = False
    arriving: bool = False
    constant: OperandName | Literal[""] = ""
    tiles: list[tuple[Staged, Any]] = field(default_factory=list, init=False, repr=False, compare=False)
    """What `ir.tiles.tile_of` has found of these very tiles, which a user's values may keep from being hashed."""

    def _repr_html_(self) -> str:
        from tilewright.ir.program_text import program_text  # here: the printer imports the program

        return code("Program", program_text(self))

    # -- looking up -------------------------------------------------------------------------------------------------

    def loop(self, name: str) -> Loop:
        return next(loop for loop in self.loops if loop.name == name)

    def position(self, name: str) -> int:
        """Where a loop stands in the nest, 0 is outermost."""
        return next(i for i, loop in enumerate(self.loops) if loop.name == name)

    def depth(self, name: str) -> int:
        """Where a loop stands among those that a thread runs itself; -1 where blocks or threads run it, around all."""
        return next((i for i, loop in enumerate(self.thread_serial_loops) if loop.name == name), -1)

    def tile(self, name: str) -> Staged:
        return next(staged for staged in self.staged if staged.name == name)

    @property
    def loop_names(self) -> tuple[str, ...]:
        return tuple(loop.name for loop in self.loops)

    def at_level(self, level: Level) -> Loop | None:
        return next((loop for loop in self.loops if loop.level is level), None)

    @property
    def adds_in_order(self) -> bool:
        """Whether the items of a tile add up their sums in the kernel."""
        return self.split_k is SplitK.ORDERED

    @property
    def has_equal_items(self) -> bool:
        """Whether blocks of a resident grid have items of equal length, whose number is known when it is launched."""
        return self.walk is Walk.PERSISTENT and self.problems in (Problems.ONE, Problems.STRIDED)

    @property
    def walk(self) -> Walk:
        """How blocks come by their work items."""
        if self.stream_k:
            return Walk.HYBRID if self.whole_waves else Walk.STREAM_K
        return Walk.PERSISTENT if self.persistent else Walk.ONE_TILE

    @property
    def grid_loops(self) -> tuple[Loop, ...]:
        return tuple(loop for loop in self.loops if loop.level is not None and loop.level.is_grid)

    @property
    def thread_loops(self) -> tuple[Loop, ...]:
        return tuple(loop for loop in self.loops if loop.level is not None and loop.level.is_thread)

    @property
    def thread_serial_loops(self) -> tuple[Loop, ...]:
        """The loops a thread runs itself, in its order: serial ones as they stand, virtual threads after the last k."""
        serial = [loop for loop in self.loops if loop.level is None]
        virtual = [loop for loop in self.loops if loop.level is Level.VTHREAD]
        reductions = [i for i, loop in enumerate(serial) if loop.is_reduction]
        after = reductions[-1] + 1 if reductions else 0
        return (*serial[:after], *virtual, *serial[after:])

    @property
    def threads_per_block(self) -> int:
        loops = prod(loop.extent or 1 for loop in self.thread_loops)
        if self.tensorized is None:
            return loops
        groups = loops if self.specialized is None else loops * self.specialized.ping_pong + 1
        return self.tensorized.instruction.c.lanes * groups

    @property
    def instruction_axes(self) -> tuple[Axis, ...]:
        """The digits that a matrix instruction counts: along its rows, its columns and its depth."""
        return () if self.tensorized is None else tuple(self.loop(name).axes[0] for name in self.tensorized.loops)

    @property
    def is_turned(self) -> bool:
        """Whether the rows of a matrix instruction run along n: it multiplies tiles of B by tiles of A."""
        return self.tensorized is not None and self.instruction_axes[0].dim == "n"

    # -- regions ----------------------------------------------------------------------------------------------------

    def axes_of(self, dim: Dim, loops: Iterable[Loop] | None = None) -> tuple[Axis, ...]:
        """The digits of one dimension, largest stride first."""
        chosen = [a for loop in (self.loops if loops is None else loops) for a in loop.axes if a.dim == dim]
        return tuple(sorted(chosen, key=lambda axis: -axis.stride))

    def block_tile(self, dim: Dim) -> int:
        """Elements of a dimension that one block covers at a time: the stride of its outermost digit."""
        return max(axis.stride for axis in self.axes_of(dim))

    def region_loops(self, space: Space, under: str) -> tuple[Loop, ...]:
        """The loops whose digits a tile in `space`, copied under the loop `under`, spans.

        A tile holds what the loops inside `under`, in the thread's own order, will read. In shared memory it also
        spans the threads of the block, which read it together, wherever their loops stand.
        """
        order = [loop.name for loop in self.thread_serial_loops]
        inside = set(order[order.index(under) + 1 :] if under in order else order)
        inside |= {loop.name for loop in self.loops if loop.level is Level.INSTRUCTION}
        return tuple(
            loop
            for loop in self.loops
            if loop.name in inside or (space is Space.SHARED and loop.level is not None and loop.level.is_thread)
        )

    def tile_axes(self, staged: Staged) -> tuple[tuple[Axis, ...], tuple[Axis, ...]]:
        """The digits that a staged tile spans, for each of its operand's two dimensions, largest stride first."""
        result = staged.operand == "C" and self.accumulation is not None
        under = staged.under
        if result and not under and self.accumulation is not None:
            under = self.accumulation.over
        loops = self.region_loops(staged.space, under)
        rows, cols = DIMS[staged.operand]
        if staged.operand == "C":
            loops = tuple(loop for loop in loops if not loop.is_reduction)
        return self.axes_of(rows, loops), self.axes_of(cols, loops)

    @property
    def sum_axes(self) -> tuple[Axis, ...]:
        """The digits of m and n that the running sum spans in one thread, in the thread's loop order.

        What a matrix instruction keeps of a tile in one lane comes on top of these.
        """
        if self.accumulation is None:
            return ()
        start = self.position(self.accumulation.over)
        inside = [
            loop
            for loop in self.thread_serial_loops
            if not loop.is_reduction and (loop.level is Level.VTHREAD or self.position(loop.name) > start)
        ]
        return tuple(axis for loop in inside for axis in loop.axes)

    def chain(self, operand: OperandName) -> tuple[Staged, ...]:
        """The tiles an operand passes through on its way to the multiply-add, in the order of copying."""
        tiles = [staged for staged in self.staged if staged.operand == operand]
        return tuple(
            sorted(tiles, key=lambda s: (s.space is Space.REGISTER, self.position(s.under) if s.under else -1))
        )

    # -- editing ----------------------------------------------------------------------------------------------------

    def with_loop(self, loop: Loop) -> Program:
        """The program with the loop of the same name replaced."""
        return replace(self, loops=tuple(loop if old.name == loop.name else old for old in self.loops))

    def with_tile(self, staged: Staged) -> Program:
        """The program with the tile of the same name replaced."""
        return replace(self, staged=tuple(staged if old.name == staged.name else old for old in self.staged))

    @property
    def staged_result(self) -> Staged | None:
        """The staged tile of C, if it has one."""
        return next((staged for staged in self.staged if staged.operand == "C"), None)

    @property
    def uses_tma(self) -> bool:
        """Whether any staged tile is loaded or stored by TMA."""
        return any(staged.route is Route.TMA for staged in self.staged)

    def slots(self, staged: Staged) -> int:
        """How many copies of a shared tile there are: the stages of the pipelined loop it is staged under, else 1.

        Epilogue subtiles have stages of their own, one filled while the other is read; ping-pong warpgroups, too.
        """
        if staged.finished:
            count = self.subtile_count(staged)
            return min(staged.stages, count) * (1 if self.specialized is None else self.specialized.ping_pong)
        ring = self.pipelined is not None and staged.space is Space.SHARED and staged.under == self.pipelined.loop
        return self.pipelined.stages if ring and self.pipelined is not None else 1

    def result_columns(self, staged: Staged) -> int:
        """Elements along C's contiguous dimension of what a warpgroup stores of a staged result."""
        operand = self.gemm.operand("C")
        axes = self.tile_axes(staged)[operand.dims.index(operand.contiguous)]
        shared = [axis for loop in self.thread_loops for axis in loop.axes]
        return prod(axis.extent or 1 for axis in axes if axis not in shared)

    def subtile_columns(self, staged: Staged) -> int:
        """Elements along C's contiguous dimension of an epilogue subtile, but for the last, which may be narrower."""
        columns = self.result_columns(staged)
        return min(staged.subtile or columns, columns)

    def subtile_count(self, staged: Staged) -> int:
        """Epilogue subtiles of a staged result."""
        return -(-self.result_columns(staged) // self.subtile_columns(staged))

    @property
    def handoff(self) -> Handoff:
        """How a stage of the pipelined loop changes hands."""
        assert self.pipelined is not None
        if any(s.under == self.pipelined.loop and s.route is Route.TMA for s in self.staged):
            return Handoff.MBARRIERS
        return Handoff.LOCKSTEP if self.pipelined.alternating else Handoff.BLOCK_BARRIER

    def handoff_of(self, staged: Staged) -> Handoff | None:
        """How a shared tile changes hands, where whoever emits its accesses orders them.

        A result that threads take back themselves needs no order; but not where a matrix instruction fills the tile:
        which lane holds an element is then the instruction's affair. A finished one is a warpgroup's own.
        """
        if staged.space is not Space.SHARED:
            return None
        if staged.operand == "C":
            if self.slots(staged) > 1 or (staged.finished and self.tensorized is not None):
                return Handoff.WARPGROUP
            return Handoff.OWN_DATA if staged.distribution is None and self.tensorized is None else None
        return self.handoff if self.slots(staged) > 1 else None

    def users_of(self, loop: str) -> tuple[str, ...]:
        """The declarations that name a loop: tiles copied under it, the sum kept over it, the pipeline."""
        users = [staged.name for staged in self.staged if staged.under == loop]
        if self.accumulation is not None and self.accumulation.over == loop:
            users.append(self.accumulation.name)
        if self.pipelined is not None and loop in (self.pipelined.loop, self.pipelined.interleave):
            users.append("the pipeline")
        return tuple(users)


def naive_program(gemm: Gemm) -> Program:
    """Where every schedule starts: three serial loops, the sum kept in C."""
    dims: tuple[Dim, Dim, Dim] = ("m", "n", "k")
    return Program(gemm, tuple(Loop(dim, (Axis(dim, dim, 1, None),)) for dim in dims))
