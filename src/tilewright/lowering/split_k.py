"""Pass 4b, where asked: blocks along z share out the sum over k, and C holds their partial sums, one below the other.

    k in 0 .. K              ->  k in k_first .. k_first + K_own,  k_first = blockIdx.z * K_part
    C[m, n] = sum            ->  C[m + blockIdx.z * M, n] = sum of the part

needs: guarded accesses with logical indices. leaves: the same statements, of one part; K_part, a multiple of the
block's tile of k, is an argument of the kernel, and each part but the last sums so many products. pinned after the
guards, which compare indices with the sizes of a part, and before offsets, which know no rows. Whoever launches adds
the parts up.
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.errors import LoweringError
from tilewright.ir.async_stmt import TmaLoad, TmaStore
from tilewright.ir.buffer import Ref, Space
from tilewright.ir.expr import Expr, Op, Var, binary
from tilewright.ir.kernel import PART_OF_K, SIZES
from tilewright.ir.program import Program
from tilewright.ir.simplify import substitute
from tilewright.ir.stmt import Body, Let, Move, Stmt
from tilewright.ir.visit import map_exprs, rewrite
from tilewright.problem.gemm import Order

FIRST, OWN = Var("k_first"), Var("K_own")
_PART = Var("blockIdx.z")


def split_k(body: Body, program: Program) -> Body:
    """`body` for one part of k. Raises LoweringError for a kernel whose results are no plain f32 stores."""
    _check(program)

    def shifted(place: Ref) -> Ref:
        if place.buffer.space is not Space.GLOBAL:
            return place
        dims = program.gemm.operand(place.buffer.name).dims  # type: ignore[arg-type]
        return Ref(place.buffer, tuple(_moved(dim, index, dims) for dim, index in zip(dims, place.index, strict=True)))

    def change(stmt: Stmt) -> Body:
        own = map_exprs(stmt, lambda expr: substitute(expr, {SIZES["k"].name: OWN}))
        if isinstance(own, Move):
            own = replace(own, dst=shifted(own.dst), src=shifted(own.src))
        if isinstance(own, TmaLoad):
            operand = program.gemm.operand(own.map.operand)
            inner, outer = own.at
            at = (inner + FIRST, outer) if operand.contiguous == "k" else (inner, outer + FIRST)
            own = replace(own, at=at)
        if isinstance(own, TmaStore):
            raise LoweringError(
                "The copy engine cannot store partial sums: a map of C knows one matrix, not its parts."
            )
        return (own,)

    rewritten = rewrite(body, change)
    first = Let(FIRST.name, _PART * PART_OF_K, note="the part of k that is this block's")
    return (first, Let(OWN.name, binary(Op.MIN, PART_OF_K, SIZES["k"] - FIRST)), *rewritten)


def ceil_of_parts() -> Expr:
    """How many parts there are: blocks along z."""
    return binary(Op.DIV, SIZES["k"] + PART_OF_K - 1, PART_OF_K)


def _moved(dim: str, index: Expr, dims: tuple[str, str]) -> Expr:
    if dim == "k":
        return index + FIRST
    return index + _PART * SIZES["m"] if dim == "m" and "k" not in dims else index


def _check(program: Program) -> None:
    gemm = program.gemm
    if program.accumulation is None or gemm.out is not gemm.accumulate or gemm.c is not Order.ROW:
        raise LoweringError(
            f"Cannot share out the sum over k into partial sums of {gemm.out}.",
            note="parts are kept as they are summed, and lie one below the other by rows.",
            hint=f"lower a problem whose C is {gemm.accumulate} by rows, and whose schedule accumulates in registers.",
        )
    if gemm.epilogue:
        raise LoweringError(
            "Partial sums have no epilogue.",
            hint="lower the problem without, and apply it where the parts are added up.",
        )
    if program.persistent:
        raise LoweringError(
            "Cannot share out the sum over k of a kernel whose blocks walk over tiles.",
            hint="leave Persist() out: parts are blocks along z.",
        )
