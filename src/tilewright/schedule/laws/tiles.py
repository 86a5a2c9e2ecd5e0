"""Laws of staged tiles: their size, who fills them, and how their elements lie."""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.ir.buffer import Space
from tilewright.ir.program import Pattern, Program, Staged
from tilewright.ir.tiles import source_of, tile_of
from tilewright.layout.arrangement import SwizzleAtoms
from tilewright.schedule.laws.sums import MAX_REGISTER_TILE
from tilewright.schedule.laws.violation import Violation


def tiles_are_fixed(program: Program) -> Iterator[Violation]:
    """A staged tile has a fixed number of elements."""
    for staged in program.staged:
        row_axes, col_axes = program.tile_axes(staged)
        for axis in (*row_axes, *col_axes):
            if axis.extent is None:
                yield Violation(
                    f"{staged.name!r} would span every {axis.dim} of the problem: loop {axis.name!r} runs inside "
                    f"{staged.under!r}.",
                    note="a tile in shared memory or registers has a fixed size.",
                    hint=f"Split({axis.name!r}, 8, into=(...)) and stage under the outer loop.",
                )
        if staged.space is Space.REGISTER and staged.operand != "C":
            elements = tile_of(program, staged).register_buffer.elements if not _unbounded(program, staged) else 0
            if elements > MAX_REGISTER_TILE:
                yield Violation(f"{staged.name!r} would hold {elements} elements a thread.", hint="stage further in.")


def _unbounded(program: Program, staged: Staged) -> bool:
    return any(axis.extent is None for axes in program.tile_axes(staged) for axis in axes)


def registers_fill_from_shared(program: Program) -> Iterator[Violation]:
    """A register tile stands inside the loop under which its shared tile is filled."""
    for staged in program.staged:
        source = source_of(program, staged)
        if source is None or staged.space is not Space.REGISTER:
            continue
        if program.depth(staged.under) < program.depth(source.under):
            yield Violation(
                f"{staged.name!r} under {staged.under!r} would be filled before {source.name!r} under "
                f"{source.under!r} is.",
                hint=f"stage {staged.operand} in registers under {source.under!r} or a loop inside it.",
            )


def tiles_are_filled_together(program: Program) -> Iterator[Violation]:
    """No shared tile is filled under a loop that only some threads run."""
    for staged in program.staged:
        if staged.space is not Space.SHARED or staged.operand == "C":
            continue
        loop = program.loop(staged.under)
        if loop.level is not None and not loop.level.is_grid and not loop.level.is_thread:
            yield Violation(
                f"{staged.name!r} would be filled under {staged.under!r}, which is unrolled inside each thread.",
                hint="stage under a serial loop, such as the outer loop over k.",
            )


def arrangements_fit(program: Program) -> Iterator[Violation]:
    """A permutation of columns fits the tile it permutes."""
    for staged in program.staged:
        if staged.arrangement is None:
            continue
        tile = tile_of(program, staged)
        problem = staged.arrangement.problem(tile.rows, tile.row_length)
        if problem is not None:
            yield Violation(f"{staged.name!r} is {tile.rows} x {tile.row_length}: {problem}.")
        if isinstance(staged.arrangement, SwizzleAtoms):
            yield from _slabs(program, staged, staged.arrangement)


def _slabs(program: Program, staged: Staged, swizzle_atoms: SwizzleAtoms) -> Iterator[Violation]:
    """A row of a atom is as long as its columns, and no longer."""
    element = program.gemm.operand(staged.operand).dtype
    if swizzle_atoms.columns * element.bytes != swizzle_atoms.row_bytes:
        yield Violation(
            f"{swizzle_atoms.columns} columns of {element} are {swizzle_atoms.columns * element.bytes} bytes, and a "
            f"row of a swizzle atom has {swizzle_atoms.row_bytes}.",
            hint=f"SwizzleAtoms({swizzle_atoms.row_bytes // element.bytes}"
            + (")." if swizzle_atoms.row_bytes == 128 else f", row_bytes={swizzle_atoms.row_bytes})."),
        )
    if staged.pad:
        yield Violation(
            f"{staged.name!r} lies in swizzle atoms, whose rows follow each other, and is padded by {staged.pad}.",
            note="TMA and wgmma know no padding; the permutation keeps rows in different banks.",
            hint="leave the pad out.",
        )


def patches_cover_tiles(program: Program) -> Iterator[Violation]:
    """Threads that lie along a row and below it cover the tile in whole patches."""
    for staged in program.staged:
        distribution = staged.distribution
        if distribution is None or not distribution.row_threads:
            continue
        tile, columns = tile_of(program, staged), distribution.row_threads
        chunks = tile.spans[tile.global_minor].extent // distribution.vector
        rows, threads = tile.spans[1 - tile.global_minor].extent, program.threads_per_block
        whole = [each for each in range(1, min(chunks, threads) + 1) if not (threads % each or chunks % each)]
        if distribution.pattern is not Pattern.CYCLIC:
            yield Violation(
                f"a thread would copy a run of chunks of {staged.name!r}, and share a row with {columns - 1} others.",
                hint="leave out row_threads, or the pattern.",
            )
        elif columns not in whole:
            yield Violation(
                f"{columns} of {threads} threads along a row leave a part of {staged.name!r}, {rows} rows of {chunks} "
                "chunks.",
                note="each iteration of the copy takes one chunk a thread.",
                hint=f"use {', '.join(map(str, whole))}." if whole else "leave row_threads out.",
            )
