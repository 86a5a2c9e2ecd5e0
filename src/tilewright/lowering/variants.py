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
    leading = [gemm.leading(o.name) * o.dtype.bytes for o in every]
    element = min(o.dtype.bytes for o in every)
    widest = (size for size in ALIGNMENTS if size > element and not any(v % size for v in (*leading, *pointers)))
    aligned = next(widest, 1)
    near = all(_last_offset(program, gemm, o.name) <= MAX_INDEX for o in every)
    return Variant(frozenset(exact), aligned, near)


def _last_offset(program: Program, gemm: Gemm, name: OperandName | AddedName) -> int:
    """The largest element offset any guarded-off thread may compute: that of the last element of the last tile."""
    operand = gemm.operand(name)

    def covered(dim: Dim) -> int:
        tile = program.cluster_tile(dim)
        return -(-gemm.size(dim) // tile) * tile

    return covered(operand.strided) * gemm.leading(name) + covered(operand.contiguous)
