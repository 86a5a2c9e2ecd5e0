"""The statements that fill a staged tile, and those that empty the tile of the result.

A shared tile that is distributed is copied in chunks: `vector` neighbours along the dimension that is contiguous in
global memory. Which chunks are a thread's own follows from its number and the pattern.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from tilewright.errors import LoweringError
from tilewright.ir.buffer import Buffer, Space
from tilewright.ir.expr import HERE, ZERO, Const, Env, Expr, Load, Op, Ref, Var, binary
from tilewright.ir.program import Distribution, Pattern, Program, Route, Staged
from tilewright.ir.stmt import Alloc, Body, For, If, Let, Move, Stmt
from tilewright.ir.tiles import Tile, source_of, tile_of
from tilewright.lowering.coordinates import digit_sum, index_of, thread_number
from tilewright.lowering.fragments import fragment_steps
from tilewright.lowering.kernel_parts import ELEMENT, Steps, global_place, in_pair, over_vectors, value_buffer
from tilewright.units import ceil_div

Combine = Callable[[Ref, int, Callable[[Expr], tuple[Expr, ...]]], Body]


@dataclass(frozen=True, slots=True)
class Team:
    """The threads that share out a copy: how many, and the number of the running one among them."""

    threads: int
    number: Expr


def whole_block(program: Program) -> Team:
    return Team(program.threads_per_block, thread_number(program))


@dataclass(frozen=True, slots=True)
class Chunk:
    """One chunk of a distributed copy: coordinates of its first element inside the tile, and which step it is."""

    row: Expr
    col: Expr
    step: Expr


def copy_tile(program: Program, staged: Staged, env: Env = HERE) -> Body:
    """Statements that fill a tile of A or B, under the loop where it is staged."""
    copy = copy_steps(program, staged, env).whole()
    # A prefetched tile outlives the iteration that fills it; whoever runs ahead declares it.
    is_local = staged.space is Space.REGISTER and not staged.prefetched
    return (Alloc(tile_of(program, staged).register_buffer), *copy) if is_local else copy


def copy_steps(program: Program, staged: Staged, env: Env = HERE, *, team: Team | None = None) -> Steps:
    """The steps that fill a tile of A or B."""
    tile = tile_of(program, staged)
    if tile.fragment is not None:
        return fragment_steps(program, tile, env)
    if staged.space is Space.REGISTER:
        return Steps("", 1, lambda _: _fill_registers(program, tile, env), looped=False)
    if staged.distribution is None:
        return Steps("", 1, lambda _: _each_thread(program, tile, env), looped=False)
    vector = staged.distribution.vector

    def copy(chunk: Chunk) -> Body:
        if staged.route is Route.ASYNC:
            return _copy_async(program, tile, chunk, vector, env)
        value = value_buffer(staged.name, tile.dtype, vector)
        source = _global(program, tile, chunk, env)
        load = Move(Ref(value, (ZERO,)), source, vector, env.there, origin=staged.name)
        return (Alloc(value), load, *_deposit(tile, chunk, vector, value, env))

    return _shared_out(tile, staged.distribution, team or whole_block(program), copy)


def prefetch_buffer(program: Program, staged: Staged) -> Buffer:
    """The registers that hold a thread's part of the next tile."""
    tile, distribution = tile_of(program, staged), _distribution(staged)
    steps = _steps(tile, distribution, program.threads_per_block)
    return Buffer(f"{staged.name}_next", Space.REGISTER, tile.dtype, (steps, distribution.vector), ("step", "element"))


def fetch_tile(program: Program, staged: Staged, env: Env) -> Steps:
    """A thread's part of a tile from global memory into `prefetch_buffer`."""
    tile, distribution, value = tile_of(program, staged), _distribution(staged), prefetch_buffer(program, staged)

    def fetch(chunk: Chunk) -> Body:
        here = Ref(value, (chunk.step, ZERO))
        source = _global(program, tile, chunk, env)
        return (Move(here, source, distribution.vector, env.there, origin=staged.name),)

    return _shared_out(tile, distribution, whole_block(program), fetch, name=value.name)


def deposit_tile(program: Program, staged: Staged, env: Env) -> Steps:
    """A thread's part of a tile from `prefetch_buffer` into the tile."""
    tile, distribution, value = tile_of(program, staged), _distribution(staged), prefetch_buffer(program, staged)

    def deposit(chunk: Chunk) -> Body:
        return _deposit(tile, chunk, distribution.vector, value, env, chunk.step)

    return _shared_out(tile, distribution, whole_block(program), deposit)


def store_tile(program: Program, tile: Tile, combine: Combine, *, pairs: bool = False) -> Body:
    """Statements that store the shared tile of the result, shared out over the threads. pairs: neighbours of a row have
    changed places there (`in_pair`)."""
    distribution = _distribution(tile.staged)
    width = distribution.vector
    alone, along = pairs and width == 1, ("row", "col")[tile.global_minor]

    def store(chunk: Chunk) -> Body:
        value = value_buffer(tile.staged.name, tile.dtype, width)
        loads = _between(
            tile,
            replace(chunk, **{along: in_pair(getattr(chunk, along))}) if alone else chunk,
            width,
            HERE,
            lambda place, at, each: Move(Ref(value, (at,)), place, each, origin=tile.staged.name),
        )
        place = _global(program, tile, chunk, HERE)
        within = in_pair if pairs and not alone else _same
        return (Alloc(value), *loads, *combine(place, width, lambda element: (Load(value, (within(element),)),)))

    return _shared_out(tile, distribution, whole_block(program), store).whole()


def _same(element: Expr) -> Expr:
    return element


def _distribution(staged: Staged) -> Distribution:
    if staged.distribution is None:
        raise LoweringError(f"{staged.name!r} is not distributed.")
    return staged.distribution


def _steps(tile: Tile, distribution: Distribution, threads: int) -> int:
    """Chunks each thread copies."""
    if distribution.row_threads:
        rows = tile.spans[1 - tile.global_minor].extent
        return _patches(tile, distribution) * ceil_div(rows, threads // distribution.row_threads)
    return ceil_div(tile.elements // distribution.vector, threads)


def _patches(tile: Tile, distribution: Distribution) -> int:
    """Chunks of a row that each thread copies, where so many lie along it."""
    return tile.spans[tile.global_minor].extent // distribution.vector // distribution.row_threads


def _each_thread(program: Program, tile: Tile, env: Env) -> Body:
    """Every thread of the block copies every element."""
    name = tile.staged.name
    names = [f"{name}_{span.dim}" for span in tile.spans]
    chunk = Chunk(Var(names[0]), Var(names[1]), ZERO)
    value = value_buffer(name, tile.dtype, 1)
    load = Move(Ref(value, (ZERO,)), _global(program, tile, chunk, env), 1, env.there, origin=name)
    body: Body = (Alloc(value), load, *_deposit(tile, chunk, 1, value, env))
    for at in (tile.global_minor, 1 - tile.global_minor):
        body = (For(names[at], Const(tile.spans[at].extent), body),)
    return body


def needs_scope(program: Program, staged: Staged) -> bool:
    """Whether a copy is a straight line, whose names must be kept from those of others by a branch or a loop."""
    tile, distribution = tile_of(program, staged), staged.distribution
    threads = program.threads_per_block
    return distribution is not None and tile.elements // distribution.vector == threads == threads * _steps(
        tile, distribution, threads
    )


def _shared_out(
    tile: Tile, distribution: Distribution, team: Team, copy: Callable[[Chunk], Body], *, name: str = ""
) -> Steps:
    """`copy` for each chunk that is the running thread's own; `name` begins the names of its coordinates."""
    name = name or tile.staged.name
    per_row = tile.spans[tile.global_minor].extent // distribution.vector
    rows, chunks = tile.spans[1 - tile.global_minor].extent, tile.elements // distribution.vector
    steps = _steps(tile, distribution, team.threads)
    cyclic = distribution.pattern is Pattern.CYCLIC

    def chunk(step: Expr) -> Body:
        number = step * team.threads + team.number if cyclic else team.number * steps + step
        across, down = number % per_row, number // per_row
        if distribution.row_threads:
            columns = distribution.row_threads
            patches = _patches(tile, distribution)
            across = step % patches * columns + team.number % columns
            down = step // patches * (team.threads // columns) + team.number // columns
        last = (down, rows) if distribution.row_threads else (number, chunks)
        coordinate: list[Expr] = [ZERO, ZERO]
        coordinate[tile.global_minor] = across * distribution.vector
        coordinate[1 - tile.global_minor] = down
        names = [f"{name}_{span.dim}" for span in tile.spans]
        notes = [f"0 .. {span.extent - 1}" for span in tile.spans]
        lets: list[Stmt] = [Let(n, c, note) for n, c, note in zip(names, coordinate, notes, strict=True)]
        body: Body = (*lets, *copy(Chunk(Var(names[0]), Var(names[1]), step)))
        return (If(binary(Op.LT, *last), body),) if chunks < steps * team.threads else body

    return Steps(f"{name}_step", steps, chunk, looped=steps > 1)


def _global(program: Program, tile: Tile, chunk: Chunk, env: Env) -> Ref:
    """The logical place in global memory of a chunk's first element."""
    index = []
    for span, local in zip(tile.spans, (chunk.row, chunk.col), strict=True):
        outside = tuple(axis for axis in program.axes_of(span.dim) if axis not in span.axes)
        index.append(digit_sum(outside, env) + span.global_offset(local))
    return global_place(program, tile.staged.operand, index[0], index[1], env)


def _deposit(tile: Tile, chunk: Chunk, width: int, value: Buffer, env: Env, *step: Expr) -> Body:
    """A chunk from registers to the tile. step: which row of `value` it is, where there are several."""
    name = tile.staged.name

    def move(spot: Ref, at: Expr, each: int) -> Move:
        return Move(spot, Ref(value, (*step, at)), each, origin=name)

    return _between(tile, chunk, width, env, move)


def _copy_async(program: Program, tile: Tile, chunk: Chunk, width: int, env: Env) -> Body:
    """A chunk from global memory straight to the tile, as wide as both sides allow."""
    source = _global(program, tile, chunk, env)

    def move(spot: Ref, at: Expr, each: int) -> Move:
        index = list(source.index)
        index[tile.global_minor] = index[tile.global_minor] + at
        here = Ref(source.buffer, tuple(index))
        return Move(spot, here, each, env.there, origin=tile.staged.name, asynchronous=True)

    return _between(tile, chunk, width, env, move)


def _between(tile: Tile, chunk: Chunk, width: int, env: Env, move: Callable[[Ref, Expr, int], Move]) -> Body:
    """Accesses to `width` neighbours of the tile, as wide as its rows allow: one where they lie along a row."""
    each = tile.copy_width(width)

    def place(offset: Expr) -> Ref:
        moved = [chunk.row, chunk.col]
        moved[tile.global_minor] = moved[tile.global_minor] + offset
        return tile.at(moved[0], moved[1], env)

    if each == width:
        return (move(place(ZERO), ZERO, width),)
    at = Var(ELEMENT) * each
    return (For(ELEMENT, Const(width // each), (move(place(at), at, each),), unroll=True),)


def _fill_registers(program: Program, tile: Tile, env: Env) -> Body:
    """Each thread loads its own elements; the digits of the tile are the loops."""
    staged, width = tile.staged, tile.staged.vector
    source = source_of(program, staged)
    if source is None:
        rows, cols = program.gemm.operand(staged.operand).dims
        place = global_place(program, staged.operand, index_of(program, rows, env), index_of(program, cols, env), env)
    else:
        parent = tile_of(program, source)
        row, col = (span.local_index(env) for span in parent.spans)
        place = parent.at(row, col, env)
    load = Move(Ref(tile.register_buffer, tile.register_index(env)), place, width, origin=staged.name)
    return over_vectors(tile.register_axes, tile.spans[tile.minor], width, (load,))
