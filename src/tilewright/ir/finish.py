"""The epilogue as an expression: what C takes of a finished sum, and the loads that this needs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tilewright.dtypes import F32, DType
from tilewright.ir.buffer import Buffer, Ref, Space
from tilewright.ir.expr import ONE, Apply, Binary, Cast, Const, Expr, Fma, Load, Op, Var, binary, both, real
from tilewright.ir.stmt import Alloc, Assign, Body, For, Move
from tilewright.problem.epilogue import Activation, Added, AddedName, Epilogue, evaluate

ALPHA, BETA = Var("alpha", F32), Var("beta", F32)

_ELEMENT = "element"


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

    def plus(self, a: Expr, b: Expr) -> Expr:
        return Binary(Op.ADD, a, b)

    def times(self, a: Expr, b: Expr) -> Expr:
        return Binary(Op.MUL, a, b)

    def applied(self, function: Activation, value: Expr) -> Expr:
        return Apply(function, value)


def as_f32(value: Expr) -> Expr:
    """The value in the format in which results are scaled."""
    return value if value.dtype is F32 else Cast(F32, value)


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
    assign = Assign(Ref(value, (element,)), result if out is F32 else Cast(out, result), origin="C")
    made: Body = (assign,) if width == 1 else (For(_ELEMENT, ONE * width, (assign,), unroll=True),)
    return (*body, *made, Move(place_of("C"), Ref(value, (Const(0),)), width, guard, origin="C"))
