"""What is done with a finished sum: `C = activation(alpha * sum * scales + beta * R + bias)`.

R is C itself, or a matrix of its own (`residual`). A bias is one number for each column (`bias="n"`, as in a linear
layer) or for each row (`bias="m"`), in the format of C. A scale is in f32: one number for each row ("m"), one for each
column ("n"), or one for all of A ("a") or of B ("b"); each lies in memory, where the kernel reads it.

An `Epilogue` says two things, and every reader asks for these alone: the list of what it reads (`operands`), and an
expression over that (`value`). The reference in float64, the error bound, emitted kernels and texts each give the nodes
of the expression their own `Meaning`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Literal, Protocol, TypeVar, assert_never

import numpy as np

from tilewright.dtypes import F32, Array, DType

STEEPEST = 1.13
"""No activation here is steeper: GELU reaches a slope of 1.129 at sqrt(2)."""


class Activation(Enum):
    """A function of one number, by the name that the emitted text gives it."""

    RELU = "relu"
    GELU = "gelu"
    GELU_TANH = "gelu_tanh"
    SILU = "silu"

    def __repr__(self) -> str:
        return f"Activation.{self.name}"

    def of(self, x: Array) -> Array:
        """The function in float64; NaN stays NaN.

        >>> Activation.RELU.of(np.array([-1.0, 2.0])).tolist(), round(float(Activation.SILU.of(np.array(1.0))), 6)
        ([0.0, 2.0], 0.731059)
        """
        x = np.asarray(x, np.float64)
        with np.errstate(over="ignore", invalid="ignore"):
            match self:
                case Activation.RELU:
                    result: Array = np.where(x < 0, 0.0, x)
                case Activation.GELU:
                    result = 0.5 * x * (1 + _erf(x / math.sqrt(2)))
                case Activation.GELU_TANH:
                    result = 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
                case Activation.SILU:
                    result = x / (1 + np.exp(-x))
            return result


def _erf(x: Array) -> Array:
    return np.asarray(np.vectorize(math.erf, otypes=[np.float64])(x) if x.size else x)


Along = Literal["m", "n"]
Scale = Literal["m", "n", "a", "b"]
"""What there is one scale for: each row or column of C, or all of A or B."""

AddedName = Literal["bias", "residual", "scale_m", "scale_n", "scale_a", "scale_b"]
VECTORS: frozenset[str] = frozenset({"bias", "scale_m", "scale_n", "scale_a", "scale_b"})
"""Those that all problems of a batch share."""


@dataclass(frozen=True, slots=True)
class Added:
    """A matrix or vector that an epilogue reads beside C, with the index of C.

    along: the dimension for each index of which a vector has a number; None for a matrix that lies as C does, but for a
    leading dimension of its own. dtype: None for that of C. single: a vector of one number, which belongs to every
    index.
    """

    name: AddedName
    along: Along | None = None
    dtype: DType | None = None
    single: bool = False

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
class Plus:
    """`a + b`."""

    a: Value
    b: Value


@dataclass(frozen=True, slots=True)
class Times:
    """`a * b`."""

    a: Value
    b: Value


@dataclass(frozen=True, slots=True)
class Applied:
    """A function of a value."""

    function: Activation
    value: Value


Value = Accumulated | Element | TimesAlpha | PlusBetaTimes | Plus | Times | Applied

T = TypeVar("T")


class Meaning(Protocol[T]):
    """What the nodes of a value stand for: arrays, bounds, expressions of a kernel, text."""

    def accumulated(self, number: int) -> T: ...

    def element(self, operand: Added) -> T: ...

    def times_alpha(self, value: T) -> T: ...

    def plus_beta_times(self, value: T, matrix: Literal["C", "residual"]) -> T: ...

    def plus(self, a: T, b: T) -> T: ...

    def times(self, a: T, b: T) -> T: ...

    def applied(self, function: Activation, value: T) -> T: ...


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
        case Plus():
            return meaning.plus(evaluate(value.a, meaning), evaluate(value.b, meaning))
        case Times():
            return meaning.times(evaluate(value.a, meaning), evaluate(value.b, meaning))
        case Applied():
            return meaning.applied(value.function, evaluate(value.value, meaning))
    assert_never(value)


def _factor(text: str) -> str:
    """In parentheses, if it is a sum.

    >>> _factor("a + b"), _factor("a * f(b + c)")
    ('(a + b)', 'a * f(b + c)')
    """
    depth = 0
    for letter in text:
        depth += (letter == "(") - (letter == ")")
        if letter == "+" and depth == 0:
            return f"({text})"
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

    def plus(self, a: str, b: str) -> str:
        return f"{a} + {b}"

    def times(self, a: str, b: str) -> str:
        return f"{_factor(a)} * {_factor(b)}"

    def applied(self, function: Activation, value: str) -> str:
        return f"{function.value}({value})"


@dataclass(frozen=True, slots=True)
class Exact:
    """A value in float64. totals: the finished sums; matrix: the elements of an operand, each at its place in C."""

    totals: tuple[Array, ...]
    alpha: float
    beta: float
    matrix: Callable[[AddedName | Literal["C"]], Array]

    def accumulated(self, number: int) -> Array:
        return self.totals[number]

    def element(self, operand: Added) -> Array:
        return self.matrix(operand.name)

    def times_alpha(self, value: Array) -> Array:
        return self.alpha * value

    def plus_beta_times(self, value: Array, matrix: Literal["C", "residual"]) -> Array:
        return value if self.beta == 0 else value + self.beta * self.matrix(matrix)

    def plus(self, a: Array, b: Array) -> Array:
        return a + b

    def times(self, a: Array, b: Array) -> Array:
        return a * b

    def applied(self, function: Activation, value: Array) -> Array:
        return function.of(value)


@dataclass(frozen=True, slots=True)
class Epilogue:
    """bias: the dimension along which it runs. residual: whether R is another matrix than C. scale: what has
    scales: a dimension for each index, or a whole operand."""

    bias: Along | None = None
    residual: bool = False
    activation: Activation | None = None
    scale: tuple[Scale, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.operands) or self.activation is not None

    @property
    def operands(self) -> tuple[Added, ...]:
        """What it reads beside C, in the order of a kernel's arguments."""
        bias = (Added("bias", self.bias),) if self.bias else ()
        return (*bias, *((Added("residual"),) if self.residual else ()), *self._scales)

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
        for scale in self._scales:
            value = Times(value, Element(scale))
        value = PlusBetaTimes(value, self.addend)
        if self.bias:
            value = Plus(value, Element(Added("bias", self.bias)))
        return value if self.activation is None else Applied(self.activation, value)

    @property
    def _scales(self) -> tuple[Added, ...]:
        known: dict[Scale, Added] = {
            "a": Added("scale_a", "n", F32, single=True),
            "b": Added("scale_b", "n", F32, single=True),
            "m": Added("scale_m", "m", F32),
            "n": Added("scale_n", "n", F32),
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
        return ", ".join([*words, *([self.activation.value] if self.activation else [])])


PLAIN = Epilogue()
"""C = alpha * sum + beta * C."""
