"""From a scheduled program to a kernel: the passes, in order, each with the reason for its place."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.errors import LoweringError
from tilewright.ir.async_stmt import InitBarrier, StartNextGrid, StoreAsync, TmaLoad, WaitPreviousGrid
from tilewright.ir.buffer import Buffer, Space
from tilewright.ir.clusters import cluster_size, cluster_tile
from tilewright.ir.kernel import MAX_SHARED_BYTES, Kernel, Variant, guarded, step_of
from tilewright.ir.program import Level, Program
from tilewright.ir.stmt import Body, Move
from tilewright.ir.tiles import tile_of
from tilewright.ir.verify import PARAMETERS, verify
from tilewright.ir.visit import moved_from, simplify, walk, written
from tilewright.layout.arrangement import Auto
from tilewright.lowering.check_engine import check_engine
from tilewright.lowering.check_instruction import check_instruction
from tilewright.lowering.check_scheduler import check_scheduler
from tilewright.lowering.cluster_sums import check_cluster_sums
from tilewright.lowering.coordinates import block_shape, bounds_of
from tilewright.lowering.epilogue_scales import check_pairs, check_scales
from tilewright.lowering.expand import expand
from tilewright.lowering.flatten_indices import flatten_indices
from tilewright.lowering.groups import TABLE
from tilewright.lowering.guard_edges import guard_edges
from tilewright.lowering.hoist_offsets import hoist_offsets
from tilewright.lowering.narrow_accesses import narrow_accesses, narrowed_copies
from tilewright.lowering.ordered_sums import partial_elements
from tilewright.lowering.place_barriers import place_barriers
from tilewright.lowering.scheduler import Scheduler, assumed_exact
from tilewright.lowering.thread_guards import thread_guards
from tilewright.problem.gemm import Dim


def _behind_others(program: Program) -> Body:
    """Where threads load for themselves, all of a kernel that started early waits for the kernels before: its blocks
    are there when these end."""
    if not program.overlapped or program.uses_tma:
        return ()
    return StartNextGrid(), WaitPreviousGrid()


def lower(
    program: Program,
    variant: Variant,
    *,
    name: str = "gemm",
    heading: Sequence[str] = (),
) -> Kernel:
    """The kernel of a scheduled program under the assumptions of `variant`. Verified after every pass.

    Raises LoweringError where sums have no place to be kept, or tiles need more shared memory than there is.
    """
    _check_sum(program)
    _check_warps_have_lanes(program)
    _check_layouts_are_found(program)
    check_instruction(program)
    check_engine(program)
    check_scales(program)
    check_pairs(program)
    check_scheduler(program, variant)
    check_cluster_sums(program)
    exact = assumed_exact(program, variant)
    scheduled = tuple(loop.name for loop in program.loops)
    added = [*(one.leading for one in program.gemm.added), *(step_of(one.name) for one in program.gemm.matrices)]
    names = (*PARAMETERS, *added, *(scalar.name for scalar in program.gemm.scalars))

    def checked(done: str, body: Body) -> Body:
        verify(body, scheduled=scheduled, names=names, after=done)
        return body

    # As if the schedule had said so: everything is made for the chunks that are legal.
    if not variant.aligned:
        program = narrowed_copies(program, variant)
    # Loops and copies first: every later pass works on statements.
    body = checked("expand", (*_behind_others(program), *expand(program, exact, overwrites=variant.overwrites)))
    # Widths before guards, because a guard covers the whole of its access.
    if not variant.aligned:
        body = checked("narrow_accesses", narrow_accesses(body, program, variant))
    # Guards while an access still has a row and a column.
    body = checked("guard_edges", guard_edges(body, program, exact, variant))
    # Barriers after guards, so that none stands where only some threads come.
    body = checked("place_barriers", place_barriers(body))
    # Offsets last: nothing after this asks which row an access belongs to.
    body = checked("flatten_indices", flatten_indices(body, program, near=variant.near))
    # Behind the pass that joins the terms of a sum.
    body = checked("thread_guards", thread_guards(body, program))
    # Only what is flat can be split into a thread's own part and the loop's.
    body = checked("hoist_offsets", hoist_offsets(body, bounds_of(program)))
    x, y, z = (simplify(extent, bounds_of(program)) for extent in Scheduler(program).grid)
    dims: tuple[Dim, ...] = ("m", "n", "k")
    kernel = Kernel(
        name,
        program.gemm,
        variant,
        (x, y, z),
        block_shape(program),
        shared_buffers(program, body),
        body,
        {dim: program.block_tile(dim) for dim in dims},
        tuple(heading),
        {dim: cluster_tile(program, dim) for dim in dims},
        cluster_size(program),
        program.persistent,
        program.overlapped,
        program.split_k,
        program.problems,
        partial_elements(program) if program.adds_in_order else 0,
        program.arriving,
        program.has_equal_items,
        max((loop.blocks for loop in program.loops), default=0),
        program.whole_waves,
    )
    if kernel.shared_bytes > MAX_SHARED_BYTES:
        sizes = ", ".join(f"{b.name} {b.size_bytes}" for b in kernel.shared)
        raise LoweringError(
            f"The shared tiles take {kernel.shared_bytes} bytes, and no device gives a block more than "
            f"{MAX_SHARED_BYTES}: {sizes}.",
            hint="use smaller tiles of m, n or k.",
        )
    return kernel if variant.guard is None else guarded(kernel, variant.guard)


def _check_warps_have_lanes(program: Program) -> None:
    """Only a finished program can be asked: a schedule may bind the two in either order."""
    warps = program.at_level(Level.WARP)
    if warps is not None and program.at_level(Level.LANE) is None and program.tensorized is None:
        raise LoweringError(
            f"Loop {warps.name!r} is bound to warps, and no loop is bound to their lanes.",
            note="the 32 threads of a warp would all compute, and store, the same results.",
            hint="Bind(..., Level.LANE) a loop of 32 iterations, or bind this one to block.x.",
        )
    groups = program.at_level(Level.WARPGROUP)
    if groups is not None and program.tensorized is None:
        raise LoweringError(
            f"Loop {groups.name!r} is bound to warpgroups, and no instruction is run by one.",
            note="the 128 threads of a warpgroup would all compute, and store, the same results.",
            hint='Tensorize(..., using="wgmma.m64n128k16"), or bind it to warps, or to block.y.',
        )


def _check_layouts_are_found(program: Program) -> None:
    for staged in program.staged:
        if isinstance(staged.arrangement, Auto):
            raise LoweringError(
                f"The layout of {staged.name!r} is still to be found.",
                note="Auto() stands for a layout that is searched when a schedule is built for a problem.",
                hint="build(gemm, schedule) finds it; resolve_layouts(gemm, schedule) gives the schedule that has it.",
            )


def _check_sum(program: Program) -> None:
    """A sum that is kept in C is as exact as C; one that begins with beta * C is not to be scaled."""
    gemm = program.gemm
    if gemm.epilogue.scale and not program.late_beta:
        raise LoweringError(
            f"Finished sums are to be scaled along {' and '.join(gemm.epilogue.scale)}, and they begin with beta * "
            f"{gemm.epilogue.addend}.",
            note="the addend is not scaled.",
            hint="Epilogue() adds it afterwards.",
        )
    staged = program.staged_result
    if gemm.accumulators > 1 and (not program.late_beta or (staged is not None and not staged.finished)):
        raise LoweringError(
            f"C is made of {gemm.accumulators} sums, and a tile of it in shared memory, or beta * C, is one.",
            hint="Epilogue(), and results from registers, or in epilogue subtiles.",
        )
    if program.accumulation is None and gemm.out is not gemm.accumulate:
        over = next(loop.name for loop in program.loops if loop.is_reduction)
        raise LoweringError(
            f"The sum is kept in C, which holds {gemm.out}, and sums of this problem are kept in {gemm.accumulate}.",
            note="C would be rounded after every product.",
            hint=f"Accumulate(over={over!r}) keeps the sum in registers.",
        )


def shared_buffers(program: Program, body: Body) -> tuple[Buffer, ...]:
    """The shared buffers that a kernel uses, in the order in which they were staged."""
    used = {
        place.buffer.name
        for _, stmt in walk(body)
        for place in (*written(stmt), *moved_from(stmt))
        if place.buffer.space is Space.SHARED
    }
    tiles = [tile_of(program, staged) for staged in program.staged if staged.space is Space.SHARED]
    named = [buffer for buffer in dict.fromkeys(tile.shared_buffer for tile in tiles) if buffer.name in used]
    copied = (stmt.dst.buffer for _, stmt in walk(body) if isinstance(stmt, (Move, TmaLoad)))
    staged = {buffer.name for buffer in named}
    vectors = (one for one in copied if one.space is Space.SHARED and one.name not in {*staged, TABLE.name})
    barriers = (stmt.place.buffer for _, stmt in walk(body) if isinstance(stmt, InitBarrier))
    exchanged = (stmt.dst.buffer for _, stmt in walk(body) if isinstance(stmt, StoreAsync))
    groups = (TABLE,) if TABLE.name in used else ()
    return tuple(dict.fromkeys((*named, *vectors, *exchanged, *barriers, *groups)))
