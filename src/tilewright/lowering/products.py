"""wgmma on tiles in shared memory: its descriptors, and the TMA loads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tilewright.dtypes import I64
from tilewright.errors import LoweringError
from tilewright.ir.async_stmt import ExpectBytes, SharedMatrix, TensorMap, TmaLoad, TmaPrefetch, Wgmma
from tilewright.ir.buffer import Space
from tilewright.ir.clusters import cluster_size, readers
from tilewright.ir.expr import HERE, ZERO, Const, Env, Expr, Op, Ref, Select, Var, binary, both
from tilewright.ir.kernel import step_of as step_name
from tilewright.ir.program import Program, Staged
from tilewright.ir.stmt import Body, For, If, Stmt
from tilewright.ir.tiles import Tile, joined, tile_of, wide_instruction
from tilewright.ir.work import Problems
from tilewright.layout.arrangement import SwizzleAtoms
from tilewright.layout.swizzle import swizzle_of
from tilewright.lowering.coordinates import (
    K_FIRST,
    K_SIZE,
    digit_sum,
    matrix_of,
    origin_of,
    place_in_cluster,
    rank_step,
)
from tilewright.lowering.sums import Sums
from tilewright.problem.gemm import Dim, OperandName, Product

CORE_ROWS = 8
"""Rows of a core matrix. Source: PTX ISA 9.0, wgmma."""


def reads_shared(program: Program) -> bool:
    """Whether the program multiplies tiles that the instruction reads from shared memory itself."""
    return program.tensorized is not None and program.tensorized.instruction.reads_shared


def multiply_shared(program: Program, sums: Sums, product: Product, env: Env) -> Wgmma:
    """The instruction that starts adding a product of the running tiles to its running sum, or all of those that it
    multiplies together (`ir.joined`)."""
    assert program.tensorized is not None
    names = (product.b, product.a) if program.is_turned else (product.a, product.b)
    last = program.chain(names[0])[-1]
    held = last.space is Space.REGISTER
    a = _fragment(program, last, env) if held else shared_matrix(program, names[0], env)
    b = shared_matrix(program, names[1], env)
    d = sums.in_group(sums.tile_of(product.into))
    begins = next(one for one in program.gemm.products if one.into == product.into)
    first = _is_first(program, sums, env) if product == begins else None
    wide = wide_instruction(program) if joined(program) else None
    return Wgmma(wide or program.tensorized.instruction, d, a, b, first, origin=sums.name)


def started(program: Program) -> tuple[Product, ...]:
    """The products that have instructions of their own: the first of those that one instruction multiplies together."""
    products = program.gemm.products
    return products[:1] if joined(program) else products


def held_in_registers(program: Program) -> Staged | None:
    """The tile of the operand that wgmma reads through registers; None where it reads both from shared memory."""
    if not reads_shared(program):
        return None
    chains = (program.chain(name) for name in program.gemm.factors)
    return next((chain[-1] for chain in chains if chain and chain[-1].space is Space.REGISTER), None)


def _fragment(program: Program, staged: Staged, env: Env) -> Ref:
    """Where the running fragment of an operand in registers begins."""
    tile = tile_of(program, staged)
    return Ref(tile.register_buffer, tile.register_index(env))


def _is_first(program: Program, sums: Sums, env: Env) -> Expr:
    """Whether the running product is the first of its sum: of the tile, or of the group of k that is promoted."""
    axes = [axis for axis in program.axes_of("k") if axis not in program.instruction_axes]
    promotion = sums.accumulator.promotion
    if promotion is None:
        return both(*(binary(Op.EQ, env[axis.name], 0) for axis in axes))
    counted = program.loop(promotion.loop).axes[0]
    inside = (binary(Op.EQ, env[axis.name], 0) for axis in axes if axis.stride < counted.stride)
    return both(binary(Op.EQ, binary(Op.MOD, env[counted.name], promotion.iterations), 0), *inside)


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
    """The swizzle atoms in which a tile lies that wgmma or TMA touches."""
    arrangement = tile.staged.arrangement
    if not isinstance(arrangement, SwizzleAtoms):
        columns = 128 // tile.dtype.bytes
        raise LoweringError(
            f"{tile.staged.name!r} does not lie in swizzle atoms, as TMA writes and wgmma reads them.",
            hint=f"Relayout({tile.staged.name!r}, arrangement=SwizzleAtoms({columns})).",
        )
    return arrangement


@dataclass(frozen=True, slots=True)
class Multicast:
    """How blocks of a cluster share the copy of a tile that is the same for all of them.

    blocks: that read it; 1: each block loads a tile of its own
    atoms, rows: swizzle atoms that a block loads, and rows of each
    atoms_apart, rows_apart: from the share of one block to the share of the next
    alternating: one block loads the whole tile in a k iteration, the next block in the next one, since neither atoms
    nor rows divide by the number of blocks
    """

    blocks: int
    atoms: int
    rows: int
    atoms_apart: int = 0
    rows_apart: int = 0
    alternating: bool = False


def multicast(program: Program, staged: Staged) -> Multicast:
    """The share of one block in the copy of a tile."""
    tile = tile_of(program, staged)
    atoms, rows = tile.row_length // swizzle_atoms_of(tile).columns, tile.rows
    blocks = readers(program, staged.operand)
    if blocks == 1:
        return Multicast(1, atoms, rows)
    if atoms % blocks == 0:
        return Multicast(blocks, atoms // blocks, rows, atoms_apart=atoms // blocks)
    if rows % (blocks * CORE_ROWS) == 0:
        return Multicast(blocks, atoms, rows // blocks, rows_apart=rows // blocks)
    return Multicast(blocks, atoms, rows, alternating=True)


def sharers(program: Program, staged: Staged) -> tuple[Expr, Expr]:
    """Of the blocks that read the same tile as the running one: its place among them, and their mask."""
    shared: Dim = "n" if "m" in program.gemm.operand(staged.operand).dims else "m"
    own: Dim = "m" if shared == "n" else "n"
    count, rank = readers(program, staged.operand), place_in_cluster(program, shared)
    if count == cluster_size(program):
        return rank, Const((1 << count) - 1)
    mask = sum(1 << (place * rank_step(program, shared)) for place in range(count))
    return rank, binary(Op.SHL, Const(mask), place_in_cluster(program, own) * rank_step(program, own))


def tensor_map(program: Program, staged: Staged) -> TensorMap:
    """What TMA is told of a staged tile's operand: boxes of one atom, or of a block's part of it."""
    swizzle_atoms = swizzle_atoms_of(tile_of(program, staged))
    box, swizzle = (swizzle_atoms.columns, multicast(program, staged).rows), swizzle_of(swizzle_atoms.row_bytes)
    step = step_name(staged.operand) if matrix_of(program, staged.operand) else ""
    ragged = program.problems is Problems.GROUPED_K
    return TensorMap(f"{staged.operand}_map", staged.operand, box, swizzle, step, ragged)


def shared_matrix_of(program: Program, name: OperandName, env: Env = HERE) -> tuple[Expr, ...]:
    """Which of several matrices a copy reads: number 0 where all problems share one."""
    shared = binary(Op.EQ, Var(step_name(name), I64), Const(0, I64))
    return tuple(Select(shared, ZERO, number) for number in matrix_of(program, name, env))


def bulk_loads(program: Program, staged: Staged, signal: Ref, env: Env) -> Body:
    """One thread's copies of a tile, or of its block's part of one, into the slot that is being filled."""
    tile, box = tile_of(program, staged), tensor_map(program, staged)
    mask = sharers(program, staged)[1] if multicast(program, staged).blocks > 1 else None

    def load(at: tuple[Expr, ...], within: tuple[Expr, ...]) -> TmaLoad:
        place = Ref(tile.shared_buffer, (*tile.stage(env), *within))
        return TmaLoad(place, box, at, signal, mask, staged.evict_first, origin=staged.name)

    return _of_boxes(program, staged, env, load)


def bulk_prefetches(program: Program, staged: Staged, env: Env) -> Body:
    """The L2 is asked for what `bulk_loads` copy."""
    box = tensor_map(program, staged)
    return _of_boxes(program, staged, env, lambda at, _: TmaPrefetch(box, at, origin=staged.name))


def _of_boxes(
    program: Program, staged: Staged, env: Env, make: Callable[[tuple[Expr, ...], tuple[Expr, ...]], Stmt]
) -> Body:
    """What `make` makes of each box of a tile, or of a block's part of one: of its first element as the map counts, and
    of its place in a stage."""
    tile = tile_of(program, staged)
    swizzle_atoms = swizzle_atoms_of(tile)
    share, box = multicast(program, staged), tensor_map(program, staged)
    rank = sharers(program, staged)[0] if share.blocks > 1 else ZERO
    atom: Expr = Var(f"{staged.name}_step") if share.atoms > 1 else ZERO
    if share.atoms_apart:
        atom = rank * share.atoms_apart + atom
    first_row = rank * share.rows_apart if share.rows_apart else ZERO
    starts = []
    for span in tile.spans:
        outside = tuple(axis for axis in program.axes_of(span.dim) if axis not in span.axes)
        origin = ZERO if box.ragged else origin_of(program, span.dim, env)
        starts.append(digit_sum(outside, env) + origin)
    ragged = (env[K_FIRST.name], env[K_SIZE.name])
    at = (
        starts[tile.minor] + atom * swizzle_atoms.columns,
        starts[tile.major] + first_row,
        *(ragged if box.ragged else shared_matrix_of(program, staged.operand, env)),
    )
    made: Body = (make(at, (atom, first_row, ZERO)),)
    if share.atoms > 1:
        made = (For(f"{staged.name}_step", Const(share.atoms), made, unroll=True),)
    if not share.alternating:
        return made
    return (If(binary(Op.EQ, binary(Op.MOD, env[staged.under], share.blocks), rank), made),)


def expect(program: Program, tiles: tuple[Staged, ...], signal: Ref, more_bytes: int = 0) -> ExpectBytes:
    """The bytes that land in one slot of this block, whoever of the cluster sends them. more_bytes: beside tiles."""
    found = (tile_of(program, staged) for staged in tiles)
    return ExpectBytes(signal, more_bytes + sum(tile.elements * tile.dtype.bytes for tile in found))
