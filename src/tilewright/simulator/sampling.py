"""Counting a large grid by running a few of its blocks.

What a block counts depends on where it stands in two ways only: through the alignment of its global addresses (its
first addresses modulo a line of 128 bytes), and through the guards, branches and loop extents that its coordinates
enter. Blocks that agree in all of these form a class, and one of them counts for all: the totals are exact. This
needs every index to be a sum of something of the block and something of the thread; where it is not, blocks are told
apart by their place (corner, edge, interior) and the totals are an estimate.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.artifacts import Extent
from tilewright.dtypes import Array
from tilewright.ir.async_stmt import TmaLoad, TmaStore
from tilewright.ir.buffer import Space
from tilewright.ir.expr import ZERO, Binary, Cast, Const, Expr, Op, Select, Var, binary, ceil_div
from tilewright.ir.kernel import BUILTINS, Kernel
from tilewright.ir.ranges import Bounds, Interval, interval
from tilewright.ir.stmt import Alloc, Body, For, If, Let, Move
from tilewright.ir.visit import bodies, variables, walk_expr
from tilewright.layout.banks import LINE_BYTES, SECTOR_BYTES
from tilewright.problem.problem import Problem, Stored, tma_matrix, values_of
from tilewright.simulator.arithmetic import FloatArithmetic
from tilewright.simulator.counters import Counters, weighted_sum
from tilewright.simulator.index import Scope, array_function, resolve
from tilewright.simulator.launch import Block, all_blocks, arguments, grid_of, odd
from tilewright.simulator.run import simulate

_BLOCK_NAMES = tuple(name for name in BUILTINS if name.startswith("blockIdx"))
_ALWAYS, _NEVER = 1 << 62, -(1 << 62)


@dataclass(frozen=True, slots=True)
class BlockClass:
    """Blocks that count alike. block: one of them, (x, y, z). count: how many there are."""

    block: Block
    count: int


@dataclass(frozen=True, slots=True)
class Sample:
    """Classes of blocks, the largest first. is_exact: one block counts exactly like all others of its class.

    reason: why it is an estimate; "" where it is exact.
    """

    classes: tuple[BlockClass, ...]
    reason: str = ""

    @property
    def is_exact(self) -> bool:
        return not self.reason


class NotSeparable(Exception):
    """An index mixes coordinates of the block and of the thread in a way that is not a sum."""


@dataclass(frozen=True, slots=True)
class _Trait:
    """Something of a block that its counts depend on.

    value: of the block's coordinates. others: the range of what the thread and the loops add to it. modulus: the
    value matters only modulo this (0: all of it). op: the value plus the others is compared with 0, or cut off at 0.
    """

    value: Expr
    others: Interval
    modulus: int = 0
    op: Op | None = None


def sample_blocks(kernel: Kernel, problem: Problem, *, limit: int = 64) -> Sample:
    """Classes of the blocks of a launch at the sizes of `problem`; more than `limit` are merged into an estimate."""
    constants = arguments(kernel, values_of(problem))
    grid = grid_of(kernel, constants)
    coordinates = all_blocks(grid)
    if not len(coordinates):
        return Sample(())
    try:
        traits = set(_traits(kernel, constants))
        columns, reason = [_column(trait, coordinates) for trait in traits], ""
    except NotSeparable as mixed:
        columns, reason = [_edge(coordinates, grid)], f"{mixed} mixes coordinates of block and thread"
    sample = _classes(columns, coordinates, reason)
    if len(sample.classes) > limit:
        reason = f"the blocks fall into {len(sample.classes)} classes"
        sample = _classes([_edge(coordinates, grid)], coordinates, reason)
    return sample


def count_sampled(kernel: Kernel, operands: Stored, *, limit: int = 64, **options: Any) -> Counters:
    """Counters of the whole grid from one block of each class; `is_estimate` says whether they are exact.

    options: of `simulate`. Raises SimulationError as `simulate` does; only the sampled blocks are looked at. Of
    persistent blocks, and blocks of clusters, none stands for another: all of them run.
    """
    options = {"arithmetic": FloatArithmetic(exact_sums=False), **options}
    if kernel.resident or kernel.cluster > 1:
        return simulate(kernel, operands, **options).counters
    sample = sample_blocks(kernel, operands.problem, limit=limit)
    if not sample.classes:
        return simulate(kernel, operands, **options).counters
    parts = [(one.count, simulate(kernel, operands, blocks=[one.block], **options).counters) for one in sample.classes]
    return weighted_sum(parts, is_estimate=not sample.is_exact)


def _classes(columns: list[Array], coordinates: Array, reason: str) -> Sample:
    table = np.stack([np.zeros(len(coordinates), np.int64), *columns], axis=1)
    _, first, counts = np.unique(table, axis=0, return_index=True, return_counts=True)
    order = np.argsort(-counts, kind="stable")
    blocks = [tuple(row) for row in coordinates[first[order]].tolist()]
    sizes = counts[order].tolist()
    return Sample(tuple(BlockClass((x, y, z), n) for (x, y, z), n in zip(blocks, sizes, strict=True)), reason)


def _edge(coordinates: Array, grid: Block) -> Array:
    """The place of each block in its grid: the first, the last or between, along each axis."""
    last = np.array(grid) - 1
    place = (coordinates == 0) + 2 * (coordinates == last)
    numbers: Array = place @ np.array([1, 4, 16])
    return numbers


def _column(trait: _Trait, coordinates: Array) -> Array:
    """The trait of each block, as numbers that are equal where the trait is."""
    value = array_function(trait.value, *(_short(name) for name in _BLOCK_NAMES))(*coordinates.T)
    column = np.broadcast_to(np.asarray(value, np.int64), (len(coordinates),))
    if trait.modulus:
        return column % trait.modulus
    if trait.op is Op.MIN and trait.others.low is not None:
        return np.where(column + trait.others.low >= 0, _NEVER, column)
    if trait.op is Op.LT and trait.others.low is not None and trait.others.high is not None:
        column = np.where(column + trait.others.high < 0, _ALWAYS, column)
        column = np.where((column + trait.others.low >= 0) & (column != _ALWAYS), _NEVER, column)
    return column


def _short(name: str) -> str:
    return name.replace(".", "_")


def _traits(kernel: Kernel, constants: Mapping[str, Expr]) -> Iterator[_Trait]:
    names: dict[str, Expr] = {name: Var(_short(name)) for name in _BLOCK_NAMES}
    bounds: dict[str, Interval] = {}
    names["gridDim.x"] = Const(grid_of(kernel, constants)[0])
    for axis, extent in zip("xyz", kernel.block, strict=True):
        names[f"threadIdx.{axis}"] = Var(f"threadIdx.{axis}")
        bounds[f"threadIdx.{axis}"] = Interval(0, extent - 1)
    known = {**names, **constants, **odd(kernel, lambda _: 0)}
    yield from _body_traits(kernel.body, kernel, Scope(known), bounds, 0)


def _body_traits(body: Body, kernel: Kernel, scope: Scope, bounds: Bounds, depth: int) -> Iterator[_Trait]:
    for stmt in body:
        inner, inner_bounds = scope, bounds
        match stmt:
            case Alloc():
                scope = scope.with_registers(stmt.buffer.name, 0)
            case Let():
                value = resolve(stmt.value, scope)
                scope = scope.with_name(stmt.name, value)
            case Move():
                yield from _move_traits(stmt, scope, bounds)
            case TmaLoad() | TmaStore():
                yield from _box_traits(stmt, kernel, scope, bounds)
            case If():
                yield from _condition_traits(resolve(stmt.condition, scope), bounds)
            case For():
                extent = resolve(stmt.extent, scope)
                yield from _split(extent, bounds)
                counter = f"{stmt.var}@{depth}"
                inner = scope.with_name(stmt.var, Var(counter))
                for carried in stmt.carried:  # the same for every block
                    inner = inner.with_name(carried.name, Var(f"{carried.name}@{depth}"))
                high = interval(extent, bounds).high
                inner_bounds = {**bounds, counter: Interval(0, None if high is None else high - 1)}
            case _:
                pass
        for _, nested in bodies(stmt):
            yield from _body_traits(nested, kernel, inner, inner_bounds, depth + 1)


def _move_traits(stmt: Move, scope: Scope, bounds: Bounds) -> Iterator[_Trait]:
    if stmt.guard is not None:
        yield from _condition_traits(resolve(stmt.guard, scope), bounds)
    if stmt.valid is not None:
        yield from _valid_traits(resolve(stmt.valid, scope), bounds)
    for place in (stmt.dst, stmt.src):
        if place.buffer.space is not Space.REGISTER:
            line = LINE_BYTES // place.buffer.dtype.bytes
            yield from _split(resolve(place.flat, scope), bounds, modulus=line)


def _box_traits(stmt: TmaLoad | TmaStore, kernel: Kernel, scope: Scope, bounds: Bounds) -> Iterator[_Trait]:
    """How much of a box is inside the matrix, and where in a sector it begins."""
    matrix = tma_matrix(kernel.problem, stmt.map.operand)
    inner, outer, *further = stmt.at
    sizes = _extent(matrix.length), _extent(matrix.lines)
    for at, box, size in zip((inner, outer), stmt.map.box, sizes, strict=True):
        yield from _split(resolve(size - at - box, scope), bounds, op=Op.MIN)
    if stmt.map.ragged:
        yield from _split(resolve(further[1] - outer - stmt.map.box[1], scope), bounds, op=Op.MIN)
    first = outer * _extent(matrix.leading) + inner
    yield from _split(resolve(first, scope), bounds, modulus=SECTOR_BYTES // matrix.dtype.bytes)


def _extent(extent: Extent) -> Expr:
    return ceil_div(Var(extent.argument), extent.per) * extent.times


def _valid_traits(valid: Expr, bounds: Bounds) -> Iterator[_Trait]:
    """How much of a vector is inside: `min(what is left, width)` is the width in all blocks but the last."""
    if isinstance(valid, Binary) and valid.op is Op.MIN:
        yield from _split(binary(Op.SUB, valid.a, valid.b), bounds, op=Op.MIN)
    else:
        yield from _split(valid, bounds)


def _condition_traits(condition: Expr, bounds: Bounds) -> Iterator[_Trait]:
    """Traits of each comparison inside a condition."""
    for part in walk_expr(condition):
        if isinstance(part, Binary) and part.op in (Op.LT, Op.LE, Op.GE, Op.EQ, Op.NE):
            if part.a.dtype.is_float:
                continue
            difference = binary(Op.SUB, part.a, part.b)
            if part.op is Op.LE:
                difference = difference - 1
            # `a >= b` is the opposite of `a < b`: the same blocks decide it.
            op = Op.LT if part.op in (Op.LT, Op.LE, Op.GE) else part.op
            yield from _split(difference, bounds, op=op)


def _split(expr: Expr, bounds: Bounds, *, modulus: int = 0, op: Op | None = None) -> Iterator[_Trait]:
    """The trait of an index, if coordinates of the block enter it at all."""
    of_block, others = _parts(expr)
    if not isinstance(of_block, Const):
        yield _Trait(of_block, interval(others, bounds), modulus, op)


def _parts(expr: Expr) -> tuple[Expr, Expr]:
    """`expr` as (what the block contributes, constants included; what the rest does)."""
    reads = variables(expr)
    blocks = {_short(name) for name in _BLOCK_NAMES}
    if reads <= blocks:
        return expr, ZERO
    if reads.isdisjoint(blocks):
        return ZERO, expr
    match expr:
        case Binary(op=Op.ADD | Op.SUB):
            (a, rest_a), (b, rest_b) = _parts(expr.a), _parts(expr.b)
            return binary(expr.op, a, b), binary(expr.op, rest_a, rest_b)
        case Binary(op=Op.MUL, b=Const()):
            of_block, rest = _parts(expr.a)
            return binary(Op.MUL, of_block, expr.b), binary(Op.MUL, rest, expr.b)
        case Cast():
            return _parts(expr.value)
        case Select():
            raise NotSeparable("a choice")
        case _:
            raise NotSeparable("an index")
