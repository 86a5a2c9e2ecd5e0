"""Products of tiles in shared memory: what wgmma is told of its operands, and the copies of the copy engine."""

from __future__ import annotations

from tilewright.dtypes import I64
from tilewright.errors import LoweringError
from tilewright.ir.async_stmt import ExpectBytes, SharedMatrix, TensorMap, TmaLoad, Wgmma
from tilewright.ir.buffer import Ref
from tilewright.ir.env import HERE, Env
from tilewright.ir.expr import ZERO, Const, Expr, Op, Select, Var, binary, both
from tilewright.ir.kernel import step_of as step_name
from tilewright.ir.program import Program, Staged
from tilewright.ir.stmt import Body, For
from tilewright.ir.tiles import Tile, tile_of
from tilewright.ir.work import Problems
from tilewright.layout.arrangement import SwizzleAtoms
from tilewright.layout.swizzle import swizzle_of
from tilewright.lowering.coordinates import RANK, digit_sum
from tilewright.lowering.located import matrix_of, origin_of
from tilewright.lowering.sums import Sums
from tilewright.problem.gemm import OperandName

CORE_ROWS = 8
"""Rows of a core matrix. Source: PTX ISA 9.0, wgmma."""


def reads_shared(program: Program) -> bool:
    """Whether the program multiplies tiles that the instruction reads from shared memory itself."""
    return program.tensorized is not None and program.tensorized.instruction.reads_shared


def multiply_shared(program: Program, sums: Sums, env: Env) -> Body:
    """The instruction that starts adding the running tile's product to the running sum."""
    assert program.tensorized is not None
    names = _OPERANDS[::-1] if program.is_turned else _OPERANDS
    a, b = (shared_matrix(program, name, env) for name in names)
    digits = [axis for axis in program.axes_of("k") if axis not in program.instruction_axes]
    fresh = both(*(binary(Op.EQ, env[axis.name], 0) for axis in digits))
    d = Ref(sums.buffer, sums.tile_index)
    return (Wgmma(program.tensorized.instruction, d, a, b, fresh, origin=sums.name),)


_OPERANDS: tuple[OperandName, OperandName] = ("A", "B")


def shared_matrix(program: Program, operand: OperandName, env: Env) -> SharedMatrix:
    """The running instruction's tile of an operand, as a descriptor names it.

    The unit undoes the permutation of 16-byte pieces itself: the place is that of the first element as if there were
    none, which is where it is in rows that are multiples of eight.
    """
    tile = tile_of(program, program.chain(operand)[-1])
    swizzle_atoms = swizzle_atoms_of(tile)
    corner = {axis.name: ZERO for axis in program.instruction_axes}
    coordinates = [span.local_index(env.at(**corner)) for span in tile.spans]
    slow, fast = coordinates[tile.major], coordinates[tile.minor]
    index: tuple[Expr, ...] = (fast // swizzle_atoms.columns, slow, fast % swizzle_atoms.columns)
    across = tile.spans[tile.minor].dim != "k"
    atom_bytes = tile.rows * swizzle_atoms.row_bytes
    return SharedMatrix(
        Ref(tile.shared_buffer, (*tile.stage(env), *index)),
        swizzle_of(swizzle_atoms.row_bytes),
        across,
        atom_bytes if across else 16,
        CORE_ROWS * swizzle_atoms.row_bytes,
    )


def swizzle_atoms_of(tile: Tile) -> SwizzleAtoms:
    """The swizzle atoms in which a tile lies that wgmma or the copy engine touches."""
    arrangement = tile.staged.arrangement
    if not isinstance(arrangement, SwizzleAtoms):
        columns = 128 // tile.dtype.bytes
        raise LoweringError(
            f"{tile.staged.name!r} does not lie in swizzle atoms, as the copy engine writes and wgmma reads them.",
            hint=f"Relayout({tile.staged.name!r}, arrangement=SwizzleAtoms({columns})).",
        )
    return arrangement


def parts(program: Program, staged: Staged) -> int:
    """How many blocks of a cluster share out the copy of a tile that is the same for all of them."""
    if program.clustered is None:
        return 1
    dim = program.loop(program.clustered.loop).axes[0].dim
    return 1 if dim in program.gemm.operand(staged.operand).dims else program.clustered.size


def tensor_map(program: Program, staged: Staged) -> TensorMap:
    """What the copy engine is told of a staged tile's operand: boxes of one atom, or of a block's part of it."""
    tile = tile_of(program, staged)
    swizzle_atoms = swizzle_atoms_of(tile)
    rows = tile.rows
    share = parts(program, staged)
    if (tile.row_length // swizzle_atoms.columns) % share:
        rows //= share
    box, swizzle = (swizzle_atoms.columns, rows), swizzle_of(swizzle_atoms.row_bytes)
    step = step_name(staged.operand) if program.problems is Problems.STRIDED else ""
    return TensorMap(f"{staged.operand}_map", staged.operand, box, swizzle, step)


def shared_matrix_of(program: Program, name: OperandName, env: Env = HERE) -> tuple[Expr, ...]:
    """Which of several matrices a copy reads: number 0 where all problems share one."""
    shared = binary(Op.EQ, Var(step_name(name), I64), Const(0, I64))
    return tuple(Select(shared, ZERO, number) for number in matrix_of(program, name, env))


def bulk_loads(program: Program, staged: Staged, signal: Ref, env: Env) -> Body:
    """One thread's copies of a tile, or of its block's part of one, into the slot that is being filled."""
    tile = tile_of(program, staged)
    swizzle_atoms = swizzle_atoms_of(tile)
    count, share, box = tile.row_length // swizzle_atoms.columns, parts(program, staged), tensor_map(program, staged)
    by_slab = count % share == 0
    rank: Expr = Var(RANK) if share > 1 else ZERO
    each = count // share if by_slab else count
    atom: Expr = Var(f"{staged.name}_step") if each > 1 else ZERO
    if by_slab:
        atom = rank * each + atom
    first_row: Expr = ZERO if by_slab else rank * box.box[1]
    starts = []
    for span in tile.spans:
        outside = tuple(axis for axis in program.axes_of(span.dim) if axis not in span.axes)
        starts.append(digit_sum(outside, env) + origin_of(program, span.dim, env))
    at = (
        starts[tile.minor] + atom * swizzle_atoms.columns,
        starts[tile.major] + first_row,
        *shared_matrix_of(program, staged.operand, env),
    )
    index: tuple[Expr, ...] = (*tile.stage(env), atom, first_row, ZERO)
    mask = (1 << share) - 1 if share > 1 else None
    load = TmaLoad(Ref(tile.shared_buffer, index), box, at, signal, mask, origin=staged.name)
    return (For(f"{staged.name}_step", Const(each), (load,), unroll=True),) if each > 1 else (load,)


def expect(program: Program, tiles: tuple[Staged, ...], signal: Ref) -> ExpectBytes:
    """The bytes that land in one slot of this block, whoever of the cluster sends them."""
    found = (tile_of(program, staged) for staged in tiles)
    return ExpectBytes(signal, sum(tile.elements * tile.dtype.bytes for tile in found))
