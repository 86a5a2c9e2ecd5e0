"""A function of the epilogue as an expression: it is called once, with symbols for the sum and for its operands."""

from __future__ import annotations

import inspect
import numbers
import re
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import CodeType
from typing import Any, Literal

from tilewright.dtypes import DType
from tilewright.errors import ProblemError
from tilewright.frontend.remembered import Remembered
from tilewright.frontend.symbols import PACKAGE, Folded, Quantized, Symbol, TraceError, is_seed, place_of, symbol_of
from tilewright.problem.functions import Operation
from tilewright.problem.gemm import LARGEST_FACTOR
from tilewright.problem.philox import LARGEST_SEED
from tilewright.problem.values import Accumulated, Added, Along, Element, Factor, Value, draws_of, leaves_of
from tilewright.units import type_name


@dataclass(frozen=True, slots=True)
class Other:
    """A result behind the first. along: of a fold, the dimension of which there is a number for each index; None where
    there is one of all, or, without an operation, one for each element. codes: the scales of blocks of the first
    result, which is codes of that format."""

    value: Value
    operation: Literal[Operation.PLUS, Operation.MAXIMUM] | None = None
    along: Along | None = None
    codes: DType | None = None

    @property
    def has_gradient(self) -> bool:
        """Whether it is differentiated: of the largest, nothing is."""
        return self.operation is not Operation.MAXIMUM


@dataclass(frozen=True, eq=False)
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

    @cached_property
    def seeds(self) -> tuple[str, ...]:
        """The scalars of the call that uniform numbers are drawn by."""
        leaves = (leaf for value in self.values for one in draws_of(value) for leaf in (one.seed, one.offset))
        names = dict.fromkeys(leaf.name for leaf in leaves if isinstance(leaf, Factor))
        return tuple(name.removesuffix(_NUMBER) for name in names)

    @property
    def codes(self) -> DType | None:
        """The format of the first result, where its scales stand behind it."""
        return self.others[0].codes if self.others else None

    def given(self, made: Any) -> Any:
        """What a call gives, from its result, or a tuple of several."""
        results: tuple[Any, ...] = made if self.others else (made,)
        if self.codes is not None:
            codes, scales, *others = results
            results = ((codes, scales.T), *others)
        if self.keys is None:
            return results[0]
        return dict(zip(self.keys, results, strict=True)) if self.keys else results


_OPERAND, _NUMBER = "_operand", "_number"


def operand_name(name: str) -> str:
    """What a kernel calls an array of the call."""
    return name + _OPERAND


def factor_name(name: str) -> str:
    """What a kernel calls a scalar of the call."""
    return name + _NUMBER


# -- tracing -----------------------------------------------------------------------------------------------------------


_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")

_KNOWN: Remembered[Traced] = Remembered()
"""By the function, and the names of its arrays and scalars."""

_ALIKE: Remembered[Traced] = Remembered()
"""By what is computed."""


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
            f"operands is {type_name(operands)}, and not a dictionary.", hint="operands={'name': array}."
        ) from None
    except TypeError:  # a function that cannot be hashed
        key, traced = None, None
    if traced is None:
        traced = _trace(function, [name for name in given if name not in scalars], scalars)
        _KNOWN.keep(key, traced)
    for name in traced.seeds:
        if not is_seed(float(given[name])):
            raise ProblemError(
                f"The operand {name} = {given[name]!r} is a seed or an offset of uniform numbers.",
                note="kernels take scalars in f32, which holds whole numbers of 24 bits.",
                hint=f"give a whole number from 0 to {LARGEST_SEED}.",
            )
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
    if LARGEST_FACTOR < abs(found) < float("inf"):
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
            f"epilogue is {type_name(function)}, and not a function.",
            hint="epilogue=lambda acc, gate: acc * tilewright.ops.sigmoid(gate).",
        )
    symbols = {name: Symbol(Element(Added(operand_name(name)))) for name in names}
    symbols |= {name: Symbol(Factor(factor_name(name))) for name in scalars}
    made = _called(function, symbols)
    several = list(made.values()) if isinstance(made, dict) else made if isinstance(made, (tuple, list)) else [made]
    results = [one for number, made_one in enumerate(several) for one in _results_of(made_one, function, number)]
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


def _results_of(made: Any, function: Any, number: int) -> tuple[Other, ...]:
    """A result of a function; codes are two. Raises TraceError for what is none."""
    if not isinstance(made, Quantized):
        return (_result_of(made, function),)
    if number:
        raise TraceError(
            "Codes with scales of blocks are not the first result.",
            place=_where(function),
            hint="the kernel finds scales for the first; put it in front.",
        )
    value = made.symbol.value
    return Other(value), Other(value, Operation.MAXIMUM, "m", made.codes)


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
    found = _ALIKE.get((value, second, others, keys))
    if found is None:
        scalars = tuple(name.removesuffix(_NUMBER) for name in factors)
        found = Traced(value, names, scalars, function, second, others, keys)
        _ALIKE.keep((value, second, others, keys), found)
    return found


def _called(function: Callable[..., Any], symbols: Mapping[str, Symbol]) -> Any:
    _check_takes(function, symbols)
    try:
        return function(Symbol(Accumulated()), **symbols)
    except (TypeError, AttributeError) as error:
        own = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(PACKAGE)]
        place = place_of(own[-1].filename, own[-1].lineno or 0) if own else _where(function)
        raise TraceError(
            f"The function cannot be traced: {error}.",
            place=place,
            note="it is called once, as function(sum, name=...), with symbols in place of numbers.",
            hint="use Python's operators, and the functions of tilewright.ops.",
        ) from None


def _check_takes(function: Callable[..., Any], symbols: Mapping[str, Symbol]) -> None:
    """Raises TraceError where the arguments of a function are not the sum and the operands of the call."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # of a builtin, which does not tell
        return
    try:
        signature.bind(None, **symbols)
    except TypeError as error:
        given = ", ".join(("the sum", *map(repr, symbols)))
        raise TraceError(
            f"The function cannot be called with {given}: {error}.",
            place=_where(function),
            hint="its first argument is the sum; operands={'name': array or number} has an entry for each other one.",
        ) from None


def _where(function: Any) -> str:
    """The line at which a function begins."""
    code = getattr(function, "__code__", None)
    return place_of(code.co_filename, code.co_firstlineno) if isinstance(code, CodeType) else ""
