"""What a program needs before its warpgroups store the result in epilogue subtiles. Asked of finished programs only."""

from __future__ import annotations

from tilewright.errors import LoweringError
from tilewright.ir.program import Program, Route, Staged
from tilewright.ir.tiles import Tile, tile_of
from tilewright.ir.work import Problems, SplitK
from tilewright.layout.arrangement import SwizzleAtoms
from tilewright.layout.epilogue import UNIT_COLUMNS
from tilewright.layout.fragment import MATRIX_ROW_BYTES
from tilewright.lowering.epilogue_scales import CHUNK_COLUMNS
from tilewright.lowering.epilogue_subtiles import FRAGMENT_ROWS

MAX_BOX = 256
"""Elements of a TMA box along one dimension. Source: CUDA driver API, cuTensorMapEncodeTiled."""


def check_epilogue(program: Program, result: Staged) -> None:
    """Raise LoweringError where a staged result cannot leave as the program says."""
    if not result.finished:
        if result.subtile:
            raise LoweringError(
                f"{result.name!r} has epilogue subtiles of {result.subtile} columns, and the block stores it together.",
                note="warpgroups store subtiles, each its own, by TMA or by their warps.",
                hint=f"Transfer({result.name!r}, Route.TMA), or Route.MATRICES, or leave subtile out.",
            )
        return
    doing = f"{result.name!r} cannot go out by {'TMA' if result.route is Route.TMA else 'the warps of a warpgroup'}"
    if not any(s.route is Route.TMA and s.operand != "C" for s in program.staged):
        raise LoweringError(
            f"{doing}: no tile is loaded by TMA.",
            note="a block must not end before its result has been read; kernels with TMA loads see to that.",
            hint="Transfer('A_tile', Route.TMA) and Transfer('B_tile', Route.TMA), or store C directly.",
        )
    if program.split_k is SplitK.PARTIALS or program.problems is Problems.LISTED:
        raise LoweringError(
            f"{doing}: blocks along z have matrices of their own.",
            note="where rows of C begin is known of strided matrices only.",
            hint='store C from registers: leave Stage("C", ...) out.',
        )
    tile = tile_of(program, result)
    transposed = program.instruction_axes[0].dim == program.gemm.operand("C").contiguous
    _check_subtiles(program, tile, doing, transposed=transposed)
    _check_own_rows(program, doing)


def _check_subtiles(program: Program, tile: Tile, doing: str, *, transposed: bool) -> None:
    """Subtiles are made of whole fragments, or of whole matrices of their columns."""
    columns, each = program.result_columns(tile.staged), program.subtile_columns(tile.staged)
    dim = program.gemm.operand("C").contiguous
    unit = FRAGMENT_ROWS if transposed else UNIT_COLUMNS
    if each % unit or (transposed and columns % each):
        raise LoweringError(
            f"{doing} in subtiles of {each} of its {columns} columns.",
            note=f"along {dim} a warpgroup has {'fragments' if transposed else 'matrices'} of {unit} columns, "
            "and a subtile is made of whole ones.",
            hint=f"use a subtile that is a multiple of {unit}{f' and divides {columns}' if transposed else ''}.",
        )
    several = [axis for axis in program.sum_axes if axis.dim == dim]
    wide = next(axis.extent or 1 for axis in program.instruction_axes if axis.dim == dim)
    if several and not transposed and any(size % CHUNK_COLUMNS for size in (each, wide)):
        raise LoweringError(
            f"{doing} in subtiles of {each} columns: {several[0].name!r} counts fragments of {wide} columns.",
            note=f"of several fragments a row, {CHUNK_COLUMNS} columns are stored at a time.",
            hint=f"use a subtile and an instruction whose columns are multiples of {CHUNK_COLUMNS}.",
        )
    _check_layout(tile, each, doing, transposed=transposed)


def _check_layout(tile: Tile, columns: int, doing: str, *, transposed: bool) -> None:
    """Subtiles are dense boxes, in plain rows or in swizzle atoms."""
    arrangement, staged = tile.staged.arrangement, tile.staged
    if staged.pad or not (arrangement is None or isinstance(arrangement, SwizzleAtoms)):
        raise LoweringError(
            f"{doing}: it is {'padded' if staged.pad else 'arranged in another way than TMA knows'}.",
            hint=f"Relayout({staged.name!r}, arrangement=SwizzleAtoms(...)), or leave Relayout out.",
        )
    if arrangement is None and (transposed or columns * tile.dtype.bytes % MATRIX_ROW_BYTES or columns > MAX_BOX):
        raise LoweringError(
            f"{doing} in plain rows of {columns} {tile.dtype}.",
            note=f"plain rows are TMA boxes of at most {MAX_BOX} elements, a multiple of {MATRIX_ROW_BYTES} bytes; "
            "where C lies along the rows of the instruction, warpgroups have swizzle atoms of their own.",
            hint=f"Relayout({staged.name!r}, arrangement=SwizzleAtoms({128 // tile.dtype.bytes})).",
        )
    if isinstance(arrangement, SwizzleAtoms) and columns % arrangement.columns:
        raise LoweringError(
            f"{doing} in subtiles of {columns} columns, and a swizzle atom has {arrangement.columns}.",
            hint="use narrower swizzle atoms, or another subtile.",
        )


def _check_own_rows(program: Program, doing: str) -> None:
    """What a warpgroup has of C is in one piece, so that it can be one box."""
    own = [axis for loop in program.thread_loops for axis in loop.axes]
    rows, columns, _ = program.instruction_axes
    if any(axis.dim == columns.dim for axis in own):
        loop = next(loop.name for loop in program.thread_loops if columns.dim in loop.dims)
        raise LoweringError(
            f"{doing}: {loop!r} shares out the columns of the instruction among warpgroups.",
            note="each warpgroup stores what rows of the instruction it has.",
            hint=f"bind a loop over {rows.dim} to warpgroups.",
        )
    for axis in own:
        for other in (axis for axis in program.sum_axes if axis.dim == rows.dim):
            if other.stride > axis.stride:
                raise LoweringError(
                    f"{doing}: warpgroups take rows in turn, {axis.stride} apart, and {other.name!r} goes over them.",
                    note="each warpgroup stores its rows as one box.",
                    hint=f"split {rows.dim} so that {axis.name!r} is outside {other.name!r}.",
                )
