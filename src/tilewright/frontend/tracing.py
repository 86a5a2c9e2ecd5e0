"""A function of the epilogue as an expression: it is called once, with symbols for the sum and for its operands."""

from __future__ import annotations

import linecache
import numbers
import re
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType
from typing import Any, Literal

from tilewright.errors import ProblemError
from tilewright.problem.functions import Elementary, Function, Operation
from tilewright.problem.values import (
    Accumulated,
    Added,
    Along,
    Applied,
    Combined,
    Constant,
    Element,
    Factor,
    Rounded,
    Value,
    Where,
    leaves_of,
)

MOST_OPERATIONS = 400
"""Of an expression, each counted as often as kernels evaluate it."""

_PACKAGE = str(Path(__file__).parent)
_LARGEST = (2 - 2**-23) * 2.0**127


class TraceError(ProblemError):
    """A function that cannot be traced; its place is the line of the function."""


@dataclass(frozen=True, slots=True)
class Other:
    """A result behind the first. along: of a fold, the dimension of which there is a number for each index; None where
    there is one of all, or, without an operation, one for each element."""

    value: Value
    operation: Literal[Operation.PLUS, Operation.MAXIMUM] | None = None
    along: Along | None = None

    @property
    def has_gradient(self) -> bool:
        """Whether it is differentiated: of the largest, nothing is."""
        return self.operation is not Operation.MAXIMUM


@dataclass(frozen=True, slots=True, eq=False)
class Traced:
    """What a function computes, and the arrays and scalars that it reads, by the names of the call, in the order of the
    kernel's arguments. The same value for equal expressions. second: there is another b, behind those arrays, whose
    product with a is accumulator 1. others: results behind the first, which is a number for each element; keys: of a
    dictionary of all, () for a tuple, None for one result by itself."""

    value: Value
    names: tuple[str, ...] = ()
    factors: tuple[str, ...] = ()
    function: Any = field(default=None, repr=False)
    second: bool = False
    others: tuple[Other, ...] = ()
    keys: tuple[str, ...] | None = None

    @property
    def values(self) -> tuple[Value, ...]:
        """Of all results."""
        return self.value, *(other.value for other in self.others)

    def given(self, made: Any) -> Any:
        """What a call gives, from its result, or a tuple of several."""
        if self.keys is None:
            return made
        results = made if self.others else (made,)
        return dict(zip(self.keys, results, strict=True)) if self.keys else results


_OPERAND, _NUMBER = "_operand", "_number"


def operand_name(name: str) -> str:
    """What a kernel calls an array of the call."""
    return name + _OPERAND


def factor_name(name: str) -> str:
    """What a kernel calls a scalar of the call."""
    return name + _NUMBER


# -- symbols -----------------------------------------------------------------------------------------------------------


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
            raise _refused(
                f"The function is more than {MOST_OPERATIONS} operations for each element.",
                note="what is used twice is computed twice.",
                hint="compute a part of it apart, and pass it as an operand.",
            )

    def __add__(self, other: Any) -> Symbol:
        return combined(Operation.PLUS, self, other)

    def __radd__(self, other: Any) -> Symbol:
        return combined(Operation.PLUS, other, self)

    def __sub__(self, other: Any) -> Symbol:
        return combined(Operation.MINUS, self, other)

    def __rsub__(self, other: Any) -> Symbol:
        return combined(Operation.MINUS, other, self)

    def __mul__(self, other: Any) -> Symbol:
        return combined(Operation.TIMES, self, other)

    def __rmul__(self, other: Any) -> Symbol:
        return combined(Operation.TIMES, other, self)

    def __truediv__(self, other: Any) -> Symbol:
        return combined(Operation.OVER, self, other)

    def __rtruediv__(self, other: Any) -> Symbol:
        return combined(Operation.OVER, other, self)

    def __pow__(self, exponent: Any) -> Symbol:
        return _power(self, exponent)

    def __neg__(self) -> Symbol:
        return applied(Elementary.NEGATIVE, self)

    def __pos__(self) -> Symbol:
        return self

    def __abs__(self) -> Symbol:
        return applied(Elementary.ABSOLUTE, self)

    def __lt__(self, other: Any) -> Symbol:
        return combined(Operation.LESS, self, other)

    def __le__(self, other: Any) -> Symbol:
        return combined(Operation.AT_MOST, self, other)

    def __gt__(self, other: Any) -> Symbol:
        return combined(Operation.LESS, other, self)

    def __ge__(self, other: Any) -> Symbol:
        return combined(Operation.AT_MOST, other, self)

    def __eq__(self, other: object) -> Symbol:  # type: ignore[override]
        return combined(Operation.EQUAL, self, other)

    def __ne__(self, other: object) -> Symbol:  # type: ignore[override]
        return combined(Operation.UNEQUAL, self, other)

    def __and__(self, other: Any) -> Symbol:
        return combined(Operation.BOTH, self, other)

    def __or__(self, other: Any) -> Symbol:
        return combined(Operation.EITHER, self, other)

    def minimum(self, other: Any) -> Symbol:
        """The smaller of two; NaN where one is."""
        return combined(Operation.MINIMUM, self, other)

    def maximum(self, other: Any) -> Symbol:
        """The larger of two; NaN where one is."""
        return combined(Operation.MAXIMUM, self, other)

    def __bool__(self) -> bool:
        raise _refused(
            "The function branches on a value that differs from element to element.",
            hint="tilewright.ops.where(condition, a, b) chooses; & and | combine conditions; maximum and minimum are "
            "functions.",
        )

    def __float__(self) -> float:
        raise _refused(
            "The function takes a number of a value that differs from element to element.",
            hint="use the functions of tilewright.ops, as exp(x), in place of those of math.",
        )

    __int__ = __index__ = __complex__ = __float__

    def __len__(self) -> int:
        raise _refused("The function asks for the length of one element.", hint="it is called for each element.")

    def __iter__(self) -> Any:
        raise _refused("The function goes through the parts of one element.", hint="it is called for each element.")

    def __getitem__(self, index: Any) -> Any:
        raise _refused("The function takes a part of one element.", hint="it is called for each element.")


@dataclass(frozen=True, slots=True, eq=False)
class Folded:
    """The fold of a number of each element: along rows, columns, or of all. It is a result, and nothing is computed of
    it. along: see `Other`."""

    symbol: Symbol
    operation: Literal[Operation.PLUS, Operation.MAXIMUM]
    along: Along | None

    def __abs__(self) -> Symbol:
        return symbol_of(self)


def symbol_of(given: Any) -> Symbol:
    """A symbol, or a constant as one. Raises TraceError."""
    if isinstance(given, Symbol):
        return given
    if isinstance(given, numbers.Real) or (hasattr(given, "dtype") and getattr(given, "shape", None) == ()):
        return Symbol(Constant.of(float(given)))
    if isinstance(given, Folded):
        raise _refused(
            "The function computes with a fold of rows or columns.",
            note="that is known when all of the product is.",
            hint="give it back as a result.",
        )
    raise _refused(
        f"The function computes with a {type(given).__name__}.",
        hint="pass arrays as operands={'name': array}; numbers may be constants.",
    )


def combined(operation: Operation, a: Any, b: Any) -> Symbol:
    """The symbol of an operation. Raises TraceError."""
    x, y = symbol_of(a), symbol_of(b)
    wants_truths = operation in (Operation.BOTH, Operation.EITHER)
    if x.is_truth is not wants_truths or y.is_truth is not wants_truths:
        raise _refused(
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
        raise _refused("The condition of `where` is not a comparison.", hint="compare numbers: where(x > 0, x, 0).")
    x, y = as_number(a), as_number(b)
    return Symbol(Where(condition.value, x.value, y.value), 1 + condition.size + x.size + y.size)


def rounded(given: Any, dtype: Any) -> Symbol:
    """The symbol of a number rounded to a format. Raises TraceError."""
    x = as_number(given)
    return Symbol(Rounded(dtype, x.value), 1 + x.size)


def as_number(given: Any) -> Symbol:
    """The symbol of a number, and of no truth. Raises TraceError."""
    x = symbol_of(given)
    if x.is_truth:
        raise _refused(
            "The function computes with a truth as with a number.",
            hint="tilewright.ops.where(condition, 1, 0) makes a number of it.",
        )
    return x


def _power(base: Symbol, exponent: Any) -> Symbol:
    whole = isinstance(exponent, numbers.Real) and float(exponent).is_integer()
    if not whole or not 1 <= abs(int(exponent)) <= 8:
        raise _refused(
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


# -- tracing -----------------------------------------------------------------------------------------------------------


def _refused(headline: str, **more: str) -> TraceError:
    """An error at the line of the function that runs."""
    frame = sys._getframe()
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.f_back
    return TraceError(headline, place=_place(frame.f_code.co_filename, frame.f_lineno), **more)


def _place(path: str, line: int) -> str:
    text = linecache.getline(path, line).strip()
    return f"{Path(path).name}:{line}" + (f": {text}" if text else "")


_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")

_KNOWN: dict[Any, Traced] = {}
"""By the function, and the names of its arrays and scalars."""

_ALIKE: dict[Any, Traced] = {}
"""By what is computed."""

_MOST = 1024
"""Functions that are remembered: a program that makes them anew in a loop must not fill the memory with them."""


def ask(function: Any, operands: Mapping[str, Any] | None) -> tuple[Traced, tuple[float, ...], tuple[Any, ...]]:
    """What a call asks by a function of the epilogue: what is computed, the scalars and the arrays that it reads.

    A function is traced at its first call with operands of some names, and anew where it closes over other numbers.
    Raises TraceError for what is no expression, and ProblemError for operands that are none.
    """
    given = {} if operands is None else operands
    try:
        scalars = tuple([name for name, one in given.items() if _is_scalar(one)])
        key = function, tuple(given), scalars, _closed_over(function)
        traced = _KNOWN.get(key)
    except AttributeError:
        raise ProblemError(
            f"operands is a {type(operands).__name__}, and not a dictionary.", hint="operands={'name': array}."
        ) from None
    except TypeError:  # a function that cannot be hashed
        key, traced = None, None
    if traced is None:
        traced = _trace(function, [name for name in given if name not in scalars], scalars)
        if key is not None:
            if len(_KNOWN) >= _MOST:
                _KNOWN.clear()
            _KNOWN[key] = traced
    if not given:
        return traced, (), ()
    return (
        traced,
        tuple([_checked_scalar(name, given[name]) for name in traced.factors]),
        tuple([given[name] for name in traced.names]),
    )


def _closed_over(function: Any) -> tuple[str, ...] | None:
    """The numbers that a function closes over: where one has changed, the function is another."""
    cells = getattr(function, "__closure__", None)
    if not cells:
        return None
    try:
        values = [cell.cell_contents for cell in cells]
    except ValueError:  # a cell that is not filled yet
        return None
    return tuple([repr(value) for value in values if isinstance(value, (int, float))])


def _is_scalar(given: Any) -> bool:
    """Whether an operand is a number of the host, which becomes an argument of the launch."""
    if type(given) in (int, float):
        return True
    return isinstance(given, numbers.Real) or (
        type(given).__module__ == "numpy" and getattr(given, "shape", None) == ()
    )


def _checked_scalar(name: str, given: Any) -> float:
    found = float(given)
    if _LARGEST < abs(found) < float("inf"):
        raise ProblemError(f"The operand {name} = {found!r} does not fit in an f32.", hint="scalars are f32.")
    return found


def _trace(function: Any, names: list[Any], scalars: tuple[Any, ...]) -> Traced:
    for name in (*names, *scalars):
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise ProblemError(
                f"{name!r} is not a name of an operand.",
                note="the kernel calls it so.",
                hint="names are of letters a to z, digits and underscores.",
            )
    if not callable(function):
        raise ProblemError(
            f"epilogue is a {type(function).__name__}, and not a function.",
            hint="epilogue=lambda acc, gate: acc * tilewright.ops.sigmoid(gate).",
        )
    symbols = {name: Symbol(Element(Added(operand_name(name)))) for name in names}
    symbols |= {name: Symbol(Factor(factor_name(name))) for name in scalars}
    made = _called(function, symbols)
    several = list(made.values()) if isinstance(made, dict) else made if isinstance(made, (tuple, list)) else [made]
    results = [_result_of(one, function) for one in several]
    if not results or results[0].operation is not None:
        raise TraceError(
            f"The function gives {'a fold first' if results else 'no result'}.",
            place=_where(function),
            hint="the first of its results is a number for each element; folds come behind it.",
        )
    keys = tuple(made) if isinstance(made, dict) else ()
    if any(not isinstance(key, str) for key in keys):
        raise TraceError("A key of the results is not a text.", place=_where(function), hint="{'name': value}.")
    kind = None if not isinstance(made, (dict, tuple, list)) else keys
    return traced_of(results[0].value, function, others=tuple(results[1:]), keys=kind)


def _result_of(made: Any, function: Any) -> Other:
    """A result of a function. Raises TraceError for what is none."""
    if isinstance(made, Folded):
        return Other(made.symbol.value, made.operation, made.along)
    if made is None or (isinstance(made, Symbol) and made.is_truth):
        what = "no result" if made is None else "a truth"
        raise TraceError(
            f"The function gives {what}.", place=_where(function), hint="it gives a number for each element."
        )
    try:
        return Other(symbol_of(made).value)
    except TraceError as error:
        raise TraceError(error.headline, place=_where(function), hint=error.hint) from None


def traced_of(
    value: Value,
    function: Any = None,
    *,
    second: bool = False,
    others: tuple[Other, ...] = (),
    keys: tuple[str, ...] | None = None,
) -> Traced:
    """What expressions of symbols compute; the same value for equal ones."""
    leaves = [leaf for one in (value, *(other.value for other in others)) for leaf in leaves_of(one)]
    read = dict.fromkeys(leaf.operand.name for leaf in leaves if isinstance(leaf, Element))
    factors = dict.fromkeys(leaf.name for leaf in leaves if isinstance(leaf, Factor))
    names = tuple(name.removesuffix(_OPERAND) for name in read)
    found = Traced(value, names, tuple(name.removesuffix(_NUMBER) for name in factors), function, second, others, keys)
    if len(_ALIKE) >= _MOST:
        _ALIKE.clear()
    return _ALIKE.setdefault((value, second, others, keys), found)


def _called(function: Callable[..., Any], symbols: Mapping[str, Symbol]) -> Any:
    try:
        return function(Symbol(Accumulated()), **symbols)
    except (TypeError, AttributeError) as error:
        own = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(_PACKAGE)]
        place = _place(own[-1].filename, own[-1].lineno or 0) if own else _where(function)
        raise TraceError(
            f"The function cannot be traced: {error}.",
            place=place,
            note="it is called once, as function(sum, name=...), with symbols in place of numbers.",
            hint="use Python's operators, and the functions of tilewright.ops.",
        ) from None


def _where(function: Any) -> str:
    """The line at which a function begins."""
    code = getattr(function, "__code__", None)
    return _place(code.co_filename, code.co_firstlineno) if isinstance(code, CodeType) else ""
