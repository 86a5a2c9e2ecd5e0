"""Where a thread stands: the digits of every loop, from block and thread numbers and loop variables."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from tilewright.ir.expr import ONE, ZERO, Const, Expr, Op, Var, binary, ceil_div
from tilewright.ir.kernel import C_ODD, PHASE_BYTES, PHASES, SIZES
from tilewright.ir.program import GROUP_LANES, WARP_LANES, Axis, Level, Loop, Program
from tilewright.ir.ranges import NATURAL, Interval
from tilewright.ir.stmt import Body, Let
from tilewright.lowering.raster import BLOCK, raster
from tilewright.problem.gemm import Dim

_BUILTIN = {
    Level.GRID_X: "blockIdx.x",
    Level.GRID_Y: "blockIdx.y",
    Level.GRID_Z: "blockIdx.z",
    Level.BLOCK_X: "threadIdx.x",
    Level.BLOCK_Y: "threadIdx.y",
    Level.BLOCK_Z: "threadIdx.z",
}
_BLOCK_X = Var("blockIdx.x")
THREAD = "thread_in_block"
LANE = "lane_in_warp"
GROUP_LANE = "lane_in_group"
GROUP = "warpgroup"
ROUND = "round"
"""Tiles that a warpgroup which takes turns has done before."""
TURN = "turn"
"""Tiles that a block which stays has done before."""
RANK = "rank_in_cluster"


def axis_extent(axis: Axis, exact: frozenset[str] = frozenset()) -> Expr:
    """Iterations of one digit; the outermost one covers the size, rounded up unless the size is exact."""
    if axis.extent is not None:
        return Const(axis.extent)
    size = SIZES[axis.dim]
    return size // axis.stride if axis.dim in exact else ceil_div(size, axis.stride)


def extent_of(loop: Loop, exact: frozenset[str] = frozenset()) -> Expr:
    """Iterations of a loop: the product over its digits."""
    result: Expr = ONE
    for axis in loop.axes:
        result = result * axis_extent(axis, exact)
    return result


def digits(loop: Loop, number: Expr) -> Body:
    """`Let`s for the digits of a fused loop whose variable is `number`; none for a loop of one digit."""
    if len(loop.axes) == 1:
        return ()
    lets: list[Let] = []
    below: Expr = ONE
    for axis in reversed(loop.axes):
        digit = number // below if isinstance(below, Const) else binary(Op.DIV, number, below)
        if axis is not loop.axes[0]:
            digit = binary(Op.MOD, digit, axis_extent(axis))
        lets.insert(0, Let(axis.name, digit))
        below = below * axis_extent(axis)
    return tuple(lets)


def index_of(program: Program, dim: Dim) -> Expr:
    """The index m, n or k of the running iteration."""
    return digit_sum(program.axes_of(dim))


def digit_sum(axes: tuple[Axis, ...]) -> Expr:
    """`stride * digit`, summed over digits."""
    total: Expr = ZERO
    for axis in axes:
        total = total + Var(axis.name) * axis.stride
    return total


def launch_coordinates(program: Program) -> Body:
    """`Let`s that name the coordinates of the running block and thread."""
    return (*block_coordinates(program), *thread_coordinates(program))


def block_coordinates(program: Program, number: Expr = _BLOCK_X) -> Body:
    """`Let`s that name the tile of C: that of the running block, or that of a given number in the raster order."""
    lets: list[Let] = []
    if program.raster is not None:
        rows, cols = tile_counts(program)
        lets += raster(program.raster, number, rows, cols, *raster_axes(program))
        if program.clustered is not None:
            lets[-2:] = _in_cluster(program, lets[-2:])
        return tuple(lets)
    for loop in program.grid_loops:
        lets += _bound(loop, Var(_BUILTIN[_level(loop)]))
    return tuple(lets)


def _in_cluster(program: Program, lets: list[Let]) -> list[Let]:
    """The digits of the tile of the cluster become those of the running block."""
    assert program.clustered is not None
    name, size = program.loop(program.clustered.loop).axes[0].name, program.clustered.size
    return [replace(let, value=let.value * size + Var(RANK)) if let.name == name else let for let in lets]


def tile_counts(program: Program) -> tuple[Expr, Expr]:
    """Rows and columns of what is numbered: tiles of blocks, or of clusters."""
    counts = []
    for axis in raster_axes(program):
        extent = axis_extent(axis)
        held = program.clustered is not None and program.loop(program.clustered.loop).axes[0] == axis
        counts.append(ceil_div(extent, program.clustered.size) if held and program.clustered is not None else extent)
    return counts[0], counts[1]


def strided_count(step: Expr | int, first: Expr, count: Expr) -> Expr:
    """How many numbers below `count` there are from `first` on, `step` apart; first < count + step."""
    return binary(Op.DIV, count - first + (step - 1), step)


def lane_of(program: Program) -> Var:
    """The number of the running lane among those that run an instruction together."""
    assert program.tensorized is not None
    return Var(LANE if program.tensorized.instruction.c.lanes == WARP_LANES else GROUP_LANE)


def thread_coordinates(program: Program) -> Body:
    """`Let`s that name the running thread's coordinates in its block."""
    lets: list[Let] = []
    for loop in program.thread_loops:
        uniform = loop.level is Level.WARPGROUP
        lets += [
            replace(let, uniform=uniform and index == 0) for index, let in enumerate(_bound(loop, _thread_number(loop)))
        ]
    if program.tensorized is not None:
        lets.append(Let(lane_of(program).name, Var("threadIdx.x") % program.tensorized.instruction.c.lanes))
    if needs_thread_number(program):
        lets.append(Let(THREAD, _linear_thread(program)))
    return tuple(lets)


def _level(loop: Loop) -> Level:
    assert loop.level is not None
    return loop.level


def _bound(loop: Loop, number: Expr) -> list[Let]:
    if len(loop.axes) == 1:
        return [Let(loop.axes[0].name, number)]
    return [Let(loop.name, number), *(let for let in digits(loop, Var(loop.name)) if isinstance(let, Let))]


def _thread_number(loop: Loop) -> Expr:
    """A warp is 32 threads that follow each other along x; a lane is the place in it."""
    x = Var("threadIdx.x")
    if loop.level is Level.WARP:
        return x // WARP_LANES
    if loop.level is Level.LANE:
        return x % WARP_LANES
    if loop.level is Level.WARPGROUP:
        return x // GROUP_LANES
    return Var(_BUILTIN[_level(loop)])


def block_shape(program: Program) -> tuple[int, int, int]:
    """Threads of a block along x, y, z."""
    levels = {loop.level: loop.extent or 1 for loop in program.thread_loops}
    if program.tensorized is not None:
        return program.threads_per_block, 1, 1
    if Level.WARP in levels or Level.LANE in levels:
        return levels.get(Level.WARP, 1) * levels.get(Level.LANE, 1), 1, 1
    return levels.get(Level.BLOCK_X, 1), levels.get(Level.BLOCK_Y, 1), levels.get(Level.BLOCK_Z, 1)


def needs_thread_number(program: Program) -> bool:
    """Whether a copy is shared out over threads that no single loop numbers."""
    distributed = any(staged.distribution is not None for staged in program.staged)
    return distributed and isinstance(thread_number(program), Var) and thread_number(program) == Var(THREAD)


def thread_number(program: Program) -> Expr:
    """The number of the running thread in its block."""
    loops = program.thread_loops
    if program.tensorized is not None:
        return Var(THREAD)
    if not loops:
        return ZERO
    if len(loops) == 1 and loops[0].level is Level.BLOCK_X:
        return Var(loops[0].name)
    return Var(THREAD)


def _linear_thread(program: Program) -> Expr:
    x, y, _ = block_shape(program)
    levels = {loop.level for loop in program.thread_loops}
    number: Expr = Var("threadIdx.x")
    if Level.BLOCK_Y in levels:
        number = Var("threadIdx.y") * x + number
    if Level.BLOCK_Z in levels:
        number = Var("threadIdx.z") * (x * y) + number
    return number


def raster_axes(program: Program) -> tuple[Axis, Axis]:
    """The digits that count rows and columns of tiles."""
    by_dim = {loop.axes[0].dim: loop.axes[0] for loop in program.grid_loops}
    return by_dim["m"], by_dim["n"]


def grid_shape(program: Program) -> tuple[Expr, Expr, Expr]:
    """Blocks along x, y, z."""
    extents = {loop.level: extent_of(loop) for loop in program.grid_loops}
    if program.raster is not None:
        rows, cols = tile_counts(program)
        return rows * cols * (program.clustered.size if program.clustered is not None else 1), ONE, ONE
    return extents.get(Level.GRID_X, ONE), extents.get(Level.GRID_Y, ONE), extents.get(Level.GRID_Z, ONE)


def bounds_of(program: Program) -> dict[str, Interval]:
    """What is known of the launch coordinates and digits."""
    bounds = dict.fromkeys((*_BUILTIN.values(), *(size.name for size in SIZES.values()), BLOCK), NATURAL)
    for axis, extent in zip("xyz", block_shape(program), strict=True):
        bounds[f"threadIdx.{axis}"] = Interval(0, extent - 1)
    bounds[LANE] = Interval(0, WARP_LANES - 1)
    bounds[GROUP_LANE] = Interval(0, GROUP_LANES - 1)
    bounds[RANK] = Interval(0, program.clustered.size - 1 if program.clustered is not None else 0)
    bounds[GROUP] = Interval(0, block_shape(program)[0] // GROUP_LANES)
    bounds["gridDim.x"] = Interval(1, None)
    bounds[C_ODD.name] = Interval(0, 1)
    for phase in PHASES.values():
        bounds[phase.name] = Interval(0, PHASE_BYTES // program.gemm.dtype.bytes - 1)
    bounds[THREAD] = Interval(0, prod(block_shape(program)) - 1)
    for loop in program.loops:
        bounds[loop.name] = Interval(0, None if loop.extent is None else loop.extent - 1)
        for digit in loop.axes:
            bounds[digit.name] = Interval(0, None if digit.extent is None else digit.extent - 1)
    return bounds
