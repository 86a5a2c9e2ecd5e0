"""Expressions: `Expr = Const | Var | Binary | Select | Cast | Lookup | Load | Fma | Apply | RandomNumber`.

Integer expressions index memory; float expressions are arithmetic on registers. The operators `+ - * // % ^ & >> <<`
and the comparisons build nodes and fold constants, so that the formulas of `tilewright.layout` work on expressions
as they do on integers. Integer division and remainder are only ever applied to values of at least 0, where C and
Python agree. `Env` is what names mean where a statement stands: emitters take it instead of having their statements
rewritten.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import lru_cache
from typing import ClassVar, Union

from tilewright.dtypes import BOOL, F32, I32, I64, DType
from tilewright.errors import FormatError
from tilewright.ir.buffer import Buffer, Space
from tilewright.problem.functions import Function


def quotient(a: int, b: int) -> int:
    """`a / b` of C: cut towards zero.

    >>> quotient(-7, 4), quotient(7, 4), quotient(7, -4)
    (-1, 1, -1)
    """
    return a // b if a >= 0 < b else abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def remainder(a: int, b: int) -> int:
    """`a % b` of C: it has the sign of `a`.

    >>> remainder(-7, 4), remainder(7, -4)
    (-3, 3)
    """
    return a - quotient(a, b) * b


class Op(Enum):
    """A binary operator: its text in IR and CUDA alike, its binding strength (higher binds tighter), what it makes of
    integers."""

    ADD = ("+", 9, operator.add)
    SUB = ("-", 9, operator.sub)
    MUL = ("*", 10, operator.mul)
    DIV = ("/", 10, quotient)  # of integers >= 0; cut towards zero, as C does, where one is not
    MOD = ("%", 10, remainder)  # of integers >= 0; with the sign of the dividend, as in C
    SHL = ("<<", 8, operator.lshift)
    SHR = (">>", 8, operator.rshift)
    AND = ("&", 6, operator.and_)
    XOR = ("^", 5, operator.xor)
    LT = ("<", 7.5, operator.lt)
    LE = ("<=", 7.5, operator.le)
    GE = (">=", 7.5, operator.ge)
    EQ = ("==", 7, operator.eq)
    NE = ("!=", 7, operator.ne)
    LAND = ("&&", 3, lambda a, b: bool(a) and bool(b))
    LOR = ("||", 2, lambda a, b: bool(a) or bool(b))
    MIN = ("min", 12, min)
    MAX = ("max", 12, max)

    def __init__(self, text: str, strength: float, of_integers: Callable[[int, int], int]) -> None:
        self.text, self.strength, self.of_integers = text, strength, of_integers

    def __repr__(self) -> str:  # of its name: functions have addresses, which differ from process to process
        return f"Op.{self.name}"

    @property
    def is_comparison(self) -> bool:
        return self in _COMPARISONS


_COMPARISONS = frozenset({Op.LT, Op.LE, Op.GE, Op.EQ, Op.NE, Op.LAND, Op.LOR})


class _Operators:
    """The operators every node shares; each builds a folded `Binary`."""

    __slots__ = ()

    def __add__(self, other: ExprLike) -> Expr:
        return binary(Op.ADD, self, other)

    def __radd__(self, other: ExprLike) -> Expr:
        return binary(Op.ADD, other, self)

    def __sub__(self, other: ExprLike) -> Expr:
        return binary(Op.SUB, self, other)

    def __rsub__(self, other: ExprLike) -> Expr:
        return binary(Op.SUB, other, self)

    def __mul__(self, other: ExprLike) -> Expr:
        return binary(Op.MUL, self, other)

    def __rmul__(self, other: ExprLike) -> Expr:
        return binary(Op.MUL, other, self)

    def __floordiv__(self, other: ExprLike) -> Expr:
        return binary(Op.DIV, self, other)

    def __mod__(self, other: ExprLike) -> Expr:
        return binary(Op.MOD, self, other)

    def __xor__(self, other: ExprLike) -> Expr:
        return binary(Op.XOR, self, other)

    def __and__(self, other: ExprLike) -> Expr:
        return binary(Op.AND, self, other)

    def __rshift__(self, other: ExprLike) -> Expr:
        return binary(Op.SHR, self, other)

    def __lshift__(self, other: ExprLike) -> Expr:
        return binary(Op.SHL, self, other)

    def entry_of(self, table: tuple[int, ...]) -> Expr:
        """`table[self]`."""
        return lookup(table, self)

    def __lt__(self, other: ExprLike) -> Expr:
        return binary(Op.LT, self, other)

    def __le__(self, other: ExprLike) -> Expr:
        return binary(Op.LE, self, other)


@dataclass(frozen=True, slots=True)
class Const(_Operators):
    """A literal."""

    value: int | float
    dtype: DType = I32


@dataclass(frozen=True, slots=True)
class Var(_Operators):
    """A named scalar: a loop variable, a `Let`, a kernel parameter, or a built-in such as `threadIdx.x`."""

    name: str
    dtype: DType = I32


@dataclass(frozen=True, slots=True)
class Binary(_Operators):
    """`a op b`."""

    op: Op
    a: Expr
    b: Expr

    @property
    def dtype(self) -> DType:
        if self.op.is_comparison:
            return BOOL
        return wider(self.a.dtype, self.b.dtype)


@dataclass(frozen=True, slots=True)
class Select(_Operators):
    """`condition ? a : b`; both sides are evaluated, neither touches memory."""

    condition: Expr
    a: Expr
    b: Expr

    @property
    def dtype(self) -> DType:
        return self.a.dtype


@dataclass(frozen=True, slots=True)
class Cast(_Operators):
    """`value` converted to `dtype` (floats round to nearest, ties to even)."""

    dtype: DType
    value: Expr


@dataclass(frozen=True, slots=True)
class Lookup(_Operators):
    """An entry of a table of whole numbers that is part of the kernel: what no formula gives."""

    dtype: ClassVar[DType] = I32
    table: tuple[int, ...]
    index: Expr


@dataclass(frozen=True, slots=True)
class Load(_Operators):
    """The value of one register element. Memory is only read by `Move`."""

    buffer: Buffer
    index: tuple[Expr, ...]

    @property
    def dtype(self) -> DType:
        return self.buffer.dtype


@dataclass(frozen=True, slots=True)
class Fma(_Operators):
    """`a * b + c`, rounded once."""

    a: Expr
    b: Expr
    c: Expr

    @property
    def dtype(self) -> DType:
        return self.c.dtype


@dataclass(frozen=True, slots=True)
class Apply(_Operators):
    """A function of one f32 value, computed in f32."""

    dtype: ClassVar[DType] = F32
    function: Function
    value: Expr


@dataclass(frozen=True, slots=True)
class RandomNumber(_Operators):
    """A uniform number in [0, 1) for a place, from a counter (`problem.philox`). first: the column of a multiple of the
    neighbours that a thread has side by side, 1, 2 or a multiple of 4; element: its column among them."""

    dtype: ClassVar[DType] = F32
    seed: Expr
    offset: Expr
    row: Expr
    first: Expr
    element: Expr


Expr = Union[Const, Var, Binary, Select, Cast, Lookup, Load, Fma, Apply, RandomNumber]  # noqa: UP007  (a name for match statements and docs)
ExprLike = Union[Expr, int, _Operators]  # noqa: UP007

ZERO = Const(0)
ONE = Const(1)
TRUE = Const(1, BOOL)


def wider(a: DType, b: DType) -> DType:
    """The dtype of `a op b`: the one with more bits; floats win over integers. Raises FormatError."""
    if a.is_float != b.is_float:
        return a if a.is_float else b
    if a.bits == b.bits and a is not b:
        raise FormatError(f"Neither {a} nor {b} is the format of a result of both.", hint="cast one to the other.")
    return a if a.bits >= b.bits else b


def as_expr(value: ExprLike) -> Expr:
    """An int as a `Const`; an expression as itself."""
    if isinstance(value, (Const, Var, Binary, Select, Cast, Lookup, Load, Fma, Apply, RandomNumber)):
        return value
    if isinstance(value, int):
        return _literal(value)
    raise TypeError(f"{value!r} is not an expression")


_literal = lru_cache(maxsize=1024, typed=True)(Const)  # a kernel has a thousand, of few values


def real(value: float, dtype: DType = F32) -> Const:
    """A float literal."""
    return Const(float(value), dtype)


def binary(op: Op, a: ExprLike, b: ExprLike) -> Expr:
    """`a op b` with constants folded and neutral elements dropped.

    >>> x = Var("x")
    >>> x * 1 + 0 == x, (x * 4) * 8 == x * 32, Const(6) // 4
    (True, True, Const(value=1, dtype=i32))
    """
    x, y = as_expr(a), as_expr(b)
    if isinstance(x, Const) and isinstance(y, Const) and not (x.dtype.is_float or y.dtype.is_float):
        folded = op.of_integers(int(x.value), int(y.value))
        return Const(int(folded), BOOL if op.is_comparison else wider(x.dtype, y.dtype))
    if isinstance(y, Const) and not y.dtype.is_float:
        simpler = _fold_right(op, x, int(y.value))
        if simpler is not None:
            return simpler
    if isinstance(x, Const) and not x.dtype.is_float:
        if op in (Op.ADD, Op.XOR) and x.value == 0:
            return y
        if op is Op.MUL and x.value in (0, 1):
            return y if x.value == 1 else x
        if op is Op.MUL:  # constants stand on the right
            return binary(op, y, x)
        if op is Op.LAND:
            return y if x.value else x
        if op is Op.LOR:
            return x if x.value else y
    return Binary(op, x, y)


def _fold_right(op: Op, x: Expr, value: int) -> Expr | None:
    """`x op value` for an integer constant on the right, where it is simpler than the node; else None."""
    if value == 0 and op in (Op.ADD, Op.SUB, Op.XOR, Op.SHL, Op.SHR):
        return x
    if value == 1 and op in (Op.MUL, Op.DIV):
        return x
    if (value == 0 and op is Op.MUL) or (value == 1 and op is Op.MOD):
        return ZERO
    if op is Op.LAND:
        return x if value else Const(0, BOOL)
    if op is Op.LOR:
        return TRUE if value else x
    if op is Op.MUL and isinstance(x, Binary) and x.op is Op.MUL and isinstance(x.b, Const):
        return binary(Op.MUL, x.a, int(x.b.value) * value)
    return None


def lookup(table: tuple[int, ...], index: ExprLike) -> Expr:
    """`table[index]`, folded.

    >>> lookup((3, 5), 1)
    Const(value=5, dtype=i32)
    """
    at = as_expr(index)
    return Const(table[int(at.value)]) if isinstance(at, Const) else Lookup(table, at)


def both(*conditions: Expr | None) -> Expr:
    """The conjunction, flat and in order; `TRUE` when there is nothing to hold. None holds always."""
    result: Expr = TRUE
    for condition in conditions:
        for part in _conjuncts(condition):
            result = binary(Op.LAND, result, part)
    return result


def _conjuncts(condition: Expr | None) -> tuple[Expr, ...]:
    if condition is None:
        return ()
    if isinstance(condition, Binary) and condition.op is Op.LAND:
        return (*_conjuncts(condition.a), *_conjuncts(condition.b))
    return (condition,)


def ceil_div(a: Expr, b: int) -> Expr:
    """`ceil(a / b)` as an expression."""
    return a if b == 1 else binary(Op.DIV, a + (b - 1), b)


def room_of(name: str) -> Var:
    """Elements from a rank's buffer to the next rank's, for whoever has all of them side by side."""
    return Var(f"{name}_room", I64)


def _wide(offset: Expr) -> Expr:
    return offset if offset.dtype is I64 else Cast(I64, offset)


@dataclass(frozen=True, slots=True)
class Ref:
    """A place in a buffer: where an access of one or more consecutive elements begins."""

    buffer: Buffer
    index: tuple[Expr, ...]

    @property
    def flat(self) -> Expr:
        """The element offset in the C array."""
        if self.buffer.of_ranks:
            rank, inside = self.index
            return Binary(Op.MUL, Cast(I64, rank), room_of(self.buffer.name)) + _wide(inside)
        if self.buffer.space is Space.GLOBAL:
            *base, inside = self.index
            return base[0] + _wide(inside) if base else inside
        offset: Expr = ZERO
        for position, stride in zip(self.index, self.buffer.strides, strict=True):
            offset = offset + position * stride
        return offset


@dataclass(frozen=True, slots=True)
class Env:
    """The place of a statement in its loops, as IR values.

    digits: values of loop digits, where they are not the variables of the loops around. stage: of the ring that the
    statement fills or reads. there: whether the tile that is copied exists; where it is false, zeros are written.
    in_prologue: whether the statement stands in front of its pipelined loop.
    """

    digits: Mapping[str, Expr] = field(default_factory=dict)
    stage: Expr | None = None
    there: Expr | None = None
    in_prologue: bool = False

    def __getitem__(self, digit: str) -> Expr:
        return self.digits.get(digit, Var(digit))

    def at(self, **digits: Expr) -> Env:
        """The same place with other values of some digits."""
        return replace(self, digits={**self.digits, **digits})

    def in_stage(self, stage: Expr) -> Env:
        """The same place in another stage of the ring."""
        return replace(self, stage=stage)


HERE = Env()
"""Inside the loops, each at its own variable."""
