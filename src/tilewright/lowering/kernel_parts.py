"""Small parts that several passes build alike."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from tilewright.dtypes import DType
from tilewright.ir.buffer import Buffer, Space
from tilewright.ir.expr import HERE, ZERO, Const, Env, Expr, Ref, Var
from tilewright.ir.program import Axis, Program
from tilewright.ir.stmt import Body, For, If
from tilewright.ir.tiles import Span
from tilewright.ir.visit import map_exprs, rewrite, substitute
from tilewright.lowering.coordinates import matrix_of, origin_of
from tilewright.problem.gemm import OperandName
from tilewright.problem.values import AddedName

ELEMENT = "element"
"""The variable that counts the elements of one vector."""


def global_place(program: Program, name: OperandName | AddedName, row: Expr, col: Expr, env: Env = HERE) -> Ref:
    """A logical element of an operand in global memory. row, col: from the origin of the running work item on."""
    operand = program.gemm.operand(name)
    index = (at + origin_of(program, dim, env) for at, dim in zip((row, col), operand.dims, strict=True))
    return Ref(Buffer(name, Space.GLOBAL, operand.dtype, (), operand.dims), (*index, *matrix_of(program, name, env)))


def is_matrix(place: Ref) -> bool:
    """Whether a place is in an operand, whose rows and columns it names, and not in a workspace."""
    return place.buffer.space is Space.GLOBAL and bool(place.buffer.axes)


def beside(program: Program, place: Ref, name: AddedName, element: Expr = ZERO) -> Ref:
    """The element of an added operand that belongs to an element of C, or to one further along its contiguous
    dimension."""
    operand, c = program.gemm.operand(name), program.gemm.operand("C")
    index = list(place.index[:2])
    index[c.dims.index(c.contiguous)] += element
    return Ref(Buffer(name, Space.GLOBAL, operand.dtype, (), operand.dims), (*index, *matrix_of(program, name)))


def value_buffer(name: str, dtype: DType, width: int) -> Buffer:
    """The registers one access of `width` elements fills or empties."""
    return Buffer(f"{name}_value", Space.REGISTER, dtype, (width,))


def running_element(width: int) -> Expr:
    """Which element of a vector runs inside `over_elements`."""
    return Var(ELEMENT) if width > 1 else ZERO


def over_elements(width: int, body: Body) -> Body:
    """`body` for each element of a vector, unrolled."""
    return (For(ELEMENT, Const(width), body, unroll=True),) if width > 1 and body else body


def in_pair(number: Expr) -> Expr:
    """The other one of two neighbours. FMA kernels pack accumulators into vectors so: registers of a vector lie side by
    side, and those of a fragment of B too, so that in the same order each column's would lie in one bank, which an FFMA
    reads two of in two clocks and two banks in one (benchmarks/results/register_banks_h200.json).

    >>> from tilewright.ir.visit import simplify
    >>> [simplify(in_pair(Const(number))).value for number in range(4)]
    [1, 0, 3, 2]
    """
    return number // 2 * 2 + 1 - number % 2


def at(body: Body, **values: Expr) -> Body:
    """`body` with variables replaced."""
    return rewrite(body, lambda stmt: (map_exprs(stmt, lambda expr: substitute(expr, values)),))


def over_vectors(axes: tuple[Axis, ...], span: Span, width: int, body: Body) -> Body:
    """`body` for each of these digits, but once for `width` neighbours of a span: there with their first's digits."""
    covered = span.covered(width)
    for axis, values in covered:
        body = every(axis.name, axis.extent or 1, values, body)
    inside = {axis.name for axis, _ in covered}
    return over_digits([axis for axis in axes if axis.name not in inside], body)


def over_digits(axes: Sequence[Axis], body: Body) -> Body:
    """`body` for each value of these digits, the last of them innermost, unrolled."""
    for axis in reversed(axes):
        body = (For(axis.name, Const(axis.extent or 1), body, unroll=True),)
    return body


def every(digit: str, extent: int, width: int, body: Body, apart: int = 1) -> Body:
    """`body` for the first of each `width` values of a digit, which lie `apart`: a loop over vectors, or none where one
    vector covers it."""
    count = extent // width
    number: Expr = Var(f"{digit}_vec") if count > 1 else ZERO
    first = number * width if width == 1 or apart == 1 else number // apart * (apart * width) + number % apart
    body = at(body, **{digit: first})
    return (For(f"{digit}_vec", Const(count), body, unroll=True),) if count > 1 else body


@dataclass(frozen=True)
class Steps:
    """Statements that are made `count` times, for each number of a step: whoever takes them can share them out.

    looped: they stand in a loop over `var`, even a single step.
    """

    var: str
    count: int
    body: Callable[[Expr], Body]
    looped: bool = True

    def whole(self) -> Body:
        return self.some(ZERO, self.count) if self.looped else self.body(ZERO)

    def some(self, first: Expr, count: int) -> Body:
        """`count` steps from `first` on."""
        return (For(self.var, Const(count), self.body(first + Var(self.var)), unroll=True),)


def whole(copies: Iterable[Steps]) -> Body:
    """All steps of all copies, one copy after another."""
    return tuple(stmt for copy in copies for stmt in copy.whole())


def if_any(condition: Expr, body: Body) -> Body:
    """`body` where the condition holds; nothing where there is no body."""
    return (If(condition, body),) if body else ()
