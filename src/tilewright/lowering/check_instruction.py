"""What a program needs before its inner tile can be run by a matrix instruction. Asked of finished programs only."""

from __future__ import annotations

from tilewright.errors import LoweringError
from tilewright.ir.accumulators import accumulator_of
from tilewright.ir.buffer import Space
from tilewright.ir.program import Program, Route, Staged
from tilewright.ir.tiles import source_of, tile_of
from tilewright.isa.wgmma import transposes
from tilewright.isa.wmma import WMMA_POINTER_BYTES
from tilewright.lowering.products import held_in_registers, swizzle_atoms_of
from tilewright.problem.block_scales import BlockScales
from tilewright.problem.gemm import OperandName


def check_instruction(program: Program) -> None:
    """Raise LoweringError where operands or sums of a matrix instruction are not where it takes them from."""
    if program.gemm.pieces is not None:
        _check_pieces(program)
    if program.gemm.block_scales is not None:
        _check_scales(program, program.gemm.block_scales)
    if program.tensorized is None:
        if program.gemm.multiplied is not program.gemm.dtype:
            raise LoweringError(
                f"The operands are to be multiplied as {program.gemm.multiplied}, and nothing here multiplies tf32.",
                note="CUDA cores would multiply f32, more exactly and more slowly than was asked for.",
                hint='Tensorize(..., using="mma.m16n8k8"), or leave product out of the problem.',
            )
        return
    name = program.tensorized.instruction.name
    if not program.late_alpha:  # where it is late, sums are kept in registers and beta is late as well (`Epilogue`)
        raise LoweringError(
            f"{name} adds bare products to a sum in registers; alpha and beta come after it.",
            hint="Accumulate(over=...), then Epilogue().",
        )
    operands = program.gemm.factors
    if program.tensorized.instruction.reads_shared:
        held = held_in_registers(program)
        for operand in operands:
            if held is not None and held.operand == operand:
                _check_through_registers(program, held, name)
            else:
                _check_in_shared(program, operand, name)
        return
    for operand in operands:
        chain = program.chain(operand)
        if not chain or chain[-1].space is not Space.REGISTER:
            raise LoweringError(
                f"{name} takes {operand} from registers, and no tile of {operand} is staged there.",
                hint=f"Stage({operand!r}, Space.REGISTER, under=...) under the loop over k.",
            )
        if program.tensorized.instruction.is_opaque:
            _check_whole_tiles(program, chain[-1], name)
    if program.tensorized.instruction.is_opaque:
        _check_opaque_sum(program, name)
        _check_opaque_promotion(program, name)


def _promotes_stages(program: Program) -> bool:
    """Whether wgmma sums stage by stage, and each of these sums is promoted."""
    ring, promotion = program.pipelined, accumulator_of(program).promotion
    reads_shared = program.tensorized is not None and program.tensorized.instruction.reads_shared
    stages = ring is not None and promotion is not None and (promotion.loop, promotion.iterations) == (ring.loop, 1)
    return reads_shared and stages


def _check_scales(program: Program, scales: BlockScales) -> None:
    """A scale multiplies the sum of its block of k, which is what a stage holds."""
    promotion = accumulator_of(program).promotion
    by_tma = program.uses_tma
    by_roles = by_tma and program.specialized is not None  # the producer's warps bring the scales
    if promotion is None or promotion.every != scales.depth or not (_promotes_stages(program) and by_roles):
        raise LoweringError(
            f"Sums of blocks with scales ({scales}) are promoted stage by stage by wgmma, every {scales.depth} of k.",
            note="a scale multiplies the sum of its block.",
            hint="Tensorize(..., using='wgmma...'), Transfer(..., Route.TMA), Pipeline('k_tile') with "
            f"{scales.depth} of k a stage, Specialize(), Accumulate('k_tile', promote_every={scales.depth}).",
        )


def _check_pieces(program: Program) -> None:
    """The small products of pieces are rescaled once in a group, which is what a stage holds."""
    if not _promotes_stages(program):
        raise LoweringError(
            f"Products of pieces ({program.gemm.pieces}) are summed stage by stage by wgmma, and promoted with each.",
            note="what small products of infinities and NaN sum to is replaced before the last product of the stage.",
            hint="Tensorize(..., using='wgmma...'), Pipeline('k_tile'), Accumulate('k_tile', promote_every=...) with "
            "the k of a stage.",
        )


def _check_through_registers(program: Program, held: Staged, name: str) -> None:
    """wgmma takes the operand of its rows from registers, in two halves, of a tile that TMA has brought."""
    rows = "B" if program.is_turned else "A"
    if held.operand != rows or tile_of(program, held).fragment is None:
        raise LoweringError(
            f"{name} takes no fragments of {held.operand} from registers.",
            note="it takes those of the operand whose rows are its own, in formats whose layout is known.",
            hint=f"leave Stage({held.operand!r}, Space.REGISTER, ...) out.",
        )
    source = source_of(program, held)
    if source is None or source.route is not Route.TMA or not held.prefetched:
        raise LoweringError(
            f"{held.name!r} is not loaded in halves from a tile that TMA brings.",
            note="wgmma still reads the registers of one half while the other is loaded; TMA rounds to tf32.",
            hint=f"Transfer('{held.operand}_tile', Route.TMA), Pipeline(...), and Prefetch({held.name!r}) under a loop "
            "of 2 inside the pipelined one.",
        )
    if accumulator_of(program).promotion is not None or len(program.gemm.products) > 1:
        raise LoweringError(
            f"Sums that {name} reads {held.operand} through registers for are neither promoted nor several.",
            note="the products of a stage are several groups, and promotion waits for one.",
            hint="leave promote_every out, or read both operands from shared memory.",
        )


def _check_in_shared(program: Program, operand: OperandName, name: str) -> None:
    """wgmma reads its operands from shared memory, in swizzle atoms, and transposes only elements of 2 bytes."""
    chain = program.chain(operand)
    if not chain or chain[-1].space is not Space.SHARED:
        raise LoweringError(
            f"{name} reads {operand} from shared memory, and no tile of {operand} is staged there last.",
            hint=f"Stage({operand!r}, Space.SHARED, under=...) under the loop over k, and no further.",
        )
    if program.gemm.rounds_to is not None and chain[-1].route is not Route.TMA:
        raise LoweringError(
            f"{name} reads {operand} from shared memory, and nothing rounds {chain[-1].name!r} to "
            f"{program.gemm.rounds_to}.",
            note="the unit drops the lower bits of what it reads.",
            hint=f"Transfer({chain[-1].name!r}, Route.TMA) rounds; or ask for product=tf32_truncated.",
        )
    tile = tile_of(program, chain[-1])
    swizzle_atoms = swizzle_atoms_of(tile)
    along = tile.spans[tile.minor].dim
    if along != "k" and not transposes(program.gemm.multiplied):
        raise LoweringError(
            f"Rows of {chain[-1].name!r} run along {along}, and {name} takes {operand} in rows along k.",
            note="the unit transposes only elements of 2 bytes.",
            hint=f"store {operand} so that k is contiguous.",
        )
    wide = next((axis.extent or 1 for axis in program.instruction_axes if axis.dim == along), 1)
    if along != "k" and wide % swizzle_atoms.columns:
        raise LoweringError(
            f"{name} takes {wide} of {along} of {chain[-1].name!r}, whose swizzle atoms have {swizzle_atoms.columns}.",
            note="one product reads whole swizzle atoms where rows do not run along k.",
            hint=f"use narrower swizzle atoms, or a wgmma whose {along} is a multiple of {swizzle_atoms.columns}.",
        )


def _check_whole_tiles(program: Program, staged: Staged, name: str) -> None:
    source = source_of(program, staged)
    if source is None:
        raise LoweringError(
            f"{name} loads whole tiles of {staged.operand} from shared memory, and none is staged there.",
            note="tiles at the edge of a matrix are filled up with zeros, which global memory has no room for.",
            hint=f"Stage({staged.operand!r}, Space.SHARED, under=...) as well.",
        )
    check_opaque_tile(program, source, name)


def _check_opaque_sum(program: Program, name: str) -> None:
    staged = program.staged_result
    if staged is None or staged.distribution is None:
        raise LoweringError(
            f"Which lane of {name} holds which result is not known, so no lane can store its own.",
            hint='Stage("C", Space.SHARED) and Distribute("C_tile"): the block stores the tile together.',
        )
    check_opaque_tile(program, staged, name)


def _check_opaque_promotion(program: Program, name: str) -> None:
    kept = accumulator_of(program)
    if kept.result_dtype is not kept.dtype:
        raise LoweringError(
            f"Sums of {name} in {kept.dtype} cannot be promoted to {kept.result_dtype}.",
            note="its fragments are stored by an instruction that knows one format.",
            hint="accumulate in f32, or use an instruction of mma or wgmma.",
        )


def check_opaque_tile(program: Program, staged: Staged, name: str) -> None:
    """wmma loads and stores begin at multiples of 32 bytes and know rows of one length only."""
    tile = tile_of(program, staged)
    row_bytes = (tile.row_length + staged.pad) * tile.dtype.bytes
    if staged.arrangement is not None:
        raise LoweringError(
            f"{staged.name!r} is permuted within its rows, and {name} moves tiles of plain rows.",
            hint="pad the rows instead, or use mma with Transfer(..., Route.MATRICES).",
        )
    if row_bytes % WMMA_POINTER_BYTES:
        raise LoweringError(
            f"Rows of {staged.name!r} are {row_bytes} bytes apart, and a tile of {name} begins at a multiple of "
            f"{WMMA_POINTER_BYTES}.",
            hint=f"pad by a multiple of {WMMA_POINTER_BYTES // tile.dtype.bytes} elements.",
        )
