"""Laws of wide accesses: what one of them moves must be neighbours, and aligned."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from tilewright.dtypes import DType
from tilewright.ir.program import Program, Route
from tilewright.ir.tiles import (
    VECTOR_BYTES,
    Span,
    Tile,
    fragment_of,
    quad_shuffle_axis,
    result_span,
    source_of,
    tile_of,
)
from tilewright.layout.fragment import MATRIX_ROW_BYTES, QUAD_LANES, TRANSPOSED_BYTES
from tilewright.schedule.laws.violation import Violation

PAIR_OF_BYTES = (2, 1)
"""Elements and their bytes of the one access that is narrower than a word: what a lane holds of a row of C in FP8."""


def vectors_are_whole(program: Program) -> Iterator[Violation]:
    """Every vector access covers neighbouring elements that lie within one aligned run."""
    if program.result_vector > 1:
        yield from _result_vector(program)
    for staged in program.staged:
        tile = tile_of(program, staged)
        if staged.distribution is not None and staged.distribution.vector > 1:
            yield from _copy_vector(tile, staged.distribution.vector, program.gemm.operand(staged.operand).dtype)
        if tile.fragment is not None and staged.operand != "C":
            yield from _fragment_vector(program, tile)
        elif staged.vector > 1 and staged.finished:
            yield from _row_vector(program, tile)
        elif staged.vector > 1:
            yield from _register_vector(program, tile)


def _legal_width(width: int, element_bytes: int, what: str) -> Iterator[Violation]:
    if width * element_bytes not in VECTOR_BYTES and (width, element_bytes) != PAIR_OF_BYTES:
        widths = ", ".join(str(size // element_bytes) for size in VECTOR_BYTES if size // element_bytes > 1)
        yield Violation(
            f"{what} would access {width} x {element_bytes} bytes at once.",
            note="one access is 4, 8 or 16 bytes.",
            hint=f"use a width of {widths}.",
        )


def _copy_vector(tile: Tile, width: int, moved: DType) -> Iterator[Violation]:
    yield from _legal_width(width, moved.bytes, tile.staged.name)
    span = tile.spans[tile.global_minor]
    if span.unit_run % width:
        yield Violation(
            f"{tile.staged.name!r} has {span.unit_run} neighbouring elements along {span.dim}, "
            f"not a multiple of {width}.",
            note=f"{tile.staged.operand} is contiguous along {span.dim}.",
            hint=f"make the tile's extent along {span.dim} a multiple of {width}, or use a smaller vector.",
        )


def _row_vector(program: Program, tile: Tile) -> Iterator[Violation]:
    """What a lane stores of a row of an epilogue subtile."""
    staged, width = tile.staged, tile.staged.vector
    yield from _legal_width(width, tile.dtype.bytes, staged.name)
    each, columns = program.subtile_columns(staged), program.result_columns(staged)
    if each % width or columns % width:
        yield Violation(
            f"rows of {staged.name!r} are {each} of {columns} columns, not multiples of {width}.",
            hint="use a narrower vector, or another subtile.",
        )


def _register_vector(program: Program, tile: Tile) -> Iterator[Violation]:
    staged, width = tile.staged, tile.staged.vector
    yield from _legal_width(width, tile.dtype.bytes, staged.name)
    source = source_of(program, staged)
    span = tile.spans[tile.minor]
    where = staged.operand if source is None else source.name
    if source is None:
        row, widest = None, 16 // tile.dtype.bytes
    else:
        parent = tile_of(program, source)
        row, widest = parent.spans[parent.minor], parent.widest_row_access
    count, step = _neighbours(span, row)
    if count % width or not _is_whole(span, width):
        found = (
            f"it takes none of them along {span.dim}"
            if not span.axes
            else f"it takes {count if step == 1 else span.axes[-1].extent}, {step} apart, along {span.dim}"
        )
        hint = f"Relayout({where!r}, rows={span.dim!r}) transposes it." if source is not None and not span.axes else ""
        yield Violation(
            f"{where} holds neighbours along {span.dim}, and of those {staged.name!r} does not take a multiple of "
            f"{width} in a row: {found}.",
            hint=hint or f"split so that the innermost loop over {span.dim} has a multiple of {width} iterations.",
        )
    elif widest % width:
        yield Violation(
            f"rows of {where!r} are aligned for accesses of {widest} element(s), not {width}.",
            hint=f"use a pad and an arrangement that keep runs of {width} elements together and aligned.",
        )


def _fragment_vector(program: Program, tile: Tile) -> Iterator[Violation]:
    """How much of a fragment one instruction loads: neighbours that a lane holds, or matrices."""
    staged, fragment = tile.staged, tile.fragment
    assert fragment is not None
    if staged.route is Route.MATRICES:
        yield from _matrices(program, tile)
        return
    if fragment.opaque and staged.vector > 1:
        yield Violation(f"{staged.name!r} is loaded as a whole.", hint="leave Vectorize out.")
        return
    held = fragment.neighbours(tile.minor)
    if staged.vector > 1 and held % staged.vector:
        yield Violation(
            f"a lane holds {held} neighbour(s) of {staged.name!r} along {tile.spans[tile.minor].dim}, "
            f"not a multiple of {staged.vector}.",
            hint=f"Transfer({staged.name!r}, Route.MATRICES) loads whole fragments."
            if not fragment.opaque
            else "leave Vectorize out.",
        )
        return
    source = source_of(program, staged)
    if source is None:
        return
    widest = tile_of(program, source).widest_row_access
    if widest % max(staged.vector, 1):
        yield Violation(
            f"rows of {source.name!r} are aligned for accesses of {widest} element(s), not {staged.vector}.",
            hint=f"use a pad and an arrangement that keep runs of {staged.vector} elements together and aligned.",
        )


def _matrices(program: Program, tile: Tile) -> Iterator[Violation]:
    """ldmatrix reads rows of 16 bytes from shared memory, and transposes only elements of 2 bytes."""
    staged, fragment = tile.staged, tile.fragment
    source = source_of(program, staged)
    assert fragment is not None
    if source is None or fragment.opaque:
        yield Violation(
            f"{staged.name!r} is not a fragment of known layout that is loaded from shared memory.",
            hint=f"Stage({staged.operand!r}, Space.SHARED, ...) first; fragments of wmma have loads of their own.",
        )
        return
    parent = tile_of(program, source)
    if parent.widest_row_access * parent.dtype.bytes < MATRIX_ROW_BYTES:
        yield Violation(
            f"{source.name!r} does not keep 16 bytes of a row together and aligned.",
            hint="use a pad and an arrangement that keep runs of 16 bytes.",
        )
    if parent.spans[parent.minor].dim != "k" and tile.dtype.bytes != TRANSPOSED_BYTES:
        yield Violation(
            f"rows of {source.name!r} run along {parent.spans[parent.minor].dim}, and ldmatrix transposes only "
            f"elements of 2 bytes, not {tile.dtype.bytes}.",
            hint=f"leave Transfer({staged.name!r}, ...) out: lanes load their elements one by one.",
        )
    each = fragment.registers * tile.dtype.bytes // 4
    count = max(staged.vector, 1)
    last = tile.register_axes[-1] if tile.register_axes else None
    beside = 1 if last is None else last.extent or 1
    if count > 1 and (count > MOST_MATRICES or count % each or beside % (count // each)):
        yield Violation(
            f"{count} matrices at once are not whole fragments of {staged.name!r}: each has {each}, {beside} in a row.",
            hint=f"use {each} matrices, or {MOST_MATRICES} where fragments stand side by side in pairs."
            if each < MOST_MATRICES
            else f"use {each} matrices.",
        )


MOST_MATRICES = 4
"""Matrices that one ldmatrix loads. Source: PTX ISA 9.0, ldmatrix."""


def _result_vector(program: Program) -> Iterator[Violation]:
    width = program.result_vector
    yield from _legal_width(width, program.gemm.out.bytes, "the store of C")
    fragment = fragment_of(program, "C")
    if fragment is not None:
        operand = program.gemm.operand("C")
        along = [axis.dim for axis in program.instruction_axes].index(operand.contiguous)
        held = fragment.neighbours(along, fragment.apart(along))
        if fragment.opaque:
            yield Violation(
                "which lane holds which result is not known.",
                hint="stage C in shared memory and Distribute it in wide vectors.",
            )
        elif held % width and quad_shuffle_axis(program) is None:
            yield Violation(
                f"a lane holds {held} neighbouring result(s) along {operand.contiguous}, not a multiple of {width}, "
                f"and no four lanes hold {width} in {QUAD_LANES} fragments side by side for a quad shuffle transpose.",
                hint="stage C in shared memory and Distribute it in wide vectors.",
            )
        elif held % width and any(staged.operand == "C" for staged in program.staged):
            yield Violation(
                f"a lane holds {held} neighbouring result(s), and stages them as they are: lanes exchange words only "
                "where each stores its own.",
                hint="leave Stage('C', ...) out, or use a width of that number.",
            )
        return
    span = result_span(program)
    count, _ = _neighbours(span, None)
    if program.accumulation is None or count % width or not _is_whole(span, width):
        yield Violation(
            f"a thread has {count} neighbouring result(s) along {span.dim}, not a multiple of {width}.",
            note=f"C is contiguous along {span.dim}.",
            hint=f"Split {span.dim} so that each thread keeps {width} neighbours, and Accumulate before this step.",
        )


def _neighbours(span: Span, row: Span | None) -> tuple[int, int]:
    """How many neighbours a thread's digits run through without a gap, and the step of the finest of them.

    Neighbours in global memory, or within `row` of the tile that they are loaded from.
    """
    step = [axis.stride if row is None else row.local_stride(axis) for axis in reversed(span.axes)]
    count = 1
    for axis, apart in zip(reversed(span.axes), step, strict=True):
        if apart != count:
            break
        count *= axis.extent or 1
    return count, step[0] if step else 0


def _is_whole(span: Span, width: int) -> bool:
    """Whether vectors of that width run through whole digits, and through equal parts of the last of them."""
    covered = span.covered(width)
    return prod(values for _, values in covered) == width and all(
        (axis.extent or 1) % values == 0 for axis, values in covered
    )
