"""The epilogue as an expression: what C takes of a finished sum, and the loads that this needs."""

from __future__ import annotations

from collections.abc import Callable

from tilewright.dtypes import F32, DType
from tilewright.ir.buffer import Buffer, Ref, Space
from tilewright.ir.expr import ONE, Apply, Binary, Cast, Const, Expr, Fma, Load, Op, Var, binary, both, real
from tilewright.ir.stmt import Alloc, Assign, Body, For, Move
from tilewright.problem.epilogue import Epilogue

ALPHA, BETA = Var("alpha", F32), Var("beta", F32)

_ELEMENT = "element"


def finished(epilogue: Epilogue, total: Expr, old: Expr, bias: Expr | None) -> Expr:
    """`activation(alpha * total + beta * old + bias)` in f32. old: 0 where beta is 0."""
    value: Expr = Fma(BETA, as_f32(old), Binary(Op.MUL, ALPHA, as_f32(total)))
    value = value if bias is None else Binary(Op.ADD, value, as_f32(bias))
    return value if epilogue.activation is None else Apply(epilogue.activation, value)


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
    """`width` neighbours of a row of C. total: the sum of each. place_of: the first element of C, of the residual and
    of the bias. guard: where C is written, and anything is read for it."""
    added = "residual" if epilogue.residual else "C"
    element: Expr = Const(0) if width == 1 else Var(_ELEMENT)
    value, old = (Buffer(name, Space.REGISTER, out, (width,)) for name in ("value", "old"))
    read = both(guard, binary(Op.NE, BETA, real(0)))
    body: Body = (Alloc(value), Alloc(old), Move(Ref(old, (Const(0),)), place_of(added), width, read, origin="C"))
    bias: Expr | None = None
    if epilogue.bias is not None:
        count = width if epilogue.bias == "n" else 1
        held = Buffer("bias_held", Space.REGISTER, out, (count,))
        body += (Alloc(held), Move(Ref(held, (Const(0),)), place_of("bias"), count, guard, origin="C"))
        bias = Load(held, (element if count > 1 else Const(0),))
    result = finished(epilogue, total(element), Load(old, (element,)), bias)
    assign = Assign(Ref(value, (element,)), result if out is F32 else Cast(out, result), origin="C")
    made: Body = (assign,) if width == 1 else (For(_ELEMENT, ONE * width, (assign,), unroll=True),)
    return (*body, *made, Move(place_of("C"), Ref(value, (Const(0),)), width, guard, origin="C"))
