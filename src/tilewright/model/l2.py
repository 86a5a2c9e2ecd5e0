"""An estimate of what the L2 cache serves: blocks in the order of their launch, least recently used lines leave first.

Two things decide it beside the size of the cache, and a model without either is far off (docs/l2.md):

- Blocks of one SM do not run side by side. Warp schedulers prefer the oldest warps, so a younger block falls behind,
  and comes to a line of A or B when those that started with it are long past it.
- The L2 of large GPUs has two halves, each with half of the SMs and half of the memory. A line of the far half is
  looked up twice, in the near half and then at home, and is kept in both.

What is estimated: tiles are followed in `STEPS` pieces along k, not line by line; all SMs run at one speed; L1 keeps
nothing from one step to the next.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from math import prod

import numpy as np

from tilewright.device.spec import DeviceSpec
from tilewright.dtypes import Array
from tilewright.ir.buffer import Space
from tilewright.ir.expr import Binary, Cast, Const, Expr, Lookup, Op, Select, Var
from tilewright.ir.kernel import Kernel
from tilewright.ir.program import Axis, Program
from tilewright.ir.stmt import For, Let
from tilewright.ir.visit import variables, walk
from tilewright.problem.gemm import DIMS, Dim, Gemm, OperandName

YOUNGER_PACE = 0.5
"""How fast a block runs, measured by the next older one on its SM. From the bytes that four kernels read of DRAM on an
H200, which it puts within 3 % (docs/l2.md); anything from 0.3 to 0.6 does nearly as well."""

STEPS = 32
"""Pieces of a tile along k: a resolution, no property of any GPU."""


@dataclass(frozen=True, slots=True)
class Strips:
    """What blocks ask of L2. tiles: of each block in the order of launch, its row and column of tiles of C.

    a_bytes, b_bytes: what a block reads of A and of B; c_bytes: what it writes.
    """

    tiles: Sequence[tuple[int, int]]
    a_bytes: int
    b_bytes: int
    c_bytes: int


@dataclass(frozen=True, slots=True)
class L2Estimate:
    """Estimated traffic. looked_up_bytes: by all lookups, a second one at home included; hit_bytes of them hit."""

    requested_bytes: int
    looked_up_bytes: int
    hit_bytes: int
    dram_read_bytes: int

    @property
    def hit_rate(self) -> float:
        """Lookups that hit, 0 .. 1, as the counter lts__t_sector_hit_rate has them: writes hit."""
        return self.hit_bytes / self.looked_up_bytes if self.looked_up_bytes else 0.0


def estimate_l2(strips: Strips, spec: DeviceSpec, blocks_per_sm: int) -> L2Estimate:
    """The L2 traffic of a kernel whose blocks read strips of A and B; blocks_per_sm run on an SM at a time."""
    partitions = spec.l2_partitions
    cache = _Cache(spec.l2_bytes // partitions, partitions)
    a_bytes, b_bytes = (size // (STEPS * partitions) for size in (strips.a_bytes, strips.b_bytes))
    sms = [_Sm(number * partitions // spec.sm_count) for number in range(spec.sm_count)]
    tiles, waiting, read = strips.tiles, iter(range(len(strips.tiles))), cache.read
    for _ in range(blocks_per_sm):  # blocks are handed out one to each SM, then a second one to each
        for sm in sms:
            sm.start(waiting, 1)
    strides: dict[tuple[float, ...], _Stride] = {}  # most SMs are as far as another one
    while any(sm.blocks for sm in sms):
        for sm in sms:
            stride = strides.get(sm.progress)
            if stride is None:
                stride = strides[sm.progress] = _stride(sm.progress)
            for at, step in stride.reached:
                row, column = tiles[sm.blocks[at]]
                read(2 * (row * STEPS + step), a_bytes, sm.partition)
                read(2 * (column * STEPS + step) + 1, b_bytes, sm.partition)
            sm.progress = stride.progress
            if stride.ended:
                sm.blocks = sm.blocks[stride.ended :]
                sm.start(waiting, stride.ended)
    written = strips.c_bytes * len(tiles)
    requested = cache.read_bytes * partitions
    hit = requested - cache.from_dram
    return L2Estimate(requested, requested + cache.far_bytes + written, hit + written, cache.from_dram)


@dataclass(slots=True)
class _Sm:
    """An SM of one half of the GPU, and its blocks, oldest first; none has come as far as an older one.

    progress: of each block the steps it has done, with the part of one that it is into the next.
    """

    partition: int
    blocks: list[int] = field(default_factory=list)
    progress: tuple[float, ...] = ()

    def start(self, waiting: Iterator[int], count: int) -> None:
        started = list(islice(waiting, count))
        self.blocks += started
        self.progress += (0.0,) * len(started)


@dataclass(frozen=True, slots=True)
class _Stride:
    """What the blocks of an SM do next. reached: those that come to another step, by their place, and which. progress:
    of those that go on afterwards. ended: how many of the oldest do not."""

    reached: tuple[tuple[int, int], ...]
    progress: tuple[float, ...]
    ended: int


def _stride(progress: tuple[float, ...]) -> _Stride:
    after = tuple(done + YOUNGER_PACE**at for at, done in enumerate(progress))
    both = enumerate(zip(progress, after, strict=True))
    reached = tuple((at, int(before)) for at, (before, now) in both if now >= int(before) + 1)
    left = tuple(done for done in after if done < STEPS)
    return _Stride(reached, left, len(after) - len(left))


@dataclass(slots=True)
class _Cache:
    """The partitions of L2, each with `room_bytes`; pieces are kept by bytes, least recently used first."""

    room_bytes: int
    partitions: int
    kept: list[OrderedDict[int, int]] = field(init=False)
    used_bytes: list[int] = field(init=False)
    read_bytes: int = 0  # of each partition
    far_bytes: int = 0
    from_dram: int = 0

    def __post_init__(self) -> None:
        self.kept = [OrderedDict() for _ in range(self.partitions)]
        self.used_bytes = [0] * self.partitions

    def read(self, step: int, size: int, near: int) -> None:
        """An SM beside the partition `near` reads a step of a strip, `size` bytes of it from each partition, its home.

        step: a number that no other step of a strip has.
        """
        beside, first = self.kept[near], step * self.partitions
        self.read_bytes += size
        for piece in range(first, first + self.partitions):
            if piece in beside:
                beside.move_to_end(piece)
            else:
                self._fetch(piece, piece - first, size, near)

    def _fetch(self, piece: int, home: int, size: int, near: int) -> None:
        """A piece that the partition `near` lacks, from its home if that is another one, or from DRAM."""
        if home == near:
            self.from_dram += size
        else:
            self.far_bytes += size
            at_home = self.kept[home]
            if piece in at_home:
                at_home.move_to_end(piece)
            else:
                self.from_dram += size
                self._keep(home, piece, size)
        self._keep(near, piece, size)

    def _keep(self, partition: int, piece: int, size: int) -> None:
        kept, used, room_bytes = self.kept[partition], self.used_bytes[partition] + size, self.room_bytes
        kept[piece] = size
        while used > room_bytes:
            used -= kept.popitem(last=False)[1]
        self.used_bytes[partition] = used


# -- what a kernel asks ------------------------------------------------------------------------------------------------


def strips_of(
    program: Program, kernel: Kernel, grid: tuple[int, int, int], *, most: int | None = None, further: bool = False
) -> Strips | None:
    """What the blocks of a kernel read; None unless each block stages whole strips of A and B for one tile of C.

    most: blocks that are asked about, the first ones; None: all. further: resident blocks, too, which go on to further
    tiles: as if a grid launched one for each, in the order in which they take them.

    Other kernels read elements again and again, and what reaches L2 is what their L1 happens to miss; or a block goes
    on to further tiles, in an order that is not in the grid.
    """
    gemm = program.gemm
    goes_on = further and kernel.resident
    if not goes_on and not all(_is_staged_whole(program, operand) for operand in ("A", "B")):
        return None
    tiles = tiles_in_order(program, kernel, grid, at_top=not goes_on, most=most)
    if tiles is None:
        return None
    m, n = (min(program.block_tile(dim), gemm.size(dim)) for dim in ("m", "n"))
    a, b, c = gemm.operands
    return Strips(
        tiles,
        m * gemm.k * a.dtype.bytes,
        n * gemm.k * b.dtype.bytes,
        m * n * c.dtype.bytes,
    )


def tiles_in_order(
    program: Program, kernel: Kernel, grid: tuple[int, int, int], *, at_top: bool = False, most: int | None = None
) -> list[tuple[int, int]] | None:
    """The row and column of tiles of C that the blocks of a grid compute, x fastest; None where the kernel hides it.

    Of a resident kernel: in the order in which its blocks take the tiles, as if each took one. at_top: only where the
    kernel works out the tile before any loop or branch. most: the first so many.
    """
    number = np.arange(prod(grid) if most is None else min(most, prod(grid)))
    digits = _block_digits(kernel, program.gemm, grid, number, at_top=at_top)
    if not {axis.name for loop in program.grid_loops for axis in loop.axes} <= digits.keys():
        return None
    rows, columns = (_tile_numbers(program, dim, digits, len(number)) for dim in ("m", "n"))
    return list(zip(rows.tolist(), columns.tolist(), strict=True))


def _is_staged_whole(program: Program, operand: OperandName) -> bool:
    """Whether the block keeps in shared memory, at a time, all rows (or columns) of its tile that it multiplies."""
    for staged in program.staged:
        if staged.operand == operand and staged.space is Space.SHARED:
            axes = dict(zip(DIMS[operand], program.tile_axes(staged), strict=True))
            dim: Dim = "m" if operand == "A" else "n"
            return prod(axis.extent or 1 for axis in axes[dim]) == program.block_tile(dim)
    return False


def _tile_numbers(program: Program, dim: Dim, digits: dict[str, Array], blocks: int) -> Array:
    """For each block, which tile of the dimension is its own."""
    axes: tuple[Axis, ...] = program.axes_of(dim, program.grid_loops)
    index = sum((digits[axis.name] * axis.stride for axis in axes), start=np.zeros(blocks, np.int64))
    numbers: Array = index // program.block_tile(dim)
    return numbers


def _block_digits(
    kernel: Kernel, gemm: Gemm, grid: tuple[int, int, int], number: Array, *, at_top: bool
) -> dict[str, Array]:
    """What names of the kernel are in blocks, by their number in the order of launch, x fastest; loops are in their
    first round."""
    names: dict[str, Array] = {
        "blockIdx.x": number % grid[0],
        "blockIdx.y": number // grid[0] % grid[1],
        "blockIdx.z": number // (grid[0] * grid[1]),
        "gridDim.x": np.full_like(number, grid[0]),
        **{name: np.full_like(number, size) for name, size in (("M", gemm.m), ("N", gemm.n), ("K", gemm.k))},
    }
    for stmt in kernel.body if at_top else (stmt for _, stmt in walk(kernel.body)):
        if isinstance(stmt, For):
            names.setdefault(stmt.var, np.zeros_like(number))
        if isinstance(stmt, Let) and stmt.name not in names and variables(stmt.value) <= names.keys():
            names[stmt.name] = _values(stmt.value, names)
    return names


_UFUNCS = {
    Op.ADD: np.add,
    Op.SUB: np.subtract,
    Op.MUL: np.multiply,
    Op.DIV: np.floor_divide,
    Op.MOD: np.remainder,
    Op.SHL: np.left_shift,
    Op.SHR: np.right_shift,
    Op.AND: np.bitwise_and,
    Op.XOR: np.bitwise_xor,
    Op.LT: np.less,
    Op.LE: np.less_equal,
    Op.GE: np.greater_equal,
    Op.EQ: np.equal,
    Op.NE: np.not_equal,
    Op.LAND: np.logical_and,
    Op.LOR: np.logical_or,
    Op.MIN: np.minimum,
    Op.MAX: np.maximum,
}


def _values(expr: Expr, names: dict[str, Array]) -> Array:
    """An integer expression for arrays of its variables."""
    match expr:
        case Const():
            return np.asarray(expr.value)
        case Var():
            return names[expr.name]
        case Binary():
            values: Array = _UFUNCS[expr.op](_values(expr.a, names), _values(expr.b, names))
            return values
        case Select():
            return np.where(*(_values(part, names) for part in (expr.condition, expr.a, expr.b)))
        case Lookup():
            return np.take(expr.table, _values(expr.index, names))
        case Cast():
            return _values(expr.value, names)
        case _:
            raise TypeError(f"{type(expr).__name__} is not a number of a block")
