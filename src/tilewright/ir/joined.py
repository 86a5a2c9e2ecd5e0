"""Products of one A by several B, which one instruction multiplies together.

    C = f(A @ B, A @ B1)        a stage:  A_tile;  B_tile = [B | B1], one behind the other
                                wgmma.m64n(2n):  [sum, sum1] += A_tile @ [B | B1]

An instruction reads A from shared memory once for all columns that it has. A fragment of twice the columns is the
fragments of both halves, one behind the other, in registers as in rows or swizzle atoms of shared memory.
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.ir.buffer import Space
from tilewright.ir.program import Program, Route, Staged
from tilewright.isa.instruction import MatrixInstruction
from tilewright.isa.wgmma import widened
from tilewright.problem.gemm import OperandName


def joined(program: Program) -> tuple[OperandName, ...]:
    """The operands whose tiles lie one behind the other in each stage, in the order of their sums; () where an
    instruction multiplies by one of them."""
    products = program.gemm.products
    names = tuple(one.b for one in products)
    if len(products) < 2 or program.is_turned or [one.into for one in products] != list(range(len(products))):
        return ()
    if any(one.a != products[0].a for one in products) or wide_instruction(program) is None:
        return ()
    tiles = [program.chain(name) for name in names]
    if any(len(tile) != 1 or tile[0].space is not Space.SHARED or tile[0].route is not Route.TMA for tile in tiles):
        return ()
    first = tiles[0][0]
    return names if all(_lies_as(first, tile[0]) for tile in tiles) else ()


def wide_instruction(program: Program) -> MatrixInstruction | None:
    """The instruction that multiplies by all operands of `joined`; None where there is none so wide."""
    if program.tensorized is None or not program.tensorized.instruction.reads_shared:
        return None
    return widened(program.tensorized.instruction, program.gemm.accumulators)


def _lies_as(first: Staged, other: Staged) -> bool:
    return replace(other, name=first.name, operand=first.operand) == first
