"""Which assumptions are true of a problem: the variant that its kernel may be lowered for."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.ir.kernel import Variant
from tilewright.ir.program import Program
from tilewright.problem.gemm import AddedName, Dim, Gemm, OperandName

MAX_INDEX = 2**31 - 1
ALIGNMENTS = (16, 8, 4)
"""Bytes of one access, widest first. Source: PTX ISA, ld, st and cp.async."""


def variant_for(program: Program, gemm: Gemm, *, pointers: Sequence[int] = ()) -> Variant:
    """The strongest assumptions that are true of a problem and its pointers (addresses of A, B, C)."""
    exact: set[Dim] = {dim for dim in ("m", "n", "k") if gemm.size(dim) % program.cluster_tile(dim) == 0}
    every = (*gemm.operands, *gemm.added)
    rows = [gemm.leading(operand.name) * operand.dtype.bytes for operand in every]
    read, result = widest(gemm, (*rows[:2], *pointers[:2])), widest(gemm, (*rows[2:], *pointers[2:]))
    near = all(_last_offset(program, gemm, o.name) <= MAX_INDEX for o in every)
    return Variant(frozenset(exact), read, near, result)


def widest(gemm: Gemm, places: Sequence[int]) -> int:
    """Bytes of the widest access to operands whose addresses and rows are these, or 1: of one element, no more."""
    element = min(operand.dtype.bytes for operand in (*gemm.operands, *gemm.added))
    return next((size for size in ALIGNMENTS if size > element and not any(place % size for place in places)), 1)


def _last_offset(program: Program, gemm: Gemm, name: OperandName | AddedName) -> int:
    """The largest element offset any guarded-off thread may compute: that of the last element of the last tile."""
    operand = gemm.operand(name)

    def covered(dim: Dim) -> int:
        tile = program.cluster_tile(dim)
        return -(-gemm.size(dim) // tile) * tile

    return covered(operand.strided) * gemm.leading(name) + covered(operand.contiguous)
