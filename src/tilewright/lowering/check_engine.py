"""What a program needs before TMA loads its tiles, and warpgroups store its result. Asked of finished programs only.

A schedule may declare its steps in any order, so what they must add up to is asked here, not of each step.
"""

from __future__ import annotations

from tilewright.errors import LoweringError
from tilewright.ir.buffer import Space
from tilewright.ir.program import Pipelined, Program, Route, Staged
from tilewright.ir.tiles import Tile, tile_of
from tilewright.ir.work import Problems, SplitK
from tilewright.layout.arrangement import SwizzleAtoms
from tilewright.layout.epilogue import CHUNK_COLUMNS, UNIT_COLUMNS
from tilewright.layout.fragment import MATRIX_ROW_BYTES
from tilewright.lowering.epilogue_subtiles import FRAGMENT_ROWS
from tilewright.lowering.products import reads_shared

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


BOX_BYTES = 16
"""What addresses and leading dimensions of boxes are multiples of. Source: CUDA driver API, cuTensorMapEncodeTiled."""


def check_engine(program: Program) -> None:
    """Raise LoweringError where TMA would load, or store, something else than is needed."""
    brought = [s for s in program.staged if s.route is Route.TMA and s.operand != "C"]
    result = program.staged_result
    for staged in brought:
        _check_ring(program, staged)
    if result is not None:
        check_epilogue(program, result)
    if program.specialized is not None and program.specialized.ping_pong > 1 and not program.persistent:
        raise LoweringError(
            f"{program.specialized.ping_pong} warpgroups run in ping-pong, and a block has only one tile.",
            hint="put Persist() after Specialize(...): a persistent block computes several tiles.",
        )
    for staged in (*brought, *([result] if result is not None and result.route is Route.TMA else [])):
        _check_rows(program, staged)


def _check_ring(program: Program, staged: Staged) -> None:
    """The ring of stages is the whole loop nest of a thread, and all its tiles come the same way."""
    if not reads_shared(program):
        raise LoweringError(
            f"{staged.name!r} comes by TMA, and nothing multiplies it straight from shared memory.",
            note="who waits for a box is worked out for wgmma only.",
            hint='Tensorize(..., using="wgmma.m64n128k16"), or copy it by Route.ASYNC.',
        )
    ring = program.pipelined
    if ring is None or ring.loop != staged.under:
        raise LoweringError(
            f"{staged.name!r} comes by TMA under {staged.under!r}, which is not pipelined.",
            note="a TMA box lands some time after it is issued, in a stage with an mbarrier of its own.",
            hint=f"Pipeline({staged.under!r}, 4).",
        )
    others = [s for s in program.staged if s.under == ring.loop and s.space is Space.SHARED]
    for other in others:
        if other.route is not Route.TMA:
            raise LoweringError(
                f"{staged.name!r} comes by TMA and {other.name!r} by {other.route.value}, under the same loop.",
                note="one mbarrier says that a stage is full.",
                hint=f"Transfer({other.name!r}, Route.TMA) as well.",
            )
    _check_nest(program, ring)


def _check_nest(program: Program, ring: Pipelined) -> None:
    outermost = program.thread_serial_loops[0]
    if outermost.name != ring.loop:
        raise LoweringError(
            f"Loop {outermost.name!r} runs around {ring.loop!r}, whose tiles come by TMA.",
            note="slots are numbered by the iterations of one loop.",
            hint=f"Reorder {outermost.name!r} inward, or Bind it.",
        )
    if program.accumulation is not None and program.accumulation.over != ring.loop:
        raise LoweringError(
            f"The sum is kept over {program.accumulation.over!r}, and tiles come by TMA under {ring.loop!r}.",
            hint=f"Accumulate(over={ring.loop!r}).",
        )


def _check_rows(program: Program, staged: Staged) -> None:
    """TMA takes only rows that begin at multiples of 16 bytes."""
    operand = program.gemm.operand(staged.operand)
    leading = program.gemm.leading(staged.operand)
    row_bytes = leading * operand.dtype.bytes
    if row_bytes % BOX_BYTES:
        each = BOX_BYTES // operand.dtype.bytes
        raise LoweringError(
            f"{staged.operand} cannot go by TMA: its {operand.order.value}s are {row_bytes} bytes apart "
            f"({operand.leading} = {leading} of {operand.dtype}).",
            note=f"TMA takes strides that are multiples of {BOX_BYTES} bytes.",
            hint=f"pad {operand.leading} to a multiple of {each}, {-(-leading // each) * each} here.",
        )
