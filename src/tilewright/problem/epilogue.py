"""What is done with a finished sum: `C = activation(alpha * sum * scales + beta * R + bias)`, or any function of it.

R is C itself, or a matrix of its own (`residual`). A bias is one number for each column (`bias="n"`, as in a linear
layer) or for each row (`bias="m"`), in the format of C. A scale is in f32: one number for each row ("m"), one for each
column ("n"), or one for all of A ("a") or of B ("b"); each lies in memory, where the kernel reads it.
A function takes what these make of the sum, other accumulators, and operands of any name: matrices, vectors, numbers.

An `Epilogue` says two things, and every reader asks for these alone: the list of what it reads (`operands`), and an
expression over that (`value`). The reference in float64, the error bound, emitted kernels and texts each give the nodes
of the expression their own `Meaning`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol, TypeVar, assert_never

import numpy as np

from tilewright.dtypes import F32, Array, DType
from tilewright.problem.functions import Activation, Function, Operation

Along = Literal["m", "n"]
Scale = Literal["m", "n", "a", "b"]
"""What there is one scale for: each row or column of C, or all of A or B."""

AddedName = str
"""Of what an epilogue reads: one of READY_MADE, or one that a function gives it."""

READY_MADE: tuple[AddedName, ...] = ("bias", "residual", "scale_m", "scale_n", "scale_a", "scale_b")


@dataclass(frozen=True, slots=True)
class Added:
    """A matrix or vector that an epilogue reads beside C, with the index of C.

    along: the dimension for each index of which a vector has a number; None for a matrix that lies as C does, but for a
    leading dimension of its own. dtype: None for that of C. single: a vector of one number, which belongs to every
    index. own: each problem of a batch has a vector of its own.
    """

    name: AddedName
    along: Along | None = None
    dtype: DType | None = None
    single: bool = False
    own: bool = False

    @property
    def is_vector(self) -> bool:
        return self.along is not None

    @property
    def described(self) -> str:
        """What there is one number for, for people."""
        if self.single:
            return "one number"
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


Value = Accumulated | Element | TimesAlpha | PlusBetaTimes | Constant | Factor | Combined | Applied | Where | Rounded

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
    assert_never(value)


def leaves_of(value: Value) -> Iterator[Accumulated | Element | Constant | Factor]:
    """The leaves of a value, from left to right."""
    match value:
        case Accumulated() | Element() | Constant() | Factor():
            yield value
        case TimesAlpha() | PlusBetaTimes() | Applied() | Rounded():
            yield from leaves_of(value.value)
        case Combined():
            yield from leaves_of(value.a)
            yield from leaves_of(value.b)
        case Where():
            for one in (value.condition, value.a, value.b):
                yield from leaves_of(one)


def with_leaves(value: Value, change: Callable[[Accumulated | Element], Value]) -> Value:
    """The value over other sums and elements."""
    match value:
        case Accumulated() | Element():
            return change(value)
        case Constant() | Factor():
            return value
        case TimesAlpha() | PlusBetaTimes() | Applied() | Rounded():
            return replace(value, value=with_leaves(value.value, change))
        case Combined():
            return Combined(value.operation, with_leaves(value.a, change), with_leaves(value.b, change))
        case Where():
            return Where(*(with_leaves(one, change) for one in (value.condition, value.a, value.b)))
    assert_never(value)


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


@dataclass(frozen=True, slots=True)
class Epilogue:
    """bias: the dimension along which it runs. residual: whether R is another matrix than C. scale: what has
    scales: a dimension for each index, or a whole operand. twice: the product of all scales is a factor twice, so that
    large and small ones meet before either makes a sum overflow. function: of C as all of these make it, which it has
    as accumulator 0, of alpha times other accumulators, and of operands of its own."""

    bias: Along | None = None
    residual: bool = False
    activation: Activation | None = None
    scale: tuple[Scale, ...] = ()
    twice: bool = False
    function: Value | None = None

    def __bool__(self) -> bool:
        return bool(self.operands) or self.activation is not None or self.function is not None

    @property
    def operands(self) -> tuple[Added, ...]:
        """What it reads beside C, in the order of a kernel's arguments."""
        bias = (Added("bias", self.bias),) if self.bias else ()
        return (*bias, *((Added("residual"),) if self.residual else ()), *self._scales, *self.named)

    @property
    def named(self) -> tuple[Added, ...]:
        """The operands of the function."""
        found = (leaf.operand for leaf in self._leaves if isinstance(leaf, Element))
        return tuple(dict.fromkeys(found))

    @property
    def factors(self) -> tuple[str, ...]:
        """The names of the scalars of the function, in the order of a kernel's arguments."""
        return tuple(dict.fromkeys(leaf.name for leaf in self._leaves if isinstance(leaf, Factor)))

    @property
    def accumulators(self) -> int:
        """Sums that an element of C is made of."""
        return 1 + max((leaf.number for leaf in self._leaves if isinstance(leaf, Accumulated)), default=0)

    @property
    def _leaves(self) -> Iterator[Accumulated | Element | Constant | Factor]:
        return iter(()) if self.function is None else leaves_of(self.function)

    @property
    def matrices(self) -> tuple[Added, ...]:
        """The operands that have a leading dimension."""
        return tuple(operand for operand in self.operands if not operand.is_vector)

    @property
    def addend(self) -> Literal["C", "residual"]:
        """The matrix that beta multiplies."""
        return "residual" if self.residual else "C"

    @property
    def reads(self) -> tuple[Added, ...]:
        """What is read for each element, whatever beta is."""
        return tuple(operand for operand in self.operands if operand.name != self.addend)

    @property
    def value(self) -> Value:
        """An element of C, before it is rounded."""
        value: Value = TimesAlpha(Accumulated())
        if self.twice:
            first, *others = self._scales
            together: Value = Element(first)
            for scale in others:
                together = Combined(Operation.TIMES, together, Element(scale))
            value = Combined(Operation.TIMES, Combined(Operation.TIMES, value, together), together)
        else:
            for scale in self._scales:
                value = Combined(Operation.TIMES, value, Element(scale))
        value = PlusBetaTimes(value, self.addend)
        if self.bias:
            value = Combined(Operation.PLUS, value, Element(Added("bias", self.bias)))
        value = value if self.activation is None else Applied(self.activation, value)
        return value if self.function is None else _over(self.function, value)

    @property
    def _scales(self) -> tuple[Added, ...]:
        known: dict[Scale, Added] = {
            "a": Added("scale_a", "n", F32, single=True),
            "b": Added("scale_b", "n", F32, single=True),
            "m": Added("scale_m", "m", F32, own=self.twice),
            "n": Added("scale_n", "n", F32, own=self.twice),
        }
        return tuple(scale for of, scale in known.items() if of in self.scale)

    def formula(self, *totals: str, indexed: bool = False) -> str:
        """C as text.

        >>> Epilogue(bias="n", activation=Activation.RELU, scale=("m",)).formula("A @ B")
        'relu(alpha * A @ B * scale_m + beta * C + bias)'
        """
        return evaluate(self.value, Formula(totals, indexed))

    def __str__(self) -> str:
        words = [f"bias along {self.bias}"] if self.bias else []
        words += ["residual"] if self.residual else []
        words += [f"scale along {of}" if of in ("m", "n") else f"scale of {of.upper()}" for of in self.scale]
        words += [self.activation.value] if self.activation else []
        return ", ".join([*words, *(["a function"] if self.function is not None else [])])


def rounded_to(dtype: DType, value: Array) -> Array:
    """Numbers rounded to f32 and then to a format, in float64."""
    with np.errstate(over="ignore"):
        stored = dtype.encode(np.asarray(value, np.float32))
    found: Array = np.asarray(dtype.decode(stored), np.float64)
    return found


def _over(function: Value, first: Value) -> Value:
    """A function of a value in place of accumulator 0, and of alpha times the others."""

    def change(leaf: Accumulated | Element) -> Value:
        if isinstance(leaf, Element):
            return leaf
        return TimesAlpha(leaf) if leaf.number else first

    return with_leaves(function, change)


PLAIN = Epilogue()
"""C = alpha * sum + beta * C."""
