"""Which assumptions are true of a problem: the variant that its kernel may be lowered for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set

from tilewright.ir.clusters import cluster_tile
from tilewright.ir.kernel import WIDEST_BYTES, Variant
from tilewright.ir.program import Program, Route, Staged
from tilewright.ir.tiles import fragment_of
from tilewright.problem.gemm import Dim, Gemm, OperandName
from tilewright.problem.values import AddedName

MAX_INDEX = 2**31 - 1
ALIGNMENTS = (WIDEST_BYTES, 8, 4)
"""Bytes of one access, widest first. Source: PTX ISA, ld, st and cp.async."""


def variant_for(program: Program, gemm: Gemm, *, pointers: Sequence[int] = ()) -> Variant:
    """The strongest assumptions that are true of a problem and its pointers (addresses of A, B, C)."""
    exact: set[Dim] = {dim for dim in ("m", "n", "k") if gemm.size(dim) % cluster_tile(program, dim) == 0}
    every = (*gemm.operands, *gemm.added)
    rows = [gemm.leading(operand.name) * operand.dtype.bytes for operand in every]
    read, result = widest(gemm, (*rows[:2], *pointers[:2])), widest(gemm, (*rows[2:], *pointers[2:]))
    near = all(_last_offset(program, gemm, o.name) <= MAX_INDEX for o in every)
    whole = reads_vectors(program) and ends_whole(gemm, dict.fromkeys(gemm.factors, read), exact)
    overwrites = gemm.beta == 0 and has_two_ways(program)
    return Variant(frozenset(exact), read, near, result, whole, overwrites)


def has_two_ways(program: Program) -> bool:
    """Whether results are stored in one of two whole ways, C read or not: what `Variant.overwrites` is about. Threads
    that hold neighbours, and opaque fragments, guard each load of C instead."""
    fragment = fragment_of(program, "C")
    return program.late_beta and fragment is not None and not fragment.opaque


def reads_vectors(program: Program) -> bool:
    """Whether threads read neighbours of A or B at once: what `Variant.whole` is about."""

    def width(staged: Staged) -> int:
        return staged.vector if staged.distribution is None else staged.distribution.vector

    firsts = (staged for name in program.gemm.factors for staged in program.chain(name)[:1])
    return any(staged.route is not Route.TMA and width(staged) > 1 for staged in firsts)


def ends_whole(
    gemm: Gemm,
    read_bytes: Mapping[OperandName, int],
    exact: Set[Dim],
    padded: Set[OperandName] = frozenset(),
) -> bool:
    """Whether `Variant.whole` holds, where it matters: rows of A and B end where their vectors do.

    read_bytes: of a vector of each. padded: of these a copy is read, whose rows go on with zeros.
    """
    along = {name: gemm.operand(name).contiguous for name in gemm.factors}
    widths = {name: max(1, read_bytes[name] // gemm.dtype.bytes) for name in gemm.factors}
    if max(widths.values()) == 1 or exact >= set(along.values()):
        return False

    return all(name in padded or gemm.size(along[name]) % widths[name] == 0 for name in gemm.factors)


def widest(gemm: Gemm, places: Sequence[int]) -> int:
    """Bytes of the widest access to operands whose addresses and rows are these, or 1: of one element, no more."""
    element = min(operand.dtype.bytes for operand in (*gemm.operands, *gemm.added))
    return next((size for size in ALIGNMENTS if size > element and not any(place % size for place in places)), 1)


def _last_offset(program: Program, gemm: Gemm, name: OperandName | AddedName) -> int:
    """The largest element offset any guarded-off thread may compute: that of the last element of the last tile."""
    operand = gemm.operand(name)

    def covered(dim: Dim) -> int:
        tile = cluster_tile(program, dim)
        return -(-gemm.size(dim) // tile) * tile

    return covered(operand.strided) * gemm.leading(name) + covered(operand.contiguous)
