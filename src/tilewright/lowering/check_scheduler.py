"""Which choices of how work is shared out go together. Asked of finished programs only."""

from __future__ import annotations

from tilewright.dtypes import F32
from tilewright.errors import LoweringError
from tilewright.ir.accumulators import accumulator_of
from tilewright.ir.buffer import Space
from tilewright.ir.clusters import cluster_size
from tilewright.ir.kernel import Variant
from tilewright.ir.program import Level, Program, Route
from tilewright.ir.work import Problems, SplitK, Walk
from tilewright.lowering.arrivals import check_arrivals
from tilewright.lowering.rank_sums import check_rank_sums
from tilewright.lowering.scheduler import ragged_dim
from tilewright.problem.gemm import Order


def check_scheduler(program: Program, variant: Variant) -> None:
    """Raise LoweringError for a combination of choices that cannot be."""
    if program.split_k is SplitK.PARTIALS:
        _check_partials(program)
    if program.split_k is SplitK.ORDERED:
        _check_ordered(program)
    if program.stream_k:
        _check_stream_k(program)
    if program.split_k is SplitK.RANKS:
        check_rank_sums(program)
    if program.arriving:
        check_arrivals(program)
    if program.raster is not None and program.raster.alternating_k:
        _check_alternating(program)
    if program.problems is not Problems.ONE and program.at_level(Level.GRID_Z) is not None:
        raise LoweringError(
            "Blocks along z cannot have a problem each: they share out one problem already.",
            hint="bind no loop to grid.z.",
        )
    if program.problems is Problems.LISTED:
        _check_listed(program)
    if program.problems.has_groups:
        _check_grouped(program)
        _check_ragged_orders(program, variant)


def _check_alternating(program: Program) -> None:
    if program.walk is Walk.ONE_TILE or program.specialized is None:
        raise LoweringError(
            "Only persistent blocks with a producer can sum every other tile from the end of k.",
            note="a block with one tile has no other, and a ring without a producer begins anew with each tile.",
            hint="use Persist() and Specialize(), or leave alternating_k out.",
        )
    if program.gemm.block_scales is not None:
        raise LoweringError(f"{program.gemm.block_scales} are read in the order of k.", hint="leave alternating_k out.")


def _check_partials(program: Program) -> None:
    gemm, kept = program.gemm, accumulator_of(program)
    if kept.space is not Space.REGISTER or gemm.out is not kept.result_dtype or gemm.c is not Order.ROW:
        raise LoweringError(
            f"Cannot split k into partial sums of {gemm.out}.",
            note="partial sums keep the format of the accumulators, and lie one matrix below the other, row-major.",
            hint=f"lower a problem whose C is {kept.result_dtype} and row-major, and whose schedule accumulates in "
            "registers.",
        )
    if gemm.epilogue:
        raise LoweringError(
            "Partial sums have no epilogue.",
            hint="lower the problem without, and apply it where the partial sums are added up.",
        )
    if _stores_by_tma(program):
        raise LoweringError("A TMA store cannot take partial sums: a map of C knows one matrix, not its parts.")


def _check_ordered(program: Program) -> None:
    if program.walk is Walk.ONE_TILE or program.raster is None:
        raise LoweringError(
            "Work items can add up in order only in a persistent kernel whose tiles are rasterised.",
            note="an item waits for others, whose blocks must be running.",
            hint="Raster(RasterOrder.GROUPED, group=8) and Persist(), or partial sums for a second kernel.",
        )
    if program.accumulation is None or program.gemm.accumulate.bytes != F32.bytes:
        raise LoweringError(
            f"Cannot add up partial sums of {program.gemm.accumulate} in order.",
            hint="accumulate in f32, in registers: Accumulate(over=...).",
        )
    outermost = program.thread_serial_loops[0].name
    if outermost != program.accumulation.over:
        raise LoweringError(
            f"A thread sums a tile of C part by part, in loop {outermost!r} around {program.accumulation.over!r}.",
            note="a work item adds up all its sums at once.",
            hint=f"Reorder {outermost!r} inside {program.accumulation.over!r}, or bind it.",
        )
    if program.tensorized is not None and program.tensorized.instruction.is_opaque:
        raise LoweringError(
            f"{program.tensorized.instruction.name} keeps sums in opaque fragments, which cannot be added up.",
            hint="use an instruction of mma or wgmma.",
        )


def _check_stream_k(program: Program) -> None:
    alone = program.problems in (Problems.ONE, Problems.STRIDED) or (program.whole_waves and program.problems.along_m)
    if not program.persistent or program.split_k is not SplitK.ORDERED or not alone:
        raise LoweringError(
            "Stream-K needs a persistent kernel, and sums added up in order.",
            note="a block's range of k begins and ends inside tiles of C.",
            hint="Raster(...), Persist(), and SplitK.ORDERED.",
        )


def _check_grouped(program: Program) -> None:
    gemm = program.gemm
    shared = program.split_k is not SplitK.NONE and not program.stream_k
    if program.walk is Walk.ONE_TILE or shared:
        raise LoweringError(
            "Groups by offsets need a persistent kernel, and no split-K.",
            note="how many tiles there are is known on the device only.",
            hint="Raster(...) and Persist().",
        )
    written = [operand.name for operand in gemm.epilogue.written]
    if gemm.c is not Order.ROW or written:
        raise LoweringError(f"Groups by offsets have a row-major C, and no {' or '.join(written) or 'other result'}.")
    scales = gemm.block_scales
    if scales is not None and (program.problems is Problems.GROUPED_K or scales.a > 1):
        raise LoweringError(
            f"{scales} do not go with groups along {ragged_dim(program)}, which begin inside of blocks.",
            hint="use scales of 1 row of A, and groups along m.",
        )


def _check_ragged_orders(program: Program, variant: Variant) -> None:
    """Groups begin at any element of a dimension: no vector lies along it, and no row of a tensor map."""
    gemm, dim = program.gemm, ragged_dim(program)
    along = [name for name in gemm.factors if gemm.operand(name).contiguous == dim]
    if not along:
        return
    if program.uses_tma:
        orders = "A of groups along m is row-major" if dim == "m" else "A of groups along k is column-major and B row"
        raise LoweringError(
            f"{orders}{'' if dim == 'm' else '-major'}, where TMA loads it.",
            note="the map of a ragged matrix ends along its strided dimension only.",
            hint=f"Gemm(..., {'a=Order.ROW' if dim == 'm' else 'a=Order.COL, b=Order.ROW'}).",
        )
    if any(variant.aligned_bytes(name) > gemm.operand(name).dtype.bytes for name in along):
        raise LoweringError(
            f"Groups along {dim} begin at any element of {' and '.join(along)}, contiguous along {dim}.",
            note=f"the variant asks for vectors of {variant.alignment_bytes} bytes, which would begin there too.",
            hint="build(..., variant=Variant(alignment_bytes=1)), or another order.",
        )


def _check_listed(program: Program) -> None:
    if program.split_k is not SplitK.NONE or program.persistent:
        raise LoweringError(
            "A list of problems can neither split k nor be computed by a persistent kernel.",
            note="blocks along z have a problem each, of any size.",
            hint="leave both out, or use offsets on the device.",
        )
    by_tma = program.uses_tma
    if by_tma or cluster_size(program) > 1:
        raise LoweringError(
            "A list of problems cannot be read by clusters of blocks, nor by TMA.",
            note="a map is made for one size, and all blocks of a cluster share their tiles.",
            hint="use a schedule that copies through registers or cp.async.",
        )


def _stores_by_tma(program: Program) -> bool:
    return any(staged.operand == "C" and staged.route is Route.TMA for staged in program.staged)
