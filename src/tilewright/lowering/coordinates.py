"""The digits of every loop, the coordinates of a thread in its block (those of a block: `scheduler`), and where a work
item lies: the values that its loops, loads, stores and guards are written with.

An item is located by names that `scheduler` declares in front of its statements. Every emitter asks here instead of
assuming that a block has all of M, N and K: `size` is what loops count over, `origin` what indices begin at, `end` what
guards compare them with.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import prod

from tilewright.dtypes import I64
from tilewright.ir.clusters import cluster_size, neighbours
from tilewright.ir.expr import HERE, ONE, ZERO, Binary, Cast, Const, Env, Expr, Op, Select, Var, binary, ceil_div
from tilewright.ir.kernel import C_ODD, PART_OF_K, SIZES, is_stepped, step_of
from tilewright.ir.program import GROUP_LANES, WARP_LANES, Axis, Level, Loop, Program
from tilewright.ir.ranges import NATURAL, Interval
from tilewright.ir.stmt import Body, Let
from tilewright.ir.work import Problems, SplitK, Walk
from tilewright.lowering.raster import BLOCK
from tilewright.problem.block_scales import BlockScaleName
from tilewright.problem.gemm import Dim, OperandName
from tilewright.problem.values import AddedName

K_FIRST, K_SIZE = Var("k_first"), Var("k_size")
"""The first k of an item and how many it sums, where items share out k."""

PART, PARTS = Var("k_part"), Var("k_parts")
"""The number of an item among those that share out the k of one tile of C, and how many these are."""

M_FIRST, M_SIZE = Var("m_first"), Var("m_size")
"""The first row of an item's group and how many it has, where groups are ragged along m."""

PROBLEM = Var("problem_number")
"""The number of an item's problem."""


@dataclass(frozen=True, slots=True)
class Located:
    """IR values of the running work item.

    size: elements of a dimension that the item's problem, or its range of k, has. origin: the index of the first one in
    the matrices; 0 where not named. end: the index behind the last one.
    """

    size: dict[Dim, Expr] = field(default_factory=lambda: dict(SIZES))
    origin: dict[Dim, Expr] = field(default_factory=dict)
    end: dict[Dim, Expr] = field(default_factory=lambda: dict(SIZES))


def located(program: Program, env: Env = HERE) -> Located:
    """The values of the running work item of a program."""
    if program.problems.along_m:
        first, size = env[M_FIRST.name], env[M_SIZE.name]
        rows = Located({**SIZES, "m": size}, {"m": first}, {**SIZES, "m": first + size})
        if not program.stream_k:
            return rows
        k_first, k_size = env[K_FIRST.name], env[K_SIZE.name]
        return replace(rows, size={**rows.size, "k": k_size}, origin={**rows.origin, "k": k_first})
    if program.problems is Problems.GROUPED_K:
        first, size = env[K_FIRST.name], env[K_SIZE.name]
        return Located({**SIZES, "k": size}, {"k": first}, {**SIZES, "k": first + size})
    if program.split_k in (SplitK.NONE, SplitK.RANKS):
        return Located()
    is_equal = program.split_k.by_items and program.walk is Walk.PERSISTENT
    first, size = env[K_FIRST.name], equal_part() if is_equal else env[K_SIZE.name]
    # Copies that run ahead load nothing of the next part, but where they run on into the item that comes next.
    end = first + size if program.walk is Walk.ONE_TILE else SIZES["k"]
    return Located({**SIZES, "k": size}, {"k": first}, {**SIZES, "k": end})


def equal_part() -> Expr:
    """How many products each item of a persistent kernel sums, the last one of a tile as well: behind K are zeros. So
    items use the rings equally often, and uses are counted by a product."""
    return Select(binary(Op.EQ, SIZES["k"], 0), ZERO, PART_OF_K)


def size_of(program: Program, dim: Dim) -> Expr:
    """Elements of a dimension that the running work item covers, all tiles of its problem together."""
    return located(program).size[dim]


def origin_of(program: Program, dim: Dim, env: Env = HERE) -> Expr:
    """The index at which the work item's problem, or its range of k, begins: of the running one, or that of `env`."""
    return located(program, env).origin.get(dim, ZERO)


def end_of(program: Program, dim: Dim) -> Expr:
    """The index behind the last one of the running work item's problem."""
    return located(program).end[dim]


def matrix_of(program: Program, name: OperandName | AddedName | BlockScaleName, env: Env = HERE) -> tuple[Expr, ...]:
    """Which of several matrices an operand of the running work item is; nothing where there is only one."""
    number: list[Expr] = []
    if is_stepped(program.problems, program.gemm.operand(name)):
        number.append(env[PROBLEM.name])
    if program.split_k is SplitK.PARTIALS and name == "C":
        number = [number[0] * PARTS + env[PART.name]] if number else [env[PART.name]]
    return tuple(number)


def base_of(program: Program, name: OperandName | AddedName | BlockScaleName, number: Expr) -> Expr:
    """The element at which matrix `number` of an operand begins."""
    wide = Cast(I64, number)
    if name == "C" and program.split_k is SplitK.PARTIALS:  # one matrix below the other
        return Binary(Op.MUL, Binary(Op.MUL, wide, SIZES["m"]), Var(program.gemm.operand("C").leading))
    return Binary(Op.MUL, wide, Var(step_of(name), I64))


_BUILTIN = {
    Level.GRID_X: "blockIdx.x",
    Level.GRID_Y: "blockIdx.y",
    Level.GRID_Z: "blockIdx.z",
    Level.BLOCK_X: "threadIdx.x",
    Level.BLOCK_Y: "threadIdx.y",
    Level.BLOCK_Z: "threadIdx.z",
}
THREAD = "thread_in_block"
LANE = "lane_in_warp"
GROUP_LANE = "thread_in_warpgroup"
GROUP = "warpgroup"
ROUND = "warpgroup_iteration"
"""Of a warpgroup in ping-pong: work items that it has done before."""
TURN = "tile_iteration"
"""Work items that a block has done before."""
RANK = "rank_in_cluster"


def axis_extent(program: Program, axis: Axis, exact: frozenset[str] = frozenset()) -> Expr:
    """Iterations of one digit; the outermost one covers the size, rounded up unless the size is exact."""
    if axis.extent is not None:
        return Const(axis.extent)
    size = size_of(program, axis.dim)
    return size // axis.stride if axis.dim in exact else ceil_div(size, axis.stride)


def extent_of(program: Program, loop: Loop, exact: frozenset[str] = frozenset()) -> Expr:
    """Iterations of a loop: the product over its digits."""
    result: Expr = ONE
    for axis in loop.axes:
        result = result * axis_extent(program, axis, exact)
    return result


def digits(program: Program, loop: Loop, number: Expr) -> Body:
    """`Let`s for the digits of a fused loop whose variable is `number`; none for a loop of one digit."""
    if len(loop.axes) == 1:
        return ()
    lets: list[Let] = []
    below: Expr = ONE
    for axis in reversed(loop.axes):
        digit = number // below if isinstance(below, Const) else binary(Op.DIV, number, below)
        if axis is not loop.axes[0]:
            digit = binary(Op.MOD, digit, axis_extent(program, axis))
        lets.insert(0, Let(axis.name, digit))
        below = below * axis_extent(program, axis)
    return tuple(lets)


def index_of(program: Program, dim: Dim, env: Env = HERE) -> Expr:
    """The index m, n or k of the running iteration."""
    return digit_sum(program.axes_of(dim), env)


def tile_digits(program: Program, dim: Dim) -> tuple[Axis, ...]:
    """The digits of a dimension that say which tile of C is running."""
    return tuple(axis for axis in program.axes_of(dim) if any(axis in loop.axes for loop in program.grid_loops))


def digit_sum(axes: tuple[Axis, ...], env: Env = HERE) -> Expr:
    """`stride * digit`, summed over digits."""
    total: Expr = ZERO
    for axis in axes:
        total = total + env[axis.name] * axis.stride
    return total


def lane_of(program: Program) -> Var:
    """The number of the running lane among those that run an instruction together."""
    assert program.tensorized is not None
    return Var(LANE if program.tensorized.instruction.c.lanes == WARP_LANES else GROUP_LANE)


def lane_let(program: Program) -> Let:
    """Names the number of the running lane, by `lane_of`."""
    assert program.tensorized is not None
    return Let(lane_of(program).name, Var("threadIdx.x") % program.tensorized.instruction.c.lanes)


def thread_coordinates(program: Program, *, with_lane: bool = True) -> tuple[Let, ...]:
    """`Let`s that name the running thread's coordinates in its block. with_lane: with `lane_let`, if there is one."""
    lets: list[Let] = []
    for loop in program.thread_loops:
        uniform = loop.level is Level.WARPGROUP
        lets += [
            replace(let, uniform=uniform and index == 0)
            for index, let in enumerate(bound(program, loop, _thread_number(loop)))
        ]
    if program.tensorized is not None and with_lane:
        lets.append(lane_let(program))
    if needs_thread_number(program):
        lets.append(Let(THREAD, linear_thread(program)))
    return tuple(lets)


def hardware_number(loop: Loop) -> Var:
    """The built-in coordinate of a loop that is bound to blocks, or to threads along an axis."""
    assert loop.level is not None
    return Var(_BUILTIN[loop.level])


def bound(program: Program, loop: Loop, number: Expr) -> list[Let]:
    """`Let`s for the digits of a loop whose iterations are blocks or threads."""
    if len(loop.axes) == 1:
        return [Let(loop.axes[0].name, number)]
    return [Let(loop.name, number), *(let for let in digits(program, loop, Var(loop.name)) if isinstance(let, Let))]


def _thread_number(loop: Loop) -> Expr:
    """A warp is 32 threads that follow each other along x; a lane is the place in it."""
    x = Var("threadIdx.x")
    if loop.level is Level.WARP:
        return x // WARP_LANES
    if loop.level is Level.LANE:
        return x % WARP_LANES
    if loop.level is Level.WARPGROUP:
        return x // GROUP_LANES
    return hardware_number(loop)


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


def linear_thread(program: Program) -> Expr:
    """The number of the running thread in its block, from what the hardware says of it."""
    x, y, _ = block_shape(program)
    levels = {loop.level for loop in program.thread_loops}
    number: Expr = Var("threadIdx.x")
    if Level.BLOCK_Y in levels:
        number = Var("threadIdx.y") * x + number
    if Level.BLOCK_Z in levels:
        number = Var("threadIdx.z") * (x * y) + number
    return number


def rank_step(program: Program, dim: Dim) -> int:
    """From the rank of a block of a cluster to that of its neighbour along a dimension."""
    assert program.clustered is not None
    (name, size), *_ = program.clustered.loops
    return 1 if program.loop(name).axes[0].dim == dim else size


def place_in_cluster(program: Program, dim: Dim) -> Expr:
    """How many blocks of its cluster lie before the running one along a dimension."""
    size, step = neighbours(program, dim), rank_step(program, dim)
    if size == cluster_size(program):
        return Var(RANK)
    return binary(Op.MOD, Var(RANK), size) if step == 1 else binary(Op.DIV, Var(RANK), step)


def cluster_coordinates(program: Program) -> Body:
    """`Let`s that name the running block's place in its cluster, and its range of k where the blocks of a cluster share
    it out: equal numbers of k tiles, one more for the first blocks where some are left over."""
    size = cluster_size(program)
    lets = (Let(RANK, Var("blockIdx.x") % size),) if size > 1 else ()
    if program.split_k is not SplitK.CLUSTER:
        return lets
    step, place = program.block_tile("k"), place_in_cluster(program, "k")
    tiles, end = Var("k_tiles_of_all"), Var("k_end")
    each, left = tiles // size, binary(Op.MOD, tiles, size)

    def before(block: Expr) -> Expr:
        """The k at which a block's range begins."""
        return (block * each + binary(Op.MIN, block, left)) * step

    return (
        *lets,
        Let(tiles.name, ceil_div(SIZES["k"], step), "of a tile of C"),
        Let(K_FIRST.name, before(place), "this block's range of k"),
        Let(end.name, binary(Op.MIN, before(place + 1), SIZES["k"])),
        Let(K_SIZE.name, binary(Op.MAX, end - K_FIRST, 0)),
    )


def bounds_of(program: Program) -> dict[str, Interval]:
    """What is known of the launch coordinates and digits."""
    bounds = dict.fromkeys((*_BUILTIN.values(), *(size.name for size in SIZES.values()), BLOCK), NATURAL)
    for axis, extent in zip("xyz", block_shape(program), strict=True):
        bounds[f"threadIdx.{axis}"] = Interval(0, extent - 1)
    bounds[LANE] = Interval(0, WARP_LANES - 1)
    bounds[GROUP_LANE] = Interval(0, GROUP_LANES - 1)
    bounds[RANK] = Interval(0, cluster_size(program) - 1)
    bounds[GROUP] = Interval(0, block_shape(program)[0] // GROUP_LANES)
    bounds["gridDim.x"] = Interval(1, None)
    bounds[C_ODD.name] = Interval(0, 1)
    bounds[THREAD] = Interval(0, prod(block_shape(program)) - 1)
    for loop in program.loops:
        bounds[loop.name] = Interval(0, None if loop.extent is None else loop.extent - 1)
        for digit in loop.axes:
            bounds[digit.name] = Interval(0, None if digit.extent is None else digit.extent - 1)
    return bounds
