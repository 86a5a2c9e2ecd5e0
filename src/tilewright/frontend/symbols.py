"""Symbols: what a function of the epilogue is called with, and what it makes of them."""

from __future__ import annotations

import linecache
import numbers
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tilewright.dtypes import DType
from tilewright.errors import ProblemError
from tilewright.problem.functions import Elementary, Function, Operation
from tilewright.problem.philox import LARGEST_SEED
from tilewright.problem.values import Along, Applied, Combined, Constant, Drawn, Factor, Rotated, Rounded, Value, Where
from tilewright.units import type_name

MOST_OPERATIONS = 400
"""Of an expression, each counted as often as kernels evaluate it."""

PACKAGE = str(Path(__file__).parent)


class TraceError(ProblemError):
    """A function that cannot be traced; its place is the line of the function."""


def refused(headline: str, **more: str) -> TraceError:
    """An error at the line of the function that runs."""
    frame = sys._getframe()
    while frame.f_back is not None and frame.f_code.co_filename.startswith(PACKAGE):
        frame = frame.f_back
    return TraceError(headline, place=place_of(frame.f_code.co_filename, frame.f_lineno), **more)


def place_of(path: str, line: int) -> str:
    text = linecache.getline(path, line).strip()
    return f"{Path(path).name}:{line}" + (f": {text}" if text else "")


def _of_two(operation: Operation, *, swapped: bool = False) -> Callable[[Symbol, Any], Symbol]:
    """The method of an operator of Python. swapped: the other operand comes first."""

    def method(self: Symbol, other: Any) -> Symbol:
        return combined(operation, *((other, self) if swapped else (self, other)))

    return method


class Symbol:
    """A number, or a truth, of each element of the result, of which an expression is made.

    Operators are those of Python; `tilewright.ops` has the functions.
    """

    __slots__ = ("is_truth", "size", "value")
    __array_ufunc__ = None  # so that arrays of NumPy leave operators to this class, which says what is wrong
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, value: Value, size: int = 1, *, is_truth: bool = False) -> None:
        self.value, self.size, self.is_truth = value, size, is_truth
        if size > MOST_OPERATIONS:
            raise refused(
                f"The function is more than {MOST_OPERATIONS} operations for each element.",
                note="what is used twice is computed twice.",
                hint="compute a part of it apart, and pass it as an operand.",
            )

    __add__, __radd__ = _of_two(Operation.PLUS), _of_two(Operation.PLUS, swapped=True)
    __sub__, __rsub__ = _of_two(Operation.MINUS), _of_two(Operation.MINUS, swapped=True)
    __mul__, __rmul__ = _of_two(Operation.TIMES), _of_two(Operation.TIMES, swapped=True)
    __truediv__, __rtruediv__ = _of_two(Operation.OVER), _of_two(Operation.OVER, swapped=True)
    __lt__, __gt__ = _of_two(Operation.LESS), _of_two(Operation.LESS, swapped=True)
    __le__, __ge__ = _of_two(Operation.AT_MOST), _of_two(Operation.AT_MOST, swapped=True)
    __eq__, __ne__ = _of_two(Operation.EQUAL), _of_two(Operation.UNEQUAL)  # type: ignore[assignment]
    __and__, __or__ = _of_two(Operation.BOTH), _of_two(Operation.EITHER)
    minimum, maximum = _of_two(Operation.MINIMUM), _of_two(Operation.MAXIMUM)

    def __pow__(self, exponent: Any) -> Symbol:
        return _power(self, exponent)

    def __neg__(self) -> Symbol:
        return applied(Elementary.NEGATIVE, self)

    def __pos__(self) -> Symbol:
        return self

    def __abs__(self) -> Symbol:
        return applied(Elementary.ABSOLUTE, self)

    def __bool__(self) -> bool:
        raise refused(
            "The function branches on a value that differs from element to element.",
            hint="tilewright.ops.where(condition, a, b) chooses; & and | combine conditions; maximum and minimum are "
            "functions.",
        )

    def __float__(self) -> float:
        raise refused(
            "The function takes a number of a value that differs from element to element.",
            hint="use the functions of tilewright.ops, as exp(x), in place of those of math.",
        )

    __int__ = __index__ = __complex__ = __float__

    def __len__(self) -> int:
        raise refused("The function asks for the length of one element.", hint="it is called for each element.")

    def __iter__(self) -> Any:
        raise refused("The function goes through the parts of one element.", hint="it is called for each element.")

    def __getitem__(self, index: Any) -> Any:
        raise refused("The function takes a part of one element.", hint="it is called for each element.")


@dataclass(frozen=True, slots=True, eq=False)
class Folded:
    """The fold of a number of each element: along rows, columns, or of all. It is a result, and nothing is computed of
    it. along: see `Other`."""

    symbol: Symbol
    operation: Literal[Operation.PLUS, Operation.MAXIMUM]
    along: Along | None

    def __abs__(self) -> Symbol:
        return symbol_of(self)


@dataclass(frozen=True, slots=True, eq=False)
class Quantized:
    """FP8 codes of a number of each element, with a scale for each 128 of a row: a result, and nothing else."""

    symbol: Symbol
    codes: DType


TRACED = (Symbol, Folded, Quantized)
"""What stands for numbers of each element, or for what is made of all of them."""


def symbol_of(given: Any) -> Symbol:
    """A symbol, or a constant as one. Raises TraceError."""
    if isinstance(given, Symbol):
        return given
    if isinstance(given, numbers.Real) or (hasattr(given, "dtype") and getattr(given, "shape", None) == ()):
        try:
            return Symbol(Constant.of(float(given)))
        except OverflowError:
            raise refused("The function computes with a number that float64 cannot hold.") from None
    if isinstance(given, (Folded, Quantized)):
        what = "a fold of rows or columns" if isinstance(given, Folded) else "codes with scales of blocks"
        raise refused(
            f"The function computes with {what}.",
            note="that is known when all of the product is.",
            hint="give it back as a result.",
        )
    raise refused(
        f"The function computes with {type_name(given)}.",
        hint="pass arrays as operands={'name': array}; numbers may be constants.",
    )


def combined(operation: Operation, a: Any, b: Any) -> Symbol:
    """The symbol of an operation. Raises TraceError."""
    x, y = symbol_of(a), symbol_of(b)
    wants_truths = operation in (Operation.BOTH, Operation.EITHER)
    if x.is_truth is not wants_truths or y.is_truth is not wants_truths:
        raise refused(
            f"The function computes {'a truth of numbers' if wants_truths else 'with a truth as with a number'}: "
            f"'{operation.value}'.",
            hint="tilewright.ops.where(condition, 1, 0) makes a number of a truth, and x != 0 a truth of a number.",
        )
    compares_twice = operation in (Operation.MINIMUM, Operation.MAXIMUM)
    size = 1 + (4 * x.size + 4 * y.size if compares_twice else x.size + y.size)
    return Symbol(Combined(operation, x.value, y.value), size, is_truth=operation.is_truth)


def applied(function: Function, given: Any) -> Symbol:
    """The symbol of a function. Raises TraceError."""
    x = as_number(given)
    return Symbol(Applied(function, x.value), 1 + x.size)


def chosen(condition: Any, a: Any, b: Any) -> Symbol:
    """The symbol of a choice. Raises TraceError."""
    if not (isinstance(condition, Symbol) and condition.is_truth):
        raise refused("The condition of `where` is not a comparison.", hint="compare numbers: where(x > 0, x, 0).")
    x, y = as_number(a), as_number(b)
    return Symbol(Where(condition.value, x.value, y.value), 1 + condition.size + x.size + y.size)


def rounded(given: Any, dtype: Any) -> Symbol:
    """The symbol of a number rounded to a format. Raises TraceError."""
    x = as_number(given)
    return Symbol(Rounded(dtype, x.value), 1 + x.size)


def drawn(seed: Any, offset: Any) -> Symbol:
    """The symbol of a uniform number of each element. Raises TraceError."""
    found = []
    for name, given in (("seed", seed), ("offset", offset)):
        value = symbol_of(given).value
        if (isinstance(value, Constant) and is_seed(value.number)) or isinstance(value, Factor):
            found.append(value)
        else:
            raise refused(
                f"The {name} of uniform numbers is not a whole number from 0 to {LARGEST_SEED}, or an operand that is.",
                hint="operands={'seed': 1234}, and tilewright.ops.dropout(x, 0.1, seed).",
            )
    return Symbol(Drawn(found[0], found[1]), 40)


def is_seed(number: float) -> bool:
    """Whether a number may be a seed or an offset."""
    return 0 <= number <= LARGEST_SEED and float(number).is_integer()


def rotated(given: Any) -> Symbol:
    """The symbol of a number turned in its pair of columns. Raises TraceError."""
    x = as_number(given)
    return Symbol(Rotated(x.value), 1 + x.size)


def as_number(given: Any) -> Symbol:
    """The symbol of a number, and of no truth. Raises TraceError."""
    x = symbol_of(given)
    if x.is_truth:
        raise refused(
            "The function computes with a truth as with a number.",
            hint="tilewright.ops.where(condition, 1, 0) makes a number of it.",
        )
    return x


def _power(base: Symbol, exponent: Any) -> Symbol:
    whole = isinstance(exponent, numbers.Real) and float(exponent).is_integer()
    if not whole or not 1 <= abs(int(exponent)) <= 8:
        raise refused(
            f"The function raises a value to the power of {exponent!r}.",
            hint="exponents are whole numbers from -8 to 8, but 0; tilewright.ops.sqrt(x) is x ** 0.5.",
        )
    count = abs(int(exponent))
    result: Symbol | None = None
    square = base
    while count:
        if count & 1:
            result = square if result is None else result * square
        count >>= 1
        if count:
            square = square * square
    assert result is not None
    return result if exponent > 0 else 1.0 / result
