"""The value of an element of C as an expression: its nodes, and what readers make of them.

The reference in float64, the error bound, emitted kernels and texts each give the nodes their own `Meaning`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, Protocol, TypeVar, assert_never

import numpy as np

from tilewright.dtypes import Array, DType
from tilewright.problem.functions import Function, Operation
from tilewright.problem.philox import uniform

Along = Literal["m", "n"]

AddedName = str
"""Of what an epilogue reads or writes beside C: one of READY_MADE, or one that a function gives it."""


@dataclass(frozen=True, slots=True)
class Fold:
    """How the values along a dimension become one: added, or the largest, which passes over NaN.

    group: aligned neighbours along that dimension whose sum, or largest, a kernel writes as one partial result; 0 where
    the kernel is not chosen. Partial results of one group lie side by side, group after group. whole: what is left is
    folded as well, to one number. of_tiles: a kernel folds along the other dimension, too: of so many neighbours there,
    so many partial results are left. codes: each group is the scale of codes of that format, which C is made of: the
    largest finite magnitude over the largest number, at least 2**-126; groups are not folded further.
    """

    operation: Literal[Operation.PLUS, Operation.MAXIMUM]
    group: int = 0
    whole: bool = False
    of_tiles: tuple[int, int] = (1, 1)
    codes: DType | None = None

    def of(self, values: Array, axis: int) -> Array:
        """The fold of an array along an axis, which stays with one element."""
        found: Array
        if self.operation is Operation.PLUS:
            found = values.sum(axis=axis, keepdims=True)
        else:
            found = np.fmax.reduce(values, axis=axis, keepdims=True, initial=-np.inf)
        return found


@dataclass(frozen=True, slots=True)
class Added:
    """A matrix or vector that an epilogue reads or writes beside C, with the index of C.

    along: the dimension for each index of which a vector has a number; None for a matrix that lies as C does, but for a
    leading dimension of its own. dtype: None for that of C. single: a vector of one number, which belongs to every
    index. own: each problem of a batch has a vector of its own. fold: a vector that is written: of the partial results
    along the other dimension.
    """

    name: AddedName
    along: Along | None = None
    dtype: DType | None = None
    single: bool = False
    own: bool = False
    fold: Fold | None = None

    @property
    def is_vector(self) -> bool:
        return self.along is not None

    @property
    def described(self) -> str:
        """What there is one number for, for people."""
        if self.single:
            return "one number"
        if self.fold is not None:
            other = {"m": "columns", "n": "rows"}[self.along or "m"]
            return f"one for each {'row' if self.along == 'm' else 'column'} and {self.fold.group} {other}"
        return {"m": "one for each row", "n": "one for each column", None: "M x N"}[self.along]


# -- the value of an element of C --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Accumulated:
    """A finished sum. number: of its accumulator."""

    number: int = 0


@dataclass(frozen=True, slots=True)
class Element:
    """The element of an operand that belongs to that of C."""

    operand: Added


@dataclass(frozen=True, slots=True)
class TimesAlpha:
    """`alpha * value`."""

    value: Value


@dataclass(frozen=True, slots=True)
class PlusBetaTimes:
    """`value + beta * matrix`; the matrix is not read where beta is 0."""

    value: Value
    matrix: Literal["C", "residual"]


@dataclass(frozen=True, slots=True)
class Constant:
    """A number of f32. bits: its text in hexadecimal, which tells 0 from -0."""

    bits: str

    @classmethod
    def of(cls, number: float) -> Constant:
        """The number rounded to f32.

        >>> Constant.of(0.1).number
        0.10000000149011612
        """
        with np.errstate(over="ignore"):
            return cls(float(np.float32(number)).hex())

    @property
    def number(self) -> float:
        return float.fromhex(self.bits)


@dataclass(frozen=True, slots=True)
class Factor:
    """A scalar argument of the kernel, in f32."""

    name: str


@dataclass(frozen=True, slots=True)
class Combined:
    """`a operation b`, computed in f32."""

    operation: Operation
    a: Value
    b: Value


@dataclass(frozen=True, slots=True)
class Applied:
    """A function of a value."""

    function: Function
    value: Value


@dataclass(frozen=True, slots=True)
class Where:
    """`a` where the condition is true, and else `b`."""

    condition: Value
    a: Value
    b: Value


@dataclass(frozen=True, slots=True)
class Rounded:
    """A value rounded to a format that is narrower than f32."""

    dtype: DType
    value: Value


@dataclass(frozen=True, slots=True)
class Rotated:
    """A value turned by a quarter in its pair of columns 2j and 2j + 1: minus that of 2j + 1, and that of 2j."""

    value: Value


@dataclass(frozen=True, slots=True)
class Drawn:
    """A uniform number in [0, 1) of each element, from a counter (`problem.philox`)."""

    seed: Constant | Factor
    offset: Constant | Factor


Value = (
    Accumulated
    | Element
    | TimesAlpha
    | PlusBetaTimes
    | Constant
    | Factor
    | Combined
    | Applied
    | Where
    | Rounded
    | Rotated
    | Drawn
)

T = TypeVar("T")


class Meaning(Protocol[T]):
    """What the nodes of a value stand for: arrays, bounds, expressions of a kernel, text."""

    def accumulated(self, number: int) -> T: ...

    def element(self, operand: Added) -> T: ...

    def times_alpha(self, value: T) -> T: ...

    def plus_beta_times(self, value: T, matrix: Literal["C", "residual"]) -> T: ...

    def constant(self, number: float) -> T: ...

    def factor(self, name: str) -> T: ...

    def combined(self, operation: Operation, a: T, b: T) -> T: ...

    def applied(self, function: Function, value: T) -> T: ...

    def where(self, condition: T, a: T, b: T) -> T: ...

    def rounded(self, dtype: DType, value: T) -> T: ...

    def rotated(self, value: T) -> T: ...

    def drawn(self, seed: T, offset: T) -> T: ...


def evaluate(value: Value, meaning: Meaning[T]) -> T:
    """What a value comes to, its nodes taken as `meaning` takes them."""
    match value:
        case Accumulated():
            return meaning.accumulated(value.number)
        case Element():
            return meaning.element(value.operand)
        case TimesAlpha():
            return meaning.times_alpha(evaluate(value.value, meaning))
        case PlusBetaTimes():
            return meaning.plus_beta_times(evaluate(value.value, meaning), value.matrix)
        case Constant():
            return meaning.constant(value.number)
        case Factor():
            return meaning.factor(value.name)
        case Combined():
            return meaning.combined(value.operation, evaluate(value.a, meaning), evaluate(value.b, meaning))
        case Applied():
            return meaning.applied(value.function, evaluate(value.value, meaning))
        case Where():
            condition, a, b = (evaluate(one, meaning) for one in (value.condition, value.a, value.b))
            return meaning.where(condition, a, b)
        case Rounded():
            return meaning.rounded(value.dtype, evaluate(value.value, meaning))
        case Rotated():
            return meaning.rotated(evaluate(value.value, meaning))
        case Drawn():
            return meaning.drawn(evaluate(value.seed, meaning), evaluate(value.offset, meaning))
    assert_never(value)


def parts_of(value: Value) -> tuple[Value, ...]:
    """What a value is made of."""
    match value:
        case TimesAlpha() | PlusBetaTimes() | Applied() | Rounded() | Rotated():
            return (value.value,)
        case Combined():
            return value.a, value.b
        case Where():
            return value.condition, value.a, value.b
        case Drawn():
            return value.seed, value.offset
        case _:
            return ()


def inside(value: Value) -> Iterator[Value]:
    """A value and all that it is made of, from left to right."""
    yield value
    for part in parts_of(value):
        yield from inside(part)


def leaves_of(value: Value) -> Iterator[Accumulated | Element | Constant | Factor]:
    """The leaves of a value, from left to right."""
    return (one for one in inside(value) if isinstance(one, Accumulated | Element | Constant | Factor))


def with_leaves(value: Value, change: Callable[[Accumulated | Element], Value]) -> Value:
    """The value over other sums and elements."""
    if isinstance(value, Accumulated | Element):
        return change(value)
    if isinstance(value, Drawn):
        return value
    node: Any = value
    own = [field.name for field in fields(node) if isinstance(getattr(node, field.name), Value)]
    changed: Value = replace(node, **{name: with_leaves(getattr(node, name), change) for name in own})
    return changed


_SUMS = ("+", "-", "<", "<=", "==", "!=", "&&", "||", "?")
"""Operators that bind less than a product."""


def _factor(text: str, operators: Sequence[str] = _SUMS) -> str:
    """In parentheses, if it is a sum.

    >>> _factor("a + b"), _factor("a * f(b + c)")
    ('(a + b)', 'a * f(b + c)')
    """
    depth = 0
    for word in text.split(" "):
        if depth == 0 and word in operators:
            return f"({text})"
        depth += word.count("(") - word.count(")")
    return text


@dataclass(frozen=True, slots=True)
class Formula:
    """A value as text. totals: what finished sums are called. indexed: with the indices of matrices and vectors."""

    totals: tuple[str, ...]
    indexed: bool = False

    def accumulated(self, number: int) -> str:
        return self.totals[number]

    def element(self, operand: Added) -> str:
        index = "0" if operand.single else operand.along or "m, n"
        return f"{operand.name}[{index}]" if self.indexed else operand.name

    def times_alpha(self, value: str) -> str:
        return f"alpha * {_factor(value)}"

    def plus_beta_times(self, value: str, matrix: Literal["C", "residual"]) -> str:
        return f"{value} + beta * {matrix}[m, n]" if self.indexed else f"{value} + beta * {matrix}"

    def constant(self, number: float) -> str:
        return f"{number:.9g}"

    def factor(self, name: str) -> str:
        return name

    def combined(self, operation: Operation, a: str, b: str) -> str:
        match operation:
            case Operation.PLUS:
                return f"{a} + {b}"
            case Operation.MINUS:
                return f"{a} - {_factor(b)}"
            case Operation.TIMES:
                return f"{_factor(a)} * {_factor(b)}"
            case Operation.OVER:
                return f"{_factor(a)} / {_factor(b, (*_SUMS, '*', '/', '@'))}"
            case Operation.MINIMUM | Operation.MAXIMUM:
                return f"{operation.value}({a}, {b})"
            case _:
                return f"{_factor(a)} {operation.value} {_factor(b)}"

    def applied(self, function: Function, value: str) -> str:
        return f"{function.value}({value})"

    def where(self, condition: str, a: str, b: str) -> str:
        return f"({condition} ? {a} : {b})"

    def rounded(self, dtype: DType, value: str) -> str:
        return f"{dtype}({value})"

    def rotated(self, value: str) -> str:
        return f"rotated({value})"

    def drawn(self, seed: str, offset: str) -> str:
        return f"uniform({seed}, {offset}, m, n)"


@dataclass(frozen=True, slots=True)
class Exact:
    """A value in float64. totals: the finished sums; matrix: the elements of an operand, each at its place in C.
    factors: the scalar arguments by their names."""

    totals: tuple[Array, ...]
    alpha: float
    beta: float
    matrix: Callable[[AddedName | Literal["C"]], Array]
    factors: Mapping[str, float] = field(default_factory=dict)

    def accumulated(self, number: int) -> Array:
        return self.totals[number]

    def element(self, operand: Added) -> Array:
        return self.matrix(operand.name)

    def times_alpha(self, value: Array) -> Array:
        return self.alpha * value

    def plus_beta_times(self, value: Array, matrix: Literal["C", "residual"]) -> Array:
        return value if self.beta == 0 else value + self.beta * self.matrix(matrix)

    def constant(self, number: float) -> Array:
        return np.asarray(number, np.float64)

    def factor(self, name: str) -> Array:
        return np.asarray(np.float32(self.factors[name]), np.float64)

    def combined(self, operation: Operation, a: Array, b: Array) -> Array:
        return operation.of(a, b)

    def applied(self, function: Function, value: Array) -> Array:
        return function.of(value)

    def where(self, condition: Array, a: Array, b: Array) -> Array:
        return np.where(condition, a, b)

    def rounded(self, dtype: DType, value: Array) -> Array:
        return rounded_to(dtype, value)

    def rotated(self, value: Array) -> Array:
        return rotated_pairs(np.broadcast_to(value, self.totals[0].shape))

    def drawn(self, seed: Array, offset: Array) -> Array:
        return drawn_for(self.totals[0].shape, seed, offset)


def rotated_pairs(values: Array) -> Array:
    """Each pair of neighbours along the last axis turned by a quarter.

    >>> rotated_pairs(np.array([1, 2, 3, 4])).tolist()
    [-2, 1, -4, 3]
    """
    found = np.empty_like(values)
    found[..., 0::2], found[..., 1::2] = -values[..., 1::2], values[..., 0::2]
    return found


def drawn_for(shape: tuple[int, ...], seed: Array, offset: Array) -> Array:
    """The uniform numbers of a result, in float64; the rows of a batch follow each other."""
    rows = np.arange(math.prod(shape[:-1]))[:, None]
    found = uniform(int(seed), int(offset), rows, np.arange(shape[-1]))
    return found.reshape(shape).astype(np.float64)


def rotations_of(value: Value) -> Iterator[Rotated]:
    """The rotations of a value that stand in no other, from left to right."""
    if isinstance(value, Rotated):
        yield value
        return
    for part in parts_of(value):
        yield from rotations_of(part)


def draws_of(value: Value) -> Iterator[Drawn]:
    """The uniform numbers that a value is made of, from left to right."""
    return (one for one in inside(value) if isinstance(one, Drawn))


def folded_array(operation: Literal[Operation.PLUS, Operation.MAXIMUM], along: Along | None, values: Array) -> Array:
    """The fold of an array as a call gives it. along: the dimension of which there is a number for each index, rows of
    shape (..., m, 1), columns of shape (n,); None for one number, of shape (1,)."""
    fold = Fold(operation)
    if along == "m":
        return fold.of(values, -1)
    lines = fold.of(values.reshape(-1, values.shape[-1]), 0)[0]
    return lines if along == "n" else fold.of(lines, 0)


def rounded_to(dtype: DType, value: Array) -> Array:
    """Numbers rounded to f32 and then to a format, in float64."""
    with np.errstate(over="ignore"):
        stored = dtype.encode(np.asarray(value, np.float32))
    found: Array = np.asarray(dtype.decode(stored), np.float64)
    return found
