"""The epilogue as an expression: what C takes of a finished sum, and the loads that this needs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tilewright.dtypes import F32, DType
from tilewright.ir.buffer import Buffer, Space
from tilewright.ir.expr import (
    ONE,
    Apply,
    Binary,
    Cast,
    Const,
    Expr,
    Fma,
    Load,
    Op,
    RandomNumber,
    Ref,
    Select,
    Var,
    binary,
    both,
    real,
)
from tilewright.ir.stmt import Alloc, Assign, Body, For, Move
from tilewright.ir.visit import rebuild, sub_exprs
from tilewright.problem.epilogue import Epilogue
from tilewright.problem.functions import Function, Operation
from tilewright.problem.gemm import LARGEST_FACTOR
from tilewright.problem.values import Added, AddedName, evaluate

ALPHA, BETA = Var("alpha", F32), Var("beta", F32)

PAIR_SIGN = Var("pair_sign", F32)
"""What the value of the other column of a pair is multiplied by: -1 in even columns, 1 in odd ones."""

PLACE = (Var("row_of_c"), Var("first_column_of_c"), Var("column_behind_first"))
"""The leaves of the value of an element that stand for its place: its row, the column of the first of the neighbours
that a thread finishes with it, and its number among them."""

OTHER = "_of_other"
"""Behind the name of a leaf: of the other column of a pair."""

_ELEMENT = "element"


def _exchanged(value: Expr, leaves: frozenset[str]) -> Expr:
    """The value of the other column of a pair: with its leaves in place of the running one's, and the reverse."""
    if isinstance(value, Var):
        if value == PAIR_SIGN:
            return Binary(Op.MUL, real(-1.0), PAIR_SIGN)
        name = value.name + OTHER if value.name in leaves else value.name.removesuffix(OTHER)
        return Var(name, value.dtype)
    return rebuild(value, tuple(_exchanged(part, leaves) for part in sub_exprs(value)))


@dataclass(frozen=True, slots=True)
class Computed:
    """The value of an element of C as an expression in f32. totals: its finished sums. elements: what is read for it,
    by name, in registers. addend: the element that beta multiplies; None where none is added. scaled: whether alpha is
    still to be applied."""

    totals: tuple[Expr, ...]
    elements: Mapping[AddedName, Expr]
    addend: Expr | None
    scaled: bool = True

    def accumulated(self, number: int) -> Expr:
        return as_f32(self.totals[number])

    def element(self, operand: Added) -> Expr:
        return as_f32(self.elements[operand.name])

    def times_alpha(self, value: Expr) -> Expr:
        return Binary(Op.MUL, ALPHA, value) if self.scaled else value

    def plus_beta_times(self, value: Expr, matrix: str) -> Expr:
        return value if self.addend is None else Fma(BETA, as_f32(self.addend), value)

    def constant(self, number: float) -> Expr:
        return real(number)

    def factor(self, name: str) -> Expr:
        return Var(name, F32)

    def combined(self, operation: Operation, a: Expr, b: Expr) -> Expr:
        match operation:
            case Operation.MINIMUM:
                return Select(_is_least(a, b), a, b)
            case Operation.MAXIMUM:
                return Select(_is_least(b, a), a, b)
            case Operation.TIMES if isinstance(a, Binary) and (a.op, a.a) == (Op.MUL, ALPHA):
                return Binary(Op.MUL, a.b, Binary(Op.MUL, ALPHA, b))  # once for all elements with that factor
            case _:
                return Binary(_OPS[operation], a, b)

    def applied(self, function: Function, value: Expr) -> Expr:
        return Apply(function, value)

    def where(self, condition: Expr, a: Expr, b: Expr) -> Expr:
        return Select(condition, a, b)

    def rounded(self, dtype: DType, value: Expr) -> Expr:
        return Cast(F32, Cast(dtype, value))

    def drawn(self, seed: Expr, offset: Expr) -> Expr:
        return RandomNumber(seed, offset, *PLACE)

    def rotated(self, value: Expr) -> Expr:
        leaves = (*self.totals, *self.elements.values(), self.addend)
        names = frozenset(leaf.name for leaf in (*leaves, *PLACE) if isinstance(leaf, Var))
        return Binary(Op.MUL, PAIR_SIGN, _exchanged(value, names))


_OPS: Mapping[Operation, Op] = {
    Operation.PLUS: Op.ADD,
    Operation.MINUS: Op.SUB,
    Operation.TIMES: Op.MUL,
    Operation.OVER: Op.DIV,
    Operation.LESS: Op.LT,
    Operation.AT_MOST: Op.LE,
    Operation.EQUAL: Op.EQ,
    Operation.UNEQUAL: Op.NE,
    Operation.BOTH: Op.LAND,
    Operation.EITHER: Op.LOR,
}


def _is_least(a: Expr, b: Expr) -> Expr:
    """Whether the minimum of two numbers is `a`: it is also where that is NaN, so that NaN is not lost. Where `b` is
    NaN, no comparison holds."""
    below = Binary(Op.LE, a, b)
    return Binary(Op.LOR, below, Binary(Op.NE, a, a))


def as_format(value: Expr, dtype: DType) -> Expr:
    """A value rounded to a format."""
    return value if value.dtype is dtype else Cast(dtype, value)


def as_f32(value: Expr) -> Expr:
    """The value in the format in which results are scaled."""
    return as_format(value, F32)


def finite_magnitude(value: Expr) -> Expr:
    """The magnitude of a number in f32 that is finite; 0 for infinities and NaN."""
    finite = both(Binary(Op.LE, real(-LARGEST_FACTOR), value), Binary(Op.LE, value, real(LARGEST_FACTOR)))
    return Select(finite, Binary(Op.MAX, value, Binary(Op.MUL, value, real(-1.0))), real(0.0))


def store_finished(
    epilogue: Epilogue,
    out: DType,
    total: Callable[[Expr], Expr],
    place_of: Callable[[str], Ref],
    *,
    width: int = 1,
    guard: Expr | None = None,
) -> Body:
    """`width` neighbours of a row of C. total: the sum of each. place_of: the first element of C, and of each operand
    of the epilogue. guard: where C is written, and anything is read for it."""
    element: Expr = Const(0) if width == 1 else Var(_ELEMENT)
    value, old = (Buffer(name, Space.REGISTER, out, (width,)) for name in ("value", "old"))
    read = both(guard, binary(Op.NE, BETA, real(0)))
    load = Move(Ref(old, (Const(0),)), place_of(epilogue.addend), width, read, origin="C")
    body: Body = (Alloc(value), Alloc(old), load)
    elements: dict[AddedName, Expr] = {}
    for operand in epilogue.reads:
        count = 1 if operand.along == "m" or operand.single else width
        held = Buffer(f"{operand.name}_held", Space.REGISTER, operand.dtype or out, (count,))
        body += (Alloc(held), Move(Ref(held, (Const(0),)), place_of(operand.name), count, guard, origin="C"))
        elements[operand.name] = Load(held, (element if count > 1 else Const(0),))
    result = evaluate(epilogue.value, Computed((total(element),), elements, Load(old, (element,))))
    assign = Assign(Ref(value, (element,)), as_format(result, out), origin="C")
    made: Body = (assign,) if width == 1 else (For(_ELEMENT, ONE * width, (assign,), unroll=True),)
    return (*body, *made, Move(place_of("C"), Ref(value, (Const(0),)), width, guard, origin="C"))
