"""Pass 3: accesses that may leave the matrix are guarded.

needs: global accesses with logical (row, column) indices, as wide as they will be. leaves: every global access inside
its matrix; out of range, loads give zero and stores do nothing; or loads of A and B give the last line once more.
pinned before layouts: afterwards rows and columns can no longer be told from an offset.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from dataclasses import replace

from tilewright.ir.buffer import Space
from tilewright.ir.expr import Const, Expr, Op, Ref, Var, binary, both
from tilewright.ir.kernel import WIDEST_BYTES, Variant
from tilewright.ir.program import Program, Route
from tilewright.ir.stmt import Body, For, If, Move, Stmt
from tilewright.ir.visit import exprs_of, rewrite, variables
from tilewright.lowering.coordinates import end_of
from tilewright.lowering.kernel_parts import ELEMENT, is_matrix
from tilewright.problem.gemm import FACTORS


def guard_edges(body: Body, program: Program, exact: frozenset[str], variant: Variant) -> Body:
    """`body` with a guard on each global access that could be out of range."""
    counted = {
        axis.name
        for loop in program.loops
        for axis in loop.axes
        if axis.extent is None and axis.stride == 1 and len(loop.axes) == 1
    }

    def conditions(place: Ref, width: int, inside: Set[str] = exact) -> Expr:
        operand = program.gemm.operand(place.buffer.name)
        if operand.is_single:
            return both()
        found = []
        for dim, index in zip(operand.dims, place.index[:2], strict=True):
            # A loop that counts a whole dimension one by one never leaves it.
            if dim in inside or (isinstance(index, Var) and index.name in counted):
                continue
            if operand.is_vector and dim != operand.contiguous:
                continue  # the same in all lines, so read once for them
            last = index + (width - 1) if dim == operand.contiguous else index
            found.append(binary(Op.LT, last, end_of(program, dim)))
        return both(*found)

    def change(stmt: Stmt) -> Body | None:
        if not isinstance(stmt, Move):
            return None
        if stmt.settled:
            return None
        place = stmt.src if stmt.src.buffer.space is Space.GLOBAL else stmt.dst
        if not is_matrix(place):
            return None
        if variant.filled and place.buffer.name in FACTORS:
            return None
        inside = conditions(place, stmt.width)
        if isinstance(inside, Const):
            return None
        ends_inside = stmt.width == 1 or variant.whole or program.gemm.operand(place.buffer.name).contiguous in exact
        if variant.repeats and place.buffer.name in FACTORS and ends_inside:
            repeating = _repeating(stmt, program, exact)
            return (replace(repeating, guard=both(stmt.guard, conditions(repeating.src, 1, {*exact, "m", "n"}))),)
        if stmt.width == 1:
            return (replace(stmt, guard=both(stmt.guard, inside)),)
        if (variant.whole and place.buffer.name in FACTORS) or _ends_with_c(stmt, place, program):
            return (_guarded(stmt, conditions),)
        if stmt.asynchronous:
            return (_partly_valid(stmt, program, exact, conditions),)
        contiguous = program.gemm.operand(place.buffer.name).contiguous
        if contiguous in exact:
            return (replace(stmt, guard=both(stmt.guard, inside)),)
        single = narrower(stmt, contiguous_at(program, place))
        one_by_one = tuple(_guarded(s, conditions) for s in single.body)
        return (If(inside, (stmt,), (replace(single, body=one_by_one),)),)

    return rewrite(body, change)


def _repeating(load: Move, program: Program, exact: frozenset[str]) -> Move:
    """A load whose line along m or n is the last one, where it would lie behind it; of neighbours on several lines the
    last ones that are loaded together."""
    operand, index = program.gemm.operand(load.src.buffer.name), list(load.src.index)
    for at, dim in enumerate(operand.dims):
        if dim != "k" and dim not in exact:
            last = end_of(program, dim) - 1
            neighbours = load.width if dim == operand.contiguous else 1
            index[at] = binary(Op.MIN, index[at], last // neighbours * neighbours)
    return replace(load, src=Ref(load.src.buffer, tuple(index)))


def _ends_with_c(stmt: Move, place: Ref, program: Program) -> bool:
    """Whether an access to an operand of the epilogue is whole or not at all: TMA stores rows of C that end at
    multiples of 16 bytes, and the operand ends with them."""
    by_tma = any(staged.operand == "C" and staged.route is Route.TMA for staged in program.staged)
    is_read = place.buffer.name not in (*FACTORS, "C")
    return by_tma and is_read and WIDEST_BYTES // program.gemm.out.bytes % stmt.width == 0


def _partly_valid(stmt: Move, program: Program, exact: frozenset[str], conditions: Callable[[Ref, int], Expr]) -> Stmt:
    """An asynchronous copy reads as many elements as there are and fills the rest with zero, in one instruction."""
    operand = program.gemm.operand(stmt.src.buffer.name)
    if operand.contiguous in exact:
        return replace(stmt, guard=both(stmt.guard, conditions(stmt.src, 1)))
    first = stmt.src.index[contiguous_at(program, stmt.src)]
    valid = binary(Op.MIN, end_of(program, operand.contiguous) - first, stmt.width)
    return replace(stmt, guard=both(stmt.guard, conditions(stmt.src, 1)), valid=valid)


def _guarded(stmt: Stmt, conditions: Callable[[Ref, int], Expr]) -> Stmt:
    assert isinstance(stmt, Move)
    place = stmt.src if stmt.src.buffer.space is Space.GLOBAL else stmt.dst
    return replace(stmt, guard=both(stmt.guard, conditions(place, 1)))


def contiguous_at(program: Program, place: Ref) -> int:
    """Which of the two logical indices of a global place is contiguous in memory."""
    operand = program.gemm.operand(place.buffer.name)
    return operand.dims.index(operand.contiguous)


def narrower(move: Move, contiguous: int, width: int = 1) -> For:
    """A vector access to global memory as a loop of accesses of `width` elements."""
    counted = any(ELEMENT in variables(expr) for expr in exprs_of(move))  # a loop over parts of a vector is around
    at = Var(f"{ELEMENT}_of_part" if counted else ELEMENT)

    def step(ref: Ref) -> Ref:
        index = list(ref.index)
        moved = contiguous if ref.buffer.space is Space.GLOBAL else len(index) - 1
        index[moved] = index[moved] + at * width
        return Ref(ref.buffer, tuple(index))

    part = replace(move, dst=step(move.dst), src=step(move.src), width=width)
    return For(at.name, Const(move.width // width), (part,), unroll=True)
