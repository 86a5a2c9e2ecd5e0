"""The statements that fill a staged tile, and those that empty the tile of the result."""

from __future__ import annotations

from collections.abc import Callable

from tilewright.ir.buffer import Ref, Space
from tilewright.ir.expr import ZERO, Const, Expr, Load, Op, Var, binary
from tilewright.ir.program import Distribution, Pattern, Program, Staged
from tilewright.ir.stmt import Alloc, Body, For, If, Let, Move, Stmt
from tilewright.ir.tiles import Tile, source_of, tile_of
from tilewright.lowering.coordinates import digit_sum, index_of, thread_number
from tilewright.lowering.kernel_parts import ELEMENT, every, global_place, value_buffer
from tilewright.units import ceil_div

Combine = Callable[[Ref, int, Callable[[Expr], Expr]], Body]


def copy_tile(program: Program, staged: Staged) -> Body:
    """Statements that fill a tile of A or B, under the loop where it is staged."""
    tile = tile_of(program, staged)
    if staged.space is Space.REGISTER:
        return _fill_registers(program, tile)
    if staged.distribution is None:
        return _each_thread(tile, lambda row, col: _copy_chunk(program, tile, row, col, 1))
    distribution = staged.distribution
    return _shared_out(
        program, tile, distribution, lambda row, col: _copy_chunk(program, tile, row, col, distribution.vector)
    )


def store_tile(program: Program, tile: Tile, combine: Combine) -> Body:
    """Statements that store the shared tile of the result, shared out over the threads."""
    distribution = tile.staged.distribution
    assert distribution is not None
    width = distribution.vector

    def store(row: Expr, col: Expr) -> Body:
        value = value_buffer(tile.staged.name, tile.dtype, width)
        loads = _between(
            tile, row, col, width, lambda place, at, w: Move(Ref(value, (at,)), place, w, None, _name(tile))
        )
        place = global_place(program, "C", *_global_index(program, tile, row, col))
        return (Alloc(value), *loads, *combine(place, width, lambda element: Load(value, (element,))))

    return _shared_out(program, tile, distribution, store)


def _name(tile: Tile) -> str:
    return tile.staged.name


def _each_thread(tile: Tile, copy: Callable[[Expr, Expr], Body]) -> Body:
    """Every thread of the block copies every element."""
    names = [f"{tile.staged.name}_{span.dim}" for span in tile.spans]
    body = copy(Var(names[0]), Var(names[1]))
    for at in (tile.global_minor, 1 - tile.global_minor):
        body = (For(names[at], Const(tile.spans[at].extent), body),)
    return body


def _shared_out(program: Program, tile: Tile, distribution: Distribution, copy: Callable[[Expr, Expr], Body]) -> Body:
    """The tile's chunks handed out to the threads; a chunk is `vector` elements along the contiguous dimension."""
    threads, name = program.threads_per_block, tile.staged.name
    per_row = tile.spans[tile.global_minor].extent // distribution.vector
    chunks = tile.elements // distribution.vector
    steps = ceil_div(chunks, threads)
    step: Expr = Var(f"{name}_step") if steps > 1 else ZERO
    thread = thread_number(program)
    cyclic = distribution.pattern is Pattern.CYCLIC
    chunk = step * threads + thread if cyclic else thread * steps + step
    coordinate: list[Expr] = [ZERO, ZERO]
    coordinate[tile.global_minor] = chunk % per_row * distribution.vector
    coordinate[1 - tile.global_minor] = chunk // per_row
    names = [f"{name}_{span.dim}" for span in tile.spans]
    notes = [f"0 .. {span.extent - 1}" for span in tile.spans]
    lets: list[Stmt] = [Let(n, c, note) for n, c, note in zip(names, coordinate, notes, strict=True)]
    body: Body = (*lets, *copy(Var(names[0]), Var(names[1])))
    if chunks % threads:
        body = (If(binary(Op.LT, chunk, chunks), body),)
    return (For(f"{name}_step", Const(steps), body, unroll=True),) if steps > 1 else body


def _global_index(program: Program, tile: Tile, row: Expr, col: Expr) -> tuple[Expr, Expr]:
    """The logical index of the element at (row, col) of the tile."""
    index = []
    for span, local in zip(tile.spans, (row, col), strict=True):
        outside = tuple(axis for axis in program.axes_of(span.dim) if axis not in span.axes)
        index.append(digit_sum(outside) + span.global_offset(local))
    return index[0], index[1]


def _copy_chunk(program: Program, tile: Tile, row: Expr, col: Expr, width: int) -> Body:
    """Global memory to registers to the tile, `width` elements."""
    value = value_buffer(tile.staged.name, tile.dtype, width)
    place = global_place(program, tile.staged.operand, *_global_index(program, tile, row, col))
    load = Move(Ref(value, (ZERO,)), place, width, origin=_name(tile))
    stores = _between(tile, row, col, width, lambda spot, at, w: Move(spot, Ref(value, (at,)), w, None, _name(tile)))
    return (Alloc(value), load, *stores)


def _between(tile: Tile, row: Expr, col: Expr, width: int, move: Callable[[Ref, Expr, int], Move]) -> Body:
    """Accesses to `width` neighbours of the tile, as wide as its rows allow: one where they lie along a row."""
    along_row = tile.minor == tile.global_minor
    each = min(width, tile.widest_row_access) if along_row else 1

    def place(offset: Expr) -> Ref:
        moved = [row, col]
        moved[tile.global_minor] = moved[tile.global_minor] + offset
        return Ref(tile.shared_buffer, tile.place(moved[0], moved[1]))

    if each == width:
        return (move(place(ZERO), ZERO, width),)
    at = Var(ELEMENT) * each
    return (For(ELEMENT, Const(width // each), (move(place(at), at, each),), unroll=True),)


def _fill_registers(program: Program, tile: Tile) -> Body:
    """Each thread loads its own elements; the digits of the tile are the loops."""
    staged, width = tile.staged, tile.staged.vector
    source = source_of(program, staged)
    if source is None:
        rows, cols = program.gemm.operand(staged.operand).dims
        place = global_place(program, staged.operand, index_of(program, rows), index_of(program, cols))
    else:
        parent = tile_of(program, source)
        row, col = (span.local_index() for span in parent.spans)
        place = Ref(parent.shared_buffer, parent.place(row, col))
    axes = tile.register_axes
    index = tuple(Var(axis.name) for axis in axes) or (ZERO,)
    body: Body = (Move(Ref(tile.register_buffer, index), place, width, origin=staged.name),)
    for axis in reversed(axes):
        extent = axis.extent or 1
        if axis is axes[-1] and width > 1:
            body = every(axis.name, extent, width, body)
        else:
            body = (For(axis.name, Const(extent), body, unroll=True),)
    return (Alloc(tile.register_buffer), *body)
