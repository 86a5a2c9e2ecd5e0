"""What a call asks for beside the product, checked."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, get_args

from tilewright.dtypes import F32, FP8_FORMATS, TF32, DType
from tilewright.errors import ProblemError, TilewrightError, UnknownName
from tilewright.frontend.formats import format_of
from tilewright.frontend.libraries.views import DTypeError
from tilewright.frontend.tracing import Other, Traced
from tilewright.problem.emulation import ALGORITHMS, Algorithm, at_least_f32
from tilewright.problem.functions import Activation
from tilewright.problem.values import Value

Precision = Literal["default", "tf32", "bf16x9", "bf16x6", "bf16x3", "tf32x3", "f16x3", "f32_emulated"]
"""What becomes of f32 operands; docs/accuracy.md has the bound of each."""

EMULATED: Precision = "f32_emulated"
PRECISIONS: tuple[Precision, ...] = get_args(Precision)

Guarding = Literal["on", "off"]
"""Whether "f32_emulated" lets the GPU look at the range of operands, or the caller knows it."""

_UNGUARDED: Precision = "f16x3"
"""What "f32_emulated" takes where its guard lets it."""

_MOST = float.fromhex("0x1.fffffep+127")
"""The largest f32."""


@dataclass(frozen=True, slots=True, eq=False)
class Options:
    """The same for the same arguments: `options_of` remembers, so that looking one up takes no time.

    fixed_order: the sum over k in one order, whatever is tuned and however many rows and columns there are. traced: a
    function of all that the others say; numbers: the scalars that it reads, in its order. formats: of its results
    behind the first that are matrices, None for that of the operands.
    """

    alpha: float = 1.0
    beta: float = 0.0
    out_dtype: DType | None = None
    precision: Precision = "default"
    fixed_order: bool = False
    activation: Activation | None = None
    traced: Traced | None = None
    numbers: tuple[float, ...] = ()
    formats: tuple[DType | None, ...] = ()

    @property
    def others(self) -> tuple[Other, ...]:
        """The results behind the first."""
        return () if self.traced is None else self.traced.others

    @property
    def values(self) -> tuple[Value, ...]:
        """All results of the function."""
        return () if self.traced is None else self.traced.values

    @property
    def function(self) -> Value | None:
        """The function of the epilogue."""
        return None if self.traced is None else self.traced.value

    @property
    def names(self) -> tuple[str, ...]:
        """The arrays that the function reads."""
        return () if self.traced is None else self.traced.names

    @property
    def has_second(self) -> bool:
        """Whether the last array is another b."""
        return self.traced is not None and self.traced.second

    @property
    def tf32(self) -> bool:
        """Whether f32 operands may be rounded to tf32."""
        return self.precision == "tf32"

    def algorithm_of(self, dtype: DType, k: int) -> tuple[Algorithm | None, bool]:
        """By which pieces of f32 operands a product over k is computed, if it is; and whether f32 arithmetic may do it
        where that is faster."""
        if dtype is not F32 or not k:
            return None, False
        if self.precision == EMULATED:
            found = at_least_f32(k)
            return (found[0], True) if found else (None, False)
        return ALGORITHMS.get(self.precision), False

    def product_of(self, dtype: DType) -> DType | None:
        """What operands are rounded to before they are multiplied; None for nothing."""
        return TF32 if self.tf32 and dtype is F32 else None


def unguarded(precision: Any, guard: Any) -> Precision:
    """The precision that has no guard. guard: "off"; "on" is for whoever need not ask. Raises ProblemError for another
    word, or a precision that has no guard to begin with."""
    if guard not in get_args(Guarding):
        raise ProblemError(f"guard={guard!r} is not known.", hint="it is 'on' or 'off'.")
    if precision != EMULATED and guard == "off":
        raise ProblemError(
            f"guard='off' is for precision={EMULATED!r}, and this is {precision!r}, which has no guard.",
            hint=f"leave out guard, or ask for precision={EMULATED!r}.",
        )
    return _UNGUARDED if guard == "off" else precision


def check_precision(precision: Any) -> None:
    """Raises ProblemError for what is not one of PRECISIONS."""
    if precision not in PRECISIONS:
        raise ProblemError(
            f"precision={precision!r} is not known.", hint=f"precisions are {', '.join(map(repr, PRECISIONS))}."
        )


@lru_cache(maxsize=1024)
def options_of(
    alpha: float,
    beta: float | None,
    out_dtype: Any,
    precision: Any,
    deterministic: Any,
    batch_invariant: Any,
    activation: Any,
    adds: bool,
    traced: Traced | None = None,
    numbers: tuple[float, ...] = (),
) -> Options:
    """Raises ProblemError for what no call can ask. adds: whether there is a `c` for beta to multiply."""
    check_precision(precision)
    if deterministic not in (None, True, False, "bitwise"):
        raise ProblemError(
            f"deterministic={deterministic!r} is not known.",
            note="every kernel gives the same bits in every run.",
            hint="use 'bitwise' to keep to one order of summation whatever is tuned.",
        )
    if beta is not None and not adds:
        raise ProblemError(
            f"beta={beta!r} has nothing to multiply.", hint="give c; to add to `out` itself, pass c=out."
        )
    for name, factor in (("alpha", alpha), ("beta", beta or 0.0)):
        if abs(factor) > _MOST and math.isfinite(factor):
            raise ProblemError(f"{name}={factor!r} does not fit in an f32.", hint="sums and factors are f32.")
    fixed_order = bool(batch_invariant) or deterministic == "bitwise"
    factor = 0.0 if not adds else 1.0 if beta is None else beta
    first, *others = (format_asked(one) for one in _formats(out_dtype, traced))
    if others and precision not in ("default", "tf32"):
        raise ProblemError(
            f"precision={precision!r} multiplies pieces of operands, and the epilogue has {1 + len(others)} results.",
            hint="leave out precision, or compute the other results apart.",
        )
    options = alpha, factor, first, precision, fixed_order, _function(activation), traced, numbers
    return Options(*options, tuple(others))


def options_with(
    *,
    alpha: float = 1.0,
    beta: float | None = None,
    out_dtype: Any = None,
    precision: Precision = "default",
    fixed_order: bool = False,
    traced: Traced | None = None,
    numbers: tuple[float, ...] = (),
) -> Options:
    """`options_of` by names, for calls of our own. beta: of a `c` that is added; None where none is."""
    function = () if traced is None else (traced, numbers)
    return options_of(alpha, beta, out_dtype, precision, None, fixed_order, None, beta is not None, *function)


def _formats(out_dtype: Any, traced: Traced | None) -> tuple[Any, ...]:
    """What is asked for each result of a call: one for all matrices, or each. Raises ProblemError."""
    count = 1 if traced is None else 1 + len(traced.others)
    if traced is not None and traced.codes is not None:  # which say their format, and that of their scales
        others = out_dtype[1:] if isinstance(out_dtype, tuple) else (out_dtype,) * (count - 2)
        out_dtype = (traced.codes, None, *others)
    if not isinstance(out_dtype, tuple):
        return (out_dtype,) * count
    if len(out_dtype) != count:
        raise ProblemError(
            f"out_dtype has {len(out_dtype)} formats, and the call {count} result{'s' if count > 1 else ''}.",
            hint="give one for all, or one for each, None for that of the operands.",
        )
    return out_dtype


def options_asked(alpha: Any, beta: Any, *others: Any) -> Options:
    """`options_of`, for whatever a user may have written."""
    if type(alpha) is not float:
        alpha = number("alpha", alpha)
    if beta is not None:
        beta = number("beta", beta)
    try:
        return options_of(alpha, beta, *others)
    except TypeError as error:
        if isinstance(error, TilewrightError):
            raise
        # Something unhashable, which is nothing that could be asked.
        return options_of.__wrapped__(alpha, beta, *others)


def result_format(options: Options, dtype: DType) -> DType:
    """The format of the result of operands of `dtype`. Raises DTypeError."""
    if options.out_dtype not in (None, dtype, F32, *(FP8_FORMATS if options.traced is not None else ())):
        known = str(dtype) if dtype is F32 else f"{dtype} or f32"
        raise DTypeError(f"Cannot multiply {dtype} into {options.out_dtype}.", hint=f"results are {known}.")
    return options.out_dtype or dtype


def number(name: str, value: Any) -> float:
    """A factor, from a number or an array of one. Raises ProblemError."""
    try:
        if isinstance(value, (str, bytes, bytearray)):
            raise TypeError
        return float(value)
    except (TypeError, ValueError, OverflowError):
        raise ProblemError(f"{name}={value!r} is not a number.") from None


def format_asked(out_dtype: Any) -> DType | None:
    """A format by our name, or by another library's object for it: `"f32"`, `torch.float32`, `np.float32`."""
    if out_dtype is None:
        return None
    found = format_of(out_dtype)
    if found is None:
        raise DTypeError(f"Cannot multiply into {out_dtype}.", hint="results are f32, f16 or bf16.")
    return found


def _function(name: Any) -> Activation | None:
    if name is None or isinstance(name, Activation):
        return name
    known = {one.value: one for one in Activation}
    if not isinstance(name, str) or name not in known:
        raise UnknownName("activation", str(name), known)
    return known[name]


PLAIN = options_of(1.0, None, None, "default", None, False, None, False)
"""What a call asks that says nothing."""
